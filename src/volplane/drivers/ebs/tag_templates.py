"""Tags in the parameters of classes: `tagSpecification_1: "team={{ .PVCNamespace }}"`.

AWS's driver evaluates Go templates. Here a value may contain the names of the object, and nothing else that
Go's templates have: anything else is refused, not stored as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from volplane.sdk.errors import InvalidArgument

PREFIX = "tagspecification"
_ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)


def parse_tags(specifications: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """The tags of all specifications; `names` are the values of `.PVCName` and others."""
    tags = {}
    for text in specifications.values():
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidArgument(f"the key-value pair doesn't contain a value (string: {text})")
        tags[key] = _ACTION.sub(lambda action: _evaluate(action[1], names), value)
    return tags


def _evaluate(action: str, names: Mapping[str, str]) -> str:
    if action not in names:
        known = ", ".join(names)
        raise InvalidArgument(f"Error interpolating tag value: {{{{{action}}}}} is not one of {known}")
    return names[action]
