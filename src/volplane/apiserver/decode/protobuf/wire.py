"""Protobuf's wire format: varints, lengths, and skipping unknown fields.

Positions refer to the whole body, so lengths are checked against the end of their message. Reading past the
end of the body is an IndexError, which the caller turns into `InvalidProtobuf`.
"""

from __future__ import annotations

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)
SIGN = 1 << 63
MASK = (1 << 64) - 1


class InvalidProtobuf(ValueError):
    """The bytes are not a message of the expected type."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and the position after it."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & MASK, at + 1
        shift += 7
        if shift >= 70:
            raise InvalidProtobuf("proto: integer overflow")


def to_signed(value: int) -> int:
    """Negative numbers have all 64 bits on the wire, whatever their type."""
    return value - (MASK + 1) if value >= SIGN else value


def span(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Start and end of a length-delimited value."""
    size, at = varint(data, at)
    if size >= SIGN:
        raise InvalidProtobuf("proto: negative length found during unmarshaling")
    if at + size > end:
        raise InvalidProtobuf("unexpected EOF")
    return at, at + size


def skip(data: bytes, at: int, end: int, tag: int) -> int:
    """Skip the value of a tag that has been read; groups may contain groups."""
    depth = 0
    while True:
        kind = tag & 7
        if kind == VARINT:
            _, at = varint(data, at)
        elif kind == FIXED64:
            at += 8
        elif kind == LENGTH:
            _, at = span(data, at, end)
        elif kind == GROUP:
            depth += 1
        elif kind == END_GROUP:
            if depth == 0:
                raise InvalidProtobuf("proto: unexpected end of group")
            depth -= 1
        elif kind == FIXED32:
            at += 4
        else:
            raise InvalidProtobuf(f"proto: illegal wireType {kind}")
        if at > end:
            raise InvalidProtobuf("unexpected EOF")
        if depth == 0:
            return at
        tag, at = varint(data, at)
