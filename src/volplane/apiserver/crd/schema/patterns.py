"""Regular expressions in Go syntax, run by RE2: matching takes time linear in the length of the text.

RE2 is imported with the first pattern: it takes 3 MB that a server without custom resources does not need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from volplane.apiserver import cpu_offload

CACHED = 256  # compiled patterns
STEPS_PER_UNIT = 1000  # instructions times characters; RE2 does at least 200 of them per microsecond

_BYTE = re.compile(r"(?<!\\)(?:\\\\)*(\\C)")  # a single byte: supported by RE2, but not by Go
# Error messages of RE2, and Go's messages for the same errors.
_GO_WORDS = {
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "trailing \\": "trailing backslash at end of expression",
    "pattern too large - compile failed": "expression too large",
}


class InvalidPattern(ValueError):
    """Not a valid regular expression in Go."""


class Re2Pattern:
    """A compiled pattern."""

    __slots__ = ("_compiled", "_size")

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._size: int = compiled.programsize

    def search(self, text: str) -> str | None:
        """Return the first match, or None."""
        return next(self.find_all(text), None)

    def find_all(self, text: str) -> Iterator[str]:
        """Yield the matches from left to right."""
        cpu_offload.spend(self._size * len(text) // STEPS_PER_UNIT)
        if text.isascii() or _is_text(text):
            for found in self._compiled.finditer(text):
                yield found[0]


@lru_cache(maxsize=CACHED)
def compile(pattern: str) -> Re2Pattern:
    """Raise InvalidPattern."""
    import re2

    if found := _BYTE.search(pattern):
        raise InvalidPattern(f"error parsing regexp: invalid escape sequence: `{found[1]}`")
    options = re2.Options()
    options.log_errors = False
    try:
        return Re2Pattern(re2.compile(pattern, options))
    except re2.error as error:
        raise InvalidPattern(f"error parsing regexp: {_go_message(error.args[0])}") from error
    except UnicodeEncodeError as error:
        raise InvalidPattern("error parsing regexp: invalid UTF-8") from error


def _go_message(raw: bytes) -> str:
    what, colon, where = raw.decode(errors="replace").partition(": ")
    words = _GO_WORDS.get(what, what)
    return f"{words}: `{where}`" if colon else words


def _is_text(text: str) -> bool:
    """Return False for strings with unpaired surrogates (possible in YAML), which no pattern matches."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
