"""Form bodies (`application/x-www-form-urlencoded`): the same as `urllib.parse`, in a fraction of the time.

Names and most values need no escaping, and names repeat in every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote_plus, unquote_plus

_quote = lru_cache(maxsize=1024)(quote_plus)


def encode_form(fields: Mapping[str, str]) -> str:
    """`name=value&…`, as `urlencode` does."""
    return "&".join([f"{_quote(name)}={_quote(value)}" for name, value in fields.items()])


def decode_form(text: str) -> list[tuple[str, str]]:
    """Names and values, as `parse_qsl` does with blank values."""
    pairs = [pair.partition("=") for pair in text.split("&") if pair]
    if "%" not in text and "+" not in text:
        return [(name, value) for name, _, value in pairs]
    return [(_unquote(name), _unquote(value)) for name, _, value in pairs]


def _unquote(text: str) -> str:
    return unquote_plus(text) if "%" in text or "+" in text else text
