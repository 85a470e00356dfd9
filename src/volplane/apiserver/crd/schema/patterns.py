"""Regular expressions in Go's spelling (RE2), run by Python's engine.

What the two spell differently is translated, what only Python knows (looking around, back references) is
refused as RE2 would. The subtle thing: RE2 takes linear time whatever the pattern, Python does not; patterns
come from whoever may define kinds, which is an administrator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

_POSIX: Mapping[str, str] = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7F", "blank": r"\t ",
    "cntrl": r"\x00-\x1F\x7F", "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~",
    "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ", "upper": "A-Z", "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_ONLY_PYTHON = re.compile(r"\(\?(?:[=!#(>]|<[=!]|P=|P>)")
_GROUP = re.compile(r"\(\?<([A-Za-z_])")
_POSIX_CLASS = re.compile(r"\[:(\^?)([a-z]+):\]")


class BadPattern(ValueError):
    """Not a regular expression that RE2 would take."""


@lru_cache(maxsize=1024)
def compile(pattern: str) -> re.Pattern[str]:
    """Raises BadPattern."""
    try:
        return re.compile(_translated(pattern), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadPattern(f"error parsing regexp: {error}: `{pattern}`") from error


def _translated(pattern: str) -> str:
    whole_lines = re.search(r"\(\?[a-zA-Z]*m", pattern) is not None
    out: list[str] = []
    at, inside = 0, False
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            out.append(_escape(pattern, at))
            at += 2
            continue
        if inside:
            found = _POSIX_CLASS.match(pattern, at)
            if found:
                out.append(_posix(pattern, found))
                at = found.end()
                continue
            inside = character != "]" or out[-1:] in (["["], ["[^"])
            out.append(r"\[" if character == "[" else character)
        elif character == "[":
            inside = True
            negated = pattern.startswith("[^", at)
            out.append("[^" if negated else "[")
            at += negated
        elif character == "(":
            if found := _ONLY_PYTHON.match(pattern, at):
                raise _unsupported(pattern, f"invalid or unsupported Perl syntax: `{found[0]}`")
            named = _GROUP.match(pattern, at)
            out.append("(?P<" if named else "(")
            at += 2 if named else 0
        elif character == "$" and not whole_lines:
            out.append(r"\Z")  # Python's $ also stands before a last newline
        else:
            out.append(character)
        at += 1
    return "".join(out)


def _escape(pattern: str, at: int) -> str:
    after = pattern[at + 1 : at + 2]
    if after == "z":
        return r"\Z"
    if after in ("Z", "p", "P", "Q", "C") or (after.isdigit() and after != "0"):
        raise _unsupported(pattern, rf"invalid escape sequence: `\{after}`")
    return pattern[at : at + 2]


def _posix(pattern: str, found: re.Match[str]) -> str:
    members = _POSIX.get(found[2])
    if members is None or found[1]:
        raise _unsupported(pattern, f"invalid character class range: `{found[0]}`")
    return members


def _unsupported(pattern: str, words: str) -> BadPattern:
    return BadPattern(f"error parsing regexp: {words}")
