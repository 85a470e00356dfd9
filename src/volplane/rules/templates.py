"""Names with `${tokens}`, as classes write them for secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(r"\$(?:\{([^}]*)\}|(\w+))")


class InvalidTemplate(ValueError):
    """The template has tokens that cannot be resolved."""


def resolve(template: str, tokens: Mapping[str, str]) -> str:
    unknown: list[str] = []

    def value(match: re.Match[str]) -> str:
        token = match[1] if match[1] is not None else match[2]
        if token not in tokens:
            unknown.append(token)
        return tokens.get(token, "")

    resolved = _TOKEN.sub(value, template)
    if unknown:
        raise InvalidTemplate(f'invalid tokens in "{template}": {", ".join(unknown)}')
    return resolved
