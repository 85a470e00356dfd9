"""Records that are many, alike and hardly read, kept small: neighbours are packed together, in bundles.

An event of some six hundred bytes takes eighty in its bundle; whoever reads one record opens the bundle, in
sixty microseconds, and whoever reads many opens each once. Only memory is packed; what is on disk and what
readers get is as it was written. Bundles stand on shelves, away from the heap: they stay for an hour, among
what comes and goes by the second, and the holes between them would fit nobody. The subtle thing: a bundle is
never changed, and a shelf given back only as a whole. What stands on it is of one age, and goes together.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from mmap import MAP_PRIVATE, mmap
from typing import TypeAlias

from msgspec import msgpack

from volplane.store.contract import StoreRecord

WAITING = 256  # records that are sorted together: neighbours are alike, and are asked for together
BUNDLE = 32  # records
SHELF = 256 << 10  # bytes
LEVEL, WINDOW = 6, -15  # of deflate, without its header

CompressedBlock: TypeAlias = memoryview

_pack = msgpack.Encoder().encode
_unpack = msgpack.Decoder(list[tuple[str, bytes, int, int]]).decode


class RecordArena:
    def __init__(self) -> None:
        self._free = memoryview(b"")  # what is left of the newest shelf

    def compress(
        self, records: Sequence[StoreRecord]
    ) -> Iterator[tuple[Sequence[StoreRecord], CompressedBlock]]:
        """Some of the records and the bundle that they are in, until all are in one."""
        ordered = sorted(records, key=lambda record: record.key)
        for start in range(0, len(ordered), BUNDLE):
            some = ordered[start : start + BUNDLE]
            yield some, self._store_block(pack(some))

    def _store_block(self, packed: bytes) -> CompressedBlock:
        size = len(packed)
        if size > len(self._free):
            self._free = memoryview(mmap(-1, max(SHELF, size), MAP_PRIVATE))
        place, self._free = self._free[:size], self._free[size:]
        place[:] = packed
        return place


def pack(records: Sequence[StoreRecord]) -> bytes:
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOW)
    rows = [(r.key, r.value, r.revision, r.created) for r in records]
    return deflate.compress(_pack(rows)) + deflate.flush()


def unpack(bundle: CompressedBlock) -> Iterator[StoreRecord]:
    return (StoreRecord(*row) for row in _unpack(zlib.decompress(bundle, WINDOW)))
