"""Encode and decode SPDY/3 frames.

Headers are compressed in one context per direction, so they must be sent in the order of encoding.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import islice
from struct import pack, unpack_from
from typing import TypeAlias

from msgspec import Struct

from volplane.web.message import HeaderItems, Headers, header_pairs
from volplane.web.spdy.dictionary import DICTIONARY

VERSION = 0x8003
SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FIN, UNIDIRECTIONAL = 1, 2
PROTOCOL_ERROR, INVALID_STREAM, REFUSED_STREAM, CANCEL = 1, 2, 3, 5  # status codes of RST_STREAM
MAX_CONTROL = 64 * 1024
MAX_HEADERS = 16 * 1024  # uncompressed; kubectl sends about a hundred bytes
MAX_PAIRS = 64  # each value of a header counts


class SpdyError(Exception):
    """The peer violates SPDY/3."""


class SynStream(Struct, frozen=True):
    stream: int
    headers: Headers
    fin: bool = False
    one_way: bool = False


class SynReply(Struct, frozen=True):
    stream: int
    headers: Headers
    fin: bool = False


class Data(Struct, frozen=True):
    stream: int
    data: bytes
    fin: bool = False


class RstStream(Struct, frozen=True):
    stream: int
    status: int


class Ping(Struct, frozen=True):
    id: int


class GoAway(Struct, frozen=True):
    last: int


Frame: TypeAlias = SynStream | SynReply | Data | RstStream | Ping | GoAway


class Encoder:
    def __init__(self) -> None:
        self._zlib = zlib.compressobj(zdict=DICTIONARY)

    def open(self, stream: int, headers: HeaderItems, *, fin: bool = False) -> bytes:
        payload = pack("!IIBB", stream, 0, 0, 0) + self._pack(headers)
        return _control(SYN_STREAM, payload, FIN if fin else 0)

    def reply(self, stream: int, headers: HeaderItems = ()) -> bytes:
        return _control(SYN_REPLY, pack("!I", stream) + self._pack(headers))

    def _pack(self, headers: HeaderItems) -> bytes:
        texts: dict[bytes, bytes] = {}
        for name, value in header_pairs(headers):
            key, text = name.lower().encode("latin-1"), value.encode("latin-1")
            texts[key] = texts[key] + b"\0" + text if key in texts else text
        block = pack("!I", len(texts))
        for key, text in texts.items():
            block += pack("!I", len(key)) + key + pack("!I", len(text)) + text
        return self._zlib.compress(block) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


def data(stream: int, content: bytes, *, fin: bool = False) -> bytes:
    return pack("!II", stream, (FIN if fin else 0) << 24 | len(content)) + content


def reset(stream: int, status: int) -> bytes:
    return _control(RST_STREAM, pack("!II", stream, status))


def ping(id: int) -> bytes:
    return _control(PING, pack("!I", id))


def goaway(last: int) -> bytes:
    return _control(GOAWAY, pack("!II", last, 0))


def _control(kind: int, payload: bytes, flags: int = 0) -> bytes:
    return pack("!HHI", VERSION, kind, flags << 24 | len(payload)) + payload


class Decoder:
    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)
        self._buffer = bytearray()
        self._rest = 0  # bytes of a data frame still to come
        self._stream = 0  # the stream they belong to
        self._fin = False

    def feed(self, received: bytes) -> Iterator[Frame]:
        """The complete frames so far; data frames also in parts, so that 16 MiB need not be buffered. Raises
        SpdyError.
        """
        self._buffer += received
        while True:
            if self._rest:
                if not self._buffer:
                    return
                part = bytes(self._buffer[: self._rest])
                del self._buffer[: self._rest]
                self._rest -= len(part)
                yield Data(self._stream, part, self._fin and not self._rest)
                continue
            if len(self._buffer) < 8:
                return
            word, rest = unpack_from("!II", self._buffer)
            flags, length = rest >> 24, rest & 0xFFFFFF
            is_control = bool(word >> 31)
            if not is_control:
                del self._buffer[:8]
                self._stream, self._rest, self._fin = word, length, bool(flags & FIN)
                if not length:
                    yield Data(word, b"", self._fin)
                continue
            if length > MAX_CONTROL:
                raise SpdyError("control frame too large")
            if len(self._buffer) < 8 + length:
                return
            payload = bytes(self._buffer[8 : 8 + length])
            del self._buffer[: 8 + length]
            if word >> 16 != VERSION:
                raise SpdyError(f"SPDY version {word >> 16 & 0x7FFF} is not supported")
            elif (frame := self._control(word & 0xFFFF, flags, payload)) is not None:
                yield frame

    def _control(self, kind: int, flags: int, payload: bytes) -> Frame | None:
        minimum = {SYN_STREAM: 10, SYN_REPLY: 4, RST_STREAM: 8, PING: 4, GOAWAY: 4, HEADERS: 4}.get(kind, 0)
        if len(payload) < minimum:
            raise SpdyError(f"frame of type {kind} too short")
        first = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        match kind:
            case 1:  # SYN_STREAM
                headers = self._unpack(payload[10:])
                return SynStream(first, headers, bool(flags & FIN), bool(flags & UNIDIRECTIONAL))
            case 2:  # SYN_REPLY
                return SynReply(first, self._unpack(payload[4:]), bool(flags & FIN))
            case 3:  # RST_STREAM
                return RstStream(first, unpack_from("!I", payload, 4)[0])
            case 6:  # PING
                return Ping(int.from_bytes(payload[:4], "big"))
            case 7:  # GOAWAY
                return GoAway(first)
            case 8:  # HEADERS: unused, but the compression context needs them
                self._unpack(payload[4:])
        return None  # SETTINGS, WINDOW_UPDATE and unknown frames

    def _unpack(self, packed: bytes) -> Headers:
        try:
            block = self._zlib.decompress(packed, MAX_HEADERS + 1)
        except zlib.error as error:
            raise SpdyError(f"headers: {error}") from None
        if self._zlib.unconsumed_tail or len(block) > MAX_HEADERS:
            raise SpdyError("headers too large")
        found = list(islice(_pairs(block), MAX_PAIRS + 1))
        if len(found) > MAX_PAIRS:
            raise SpdyError("too many headers")
        return Headers(found)


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    texts = _texts(block)
    for name in texts:
        for value in next(texts, b"").split(b"\0"):
            yield name, value


def _texts(block: bytes) -> Iterator[bytes]:
    """Names and values, alternating."""
    if len(block) < 4:
        raise SpdyError("headers cut off")
    at = 4
    for _ in range(2 * unpack_from("!I", block)[0]):
        if len(block) < at + 4:
            raise SpdyError("headers cut off")
        end = at + 4 + unpack_from("!I", block, at)[0]
        if len(block) < end:
            raise SpdyError("headers cut off")
        yield block[at + 4 : end]
        at = end
