"""How lists and errors read in the API's messages, which are written in Go."""

from __future__ import annotations

import json
from collections.abc import Iterable


def go_quote(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)


def go_list(words: Iterable[str]) -> str:
    """Words as Go prints a list of them."""
    return "[" + " ".join(go_quote(word) for word in words) + "]"


def aggregate_errors(errors: Iterable[str]) -> str:
    """Several errors as one text; what is said twice is told once."""
    told = list(dict.fromkeys(errors))
    return told[0] if len(told) == 1 else f"[{', '.join(told)}]"
