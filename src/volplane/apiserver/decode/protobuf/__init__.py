"""Protobuf bodies, which Go clients send by default, as plain data.

A body is a magic prefix and an envelope with apiVersion, kind and the object. It becomes the dict that JSON
would have given; responses stay JSON. All errors are `InvalidProtobuf`, in the words of Go's decoder.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from volplane.api.object import Object
from volplane.apiserver.decode.protobuf.messages import message
from volplane.apiserver.decode.protobuf.values import members, text
from volplane.apiserver.decode.protobuf.wire import InvalidProtobuf

__all__ = ["MEDIA_TYPE", "Envelope", "InvalidProtobuf", "is_protobuf", "open_body", "read"]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"


class Envelope(Struct, frozen=True):
    api_version: str
    kind: str
    data: bytes


def is_protobuf(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == MEDIA_TYPE


def open_body(body: bytes) -> Envelope:
    """Read the envelope. Raises InvalidProtobuf."""
    if not body:
        raise InvalidProtobuf("empty data")
    if not body.startswith(MAGIC):
        problem = "provided data does not appear to be a protobuf message"
        raise InvalidProtobuf(f"{problem}, expected prefix {_numbers(MAGIC)}")
    if len(body) == len(MAGIC):
        raise InvalidProtobuf("empty body")
    try:
        return _envelope(body)
    except IndexError as error:
        raise InvalidProtobuf("unexpected EOF") from error


def _numbers(data: bytes) -> str:
    return f"[{' '.join(map(str, data))}]"


def _envelope(body: bytes) -> Envelope:
    version = kind = ""
    data = b""
    for tag, start, stop in members(body, len(MAGIC), len(body)):
        if tag == 0x0A:
            for inner, begin, end in members(body, start, stop):
                if inner == 0x0A:
                    version = text(body, begin, end)
                elif inner == 0x12:
                    kind = text(body, begin, end)
        elif tag == 0x12:
            data = body[start:stop]
    return Envelope(version, kind, data)


def read(of: type[Object], data: bytes) -> dict[str, Any]:
    """Read the object in an envelope. Raises InvalidProtobuf."""
    out: dict[str, Any] = {}
    try:
        message(of)(data, 0, len(data), out)
    except IndexError as error:
        raise InvalidProtobuf("unexpected EOF") from error
    except RecursionError as error:
        raise InvalidProtobuf("exceeded max depth") from error
    return out
