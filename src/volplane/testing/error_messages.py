"""Compare error messages that differ only in names, ids and request numbers."""

from __future__ import annotations

import re

_VARIABLE = re.compile(r"\"[^\"]*\"|[0-9a-f-]{8,}")


def without_names(message: str) -> str:
    """The message without quoted words and ids: two errors with the same rest have the same cause."""
    return _VARIABLE.sub("…", message)
