"""Records that are many, similar and rarely read (events) are compressed in memory, in blocks of neighbours.

An event of six hundred bytes takes eighty in its block. Reading one record decompresses its block in sixty
microseconds; reading many decompresses each block once. Only memory is compressed: the disk and the readers
have the original bytes. Blocks are stored in arenas outside the heap: they live for an hour, and between
short-lived objects they would fragment the heap. A block is never changed, and an arena is freed as a whole,
when none of its blocks, which are all of the same age, is used any more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from mmap import MAP_PRIVATE, mmap
from typing import TypeAlias

from msgspec import msgpack

from volplane.store.contract import StoreRecord

SORTED_TOGETHER = 256  # records that are sorted before compression: neighbours are similar, and read together
BLOCK_RECORDS = 32  # records per block
ARENA_SIZE = 256 << 10  # bytes per arena
LEVEL, WINDOW = 6, -15  # parameters of deflate; no header

CompressedBlock: TypeAlias = memoryview

_pack = msgpack.Encoder().encode
_unpack = msgpack.Decoder(list[tuple[str, bytes, int, int]]).decode


class RecordArena:
    def __init__(self) -> None:
        self._free = memoryview(b"")  # free space of the newest arena

    def compress(
        self, records: Sequence[StoreRecord]
    ) -> Iterator[tuple[Sequence[StoreRecord], CompressedBlock]]:
        """Compress records. Yields some of them with the block that contains them, until all are done."""
        ordered = sorted(records, key=lambda record: record.key)
        for start in range(0, len(ordered), BLOCK_RECORDS):
            some = ordered[start : start + BLOCK_RECORDS]
            yield some, self._store_block(pack(some))

    def _store_block(self, packed: bytes) -> CompressedBlock:
        size = len(packed)
        if size > len(self._free):
            self._free = memoryview(mmap(-1, max(ARENA_SIZE, size), MAP_PRIVATE))
        place, self._free = self._free[:size], self._free[size:]
        place[:] = packed
        return place


def pack(records: Sequence[StoreRecord]) -> bytes:
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOW)
    rows = [(r.key, r.value, r.revision, r.created) for r in records]
    return deflate.compress(_pack(rows)) + deflate.flush()


def unpack(block: CompressedBlock) -> Iterator[StoreRecord]:
    return (StoreRecord(*row) for row in _unpack(zlib.decompress(block, WINDOW)))
