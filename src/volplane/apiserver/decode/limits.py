"""Limits on the number of values in a request body, JSON or YAML.

The size in bytes does not bound the parsing time: three megabytes can be a million empty lists, and parsing
them blocks the event loop. The largest object that can be stored has some ten thousand values.
"""

from volplane.api.errors import TooLarge

MAX_VALUES = 200_000  # members, elements, objects and lists
MAX_DEPTH = 1000  # nested objects and lists
_SHORTEST = 2  # bytes of the shortest value
_CHUNK = 64 * 1024


class MalformedBody(ValueError):
    """The body is not valid JSON or YAML."""


def too_many_values() -> TooLarge:
    return TooLarge(f"Request entity too large: limit is {MAX_VALUES} values")


def check_values(body: bytes) -> None:
    """Refuse JSON with too many values before parsing it. Raises TooLarge."""
    if len(body) < MAX_VALUES * _SHORTEST or _count_separators(body) <= MAX_VALUES:
        return
    if _count_values(body) > MAX_VALUES:
        raise too_many_values()


def _count_separators(text: bytes) -> int:
    """An upper bound of the number of values: one of these characters stands before each, some are in
    strings."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _count_values(body: bytes) -> int:
    """The same without characters in strings, chunk by chunk, so that other threads get their turn."""
    found, inside = 0, False
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    for at in range(0, len(plain), _CHUNK):
        pieces = plain[at : at + _CHUNK].split(b'"')
        found += sum(_count_separators(piece) for piece in pieces[inside::2])
        inside ^= len(pieces) % 2 == 0
    return found
