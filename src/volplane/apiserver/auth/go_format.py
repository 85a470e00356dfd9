"""Format strings, lists and errors as Go does, because API messages contain them."""

from __future__ import annotations

import json
from collections.abc import Iterable


def go_quote(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)


def go_list(words: Iterable[str]) -> str:
    """Format strings as Go prints a slice of them."""
    return "[" + " ".join(go_quote(word) for word in words) + "]"


def aggregate_errors(errors: Iterable[str]) -> str:
    """Combine errors as Go's NewAggregate does, without duplicates."""
    unique = list(dict.fromkeys(errors))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"
