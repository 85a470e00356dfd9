"""Expand $(VAR) in commands, arguments, values and subPathExpr. Pure.

`$$(VAR)` is the escaped form; a reference to an unknown variable stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    return _REFERENCE.sub(_replacement(variables), text)


def _replacement(variables: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    def replace(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        return variables.get(found[2], found[0])

    return replace


class UnknownVariable(ValueError):
    pass


def expand_strictly(text: str, variables: Mapping[str, str]) -> str:
    """Like `expand`, but an unknown variable raises UnknownVariable; for paths."""
    for found in _REFERENCE.finditer(text):
        if found[1] != "$" and found[2] not in variables:
            raise UnknownVariable(f"missing value for {found[2]!r}")
    return expand(text, variables)
