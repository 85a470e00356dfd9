"""Records that are many, alike and hardly read, kept small: neighbours are packed together, in bundles.

An event of some six hundred bytes takes eighty in its bundle; whoever reads one record opens the bundle, in
sixty microseconds, and whoever reads many opens each once. Only memory is packed; what is on disk and what
readers get is as it was written. The subtle thing: a bundle is never changed, so a record that was written
again or deleted leaves it only when all have. They are of one age, and go at the same time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from msgspec import msgpack

from volplane.store.contract import Record

WAITING = 256  # records that are sorted together: neighbours are alike, and are asked for together
BUNDLE = 32  # records
LEVEL, WINDOW = 6, -15  # of deflate, without its header

_pack = msgpack.Encoder().encode
_unpack = msgpack.Decoder(list[tuple[str, bytes, int, int]]).decode


def bundles(records: Sequence[Record]) -> Iterator[tuple[Sequence[Record], bytes]]:
    """Some of the records and the bundle that they are in, until all are in one."""
    ordered = sorted(records, key=lambda record: record.key)
    for start in range(0, len(ordered), BUNDLE):
        some = ordered[start : start + BUNDLE]
        yield some, pack(some)


def pack(records: Sequence[Record]) -> bytes:
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOW)
    rows = [(r.key, r.value, r.revision, r.created) for r in records]
    return deflate.compress(_pack(rows)) + deflate.flush()


def unpack(bundle: bytes) -> Iterator[Record]:
    return (Record(*row) for row in _unpack(zlib.decompress(bundle, WINDOW)))
