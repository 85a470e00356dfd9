"""How much a request's body may hold, whatever its language.

Bytes alone do not bound the time it takes: three megabytes can be a million empty lists, and reading those is
one step that nothing interrupts. An object of the largest size that is stored has some ten thousand values.
"""

from volplane.api.errors import TooLarge

MAX_VALUES = 200_000  # members, elements, objects and lists
MAX_DEPTH = 1000  # of objects and lists in each other
_SHORTEST = 2  # bytes that a value takes
_CHUNK = 64 * 1024


class MalformedBody(ValueError):
    """The body is neither JSON nor YAML, whichever it claims to be."""


def too_many_values() -> TooLarge:
    return TooLarge(f"Request entity too large: limit is {MAX_VALUES} values")


def check_values(body: bytes) -> None:
    """Refuse JSON with too many values, before anything is made of it. Raises TooLarge."""
    if len(body) < MAX_VALUES * _SHORTEST or _count_separators(body) <= MAX_VALUES:
        return
    if _count_values(body) > MAX_VALUES:
        raise too_many_values()


def _count_separators(text: bytes) -> int:
    """There is one of these signs before each value but the first, and perhaps more of them in strings."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _count_values(body: bytes) -> int:
    """The same count without what stands in strings, piece by piece, so that others get their turn."""
    found, inside = 0, False
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    for at in range(0, len(plain), _CHUNK):
        pieces = plain[at : at + _CHUNK].split(b'"')
        found += sum(_count_separators(piece) for piece in pieces[inside::2])
        inside ^= len(pieces) % 2 == 0
    return found
