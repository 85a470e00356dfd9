"""Records that are many, alike and hardly read, kept small: of each what the examples do not have.

An event of some six hundred bytes becomes a hundred and twenty, and costs five microseconds when it is read.
The examples are the first values that were unlike those before them. Only memory is packed; what is on disk
and what readers get is as it was written.
"""

from __future__ import annotations

import zlib
from struct import Struct

from volplane.store.contract import Record

LEVEL, WINDOW, MEMORY = 6, -13, 3  # of deflate, without its header: small values need no large tables
EXAMPLES = 1 << -WINDOW  # bytes of all examples together: what lies further back is not seen
UNLIKE = 0.25  # a value of which more than this is left becomes an example, too

_HEAD = Struct("<QQH")  # revisions, and how long the examples were


class Packing:
    def __init__(self, prefixes: tuple[str, ...] = ()) -> None:
        self._prefixes = prefixes
        self._examples = b""  # only ever grows: what was packed against its beginning is unpacked with it

    def takes(self, key: str) -> bool:
        return key.startswith(self._prefixes) if self._prefixes else False

    def pack(self, record: Record) -> bytes:
        known, value = self._examples, record.value
        deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOW, MEMORY, zdict=known)
        packed = deflate.compress(value) + deflate.flush()
        if len(packed) > UNLIKE * len(value) and len(known) + len(value) <= EXAMPLES:
            self._examples += value
        return _HEAD.pack(record.revision, record.created, len(known)) + packed

    def unpack(self, key: str, packed: bytes) -> Record:
        revision, created, length = _HEAD.unpack_from(packed)
        inflate = zlib.decompressobj(WINDOW, zdict=self._examples[:length])
        return Record(key, inflate.decompress(packed[_HEAD.size :]), revision, created)
