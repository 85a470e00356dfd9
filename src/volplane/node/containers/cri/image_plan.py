"""Which images to remove when the image file system is full. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct


class StoredImage(Struct, frozen=True):
    id: str
    size: int
    last_used: float  # when a container was last seen to use it, or it was first seen
    first_seen: float


def bytes_to_free(capacity: int, available: int, *, high: int, low: int) -> int:
    """How much must go: nothing below `high` percent of use, else down to `low` percent."""
    if capacity <= 0:
        return 0
    usage = 100 - available * 100 // capacity
    if high >= 100 or usage < high:
        return 0
    return max(0, capacity * (100 - low) // 100 - available)


def choose_images(
    images: Iterable[StoredImage], in_use: Collection[str], *, needed: int, now: float, min_age: float
) -> Iterator[StoredImage]:
    """Images without containers, the longest unused first, until `needed` bytes are free."""
    unused = [image for image in images if image.id not in in_use]
    for image in sorted(unused, key=lambda each: (each.last_used, each.first_seen)):
        if needed <= 0:
            return
        if now - image.first_seen < min_age:
            continue
        needed -= image.size
        yield image
