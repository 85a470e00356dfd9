"""Encode and decode objects: JSON for the wire, plain data for patches, and the stored form.

The stored form is an object's JSON from inside `{"metadata":{` on, without kind, apiVersion and
resourceVersion: the first two follow from the key, the last is the revision that the store assigns. So a
stored object becomes a response by one concatenation, without decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from volplane.api import kinds
from volplane.api.kinds import Kind
from volplane.api.meta import ObjectMeta, Resource
from volplane.api.object import Object, schema

O = TypeVar("O", bound=Object)  # noqa: E741
R = TypeVar("R", bound=Resource)

_encoder = msgspec.json.Encoder()
_OPENING = b'{"metadata":{'


@cache
def _decoder(of: type[O]) -> msgspec.json.Decoder[O]:
    return msgspec.json.Decoder(of)


def wire_prefix(kind: Kind) -> bytes:
    """The beginning of the wire form, before the stored form."""
    return f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}","metadata":{{'.encode()


_cached_wire_prefix = cache(wire_prefix)


def encode(obj: Object) -> bytes:
    """The wire form; a top-level object carries its kind and apiVersion."""
    body = _encoder.encode(obj)
    kind = kinds.find(type(obj))
    if kind is None:
        return body
    opening = f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}"'.encode()
    return opening + (b"," + body[1:] if len(body) > 2 else b"}")


def decode(of: type[O], data: bytes) -> O:
    """Decode JSON; unknown fields are dropped. Raises msgspec.ValidationError."""
    made: O = _decoder(of).decode(data)
    if isinstance(made, Resource):
        _copy_raw_fields(made.metadata)
    return made


def _copy_raw_fields(metadata: ObjectMeta) -> None:
    """Copy Raw fields: as views they would keep the whole body in memory."""
    for entry in metadata.managed_fields:
        structs.force_setattr(entry, "fields_v1", entry.fields_v1.copy())


def to_dict(obj: Object) -> dict[str, Any]:
    """Convert to dicts and lists with wire names, kind and apiVersion included, as patches need it."""
    data: dict[str, Any] = msgspec.to_builtins(obj, str_keys=True, enc_hook=decode_raw)
    kind = kinds.find(type(obj))
    return data if kind is None else {"kind": kind.kind, "apiVersion": kind.api_version, **data}


def full_merge_patch(obj: Object) -> dict[str, Any]:
    """A merge patch that makes a part of an object equal to `obj`: fields that are not set become null."""
    data: dict[str, Any] = msgspec.to_builtins(obj, enc_hook=decode_raw)
    for name, info in schema(type(obj)).items():
        if name not in data:
            data[name] = None
        elif info.shape == "object" and info.type is not None:
            data[name] = full_merge_patch(getattr(obj, info.attribute))
    return data


def decode_raw(part: Any) -> Any:
    """Decode a Raw field to plain data."""
    return msgspec.json.decode(part) if isinstance(part, msgspec.Raw) and bytes(part) else None


def convert(of: type[O], data: Mapping[str, Any]) -> O:
    return msgspec.convert(encode_raw_fields(data), of)


def encode_raw_fields(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Encode `fieldsV1` in plain data as Raw JSON, as the Struct has it."""
    metadata = data.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("managedFields"):
        return data
    return {**data, "metadata": encode_raw_metadata(metadata)}


def encode_raw_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    entries = [
        {**e, "fieldsV1": msgspec.Raw(_encoder.encode(e["fieldsV1"]))} if "fieldsV1" in e else e
        for e in metadata.get("managedFields") or ()
    ]
    return {**metadata, "managedFields": entries} if entries else metadata


def encode_stored(obj: Resource) -> bytes:
    """Encode the stored form."""
    if obj.metadata.resource_version:
        obj = structs.replace(obj, metadata=structs.replace(obj.metadata, resource_version=""))
    body = _encoder.encode(obj)
    if not body.startswith(_OPENING):
        raise ValueError("an object without metadata cannot be stored")
    return body[len(_OPENING) :]


def encode_stored_custom(data: Mapping[str, Any]) -> bytes:
    """Encode the stored form of a custom resource, which is plain data."""
    metadata = {k: v for k, v in data["metadata"].items() if k != "resourceVersion"}
    rest = {k: v for k, v in data.items() if k not in ("kind", "apiVersion", "metadata")}
    return _encoder.encode({"metadata": metadata, **rest})[len(_OPENING) :]


def stored_to_wire(kind: Kind, stored: bytes, revision: int) -> bytes:
    """The wire form of a stored object."""
    return b'%b"resourceVersion":"%d",%b' % (_cached_wire_prefix(kind), revision, stored)


def load(of: type[R], stored: bytes, revision: int) -> R:
    made: R = _decoder(of).decode(b'{"metadata":{"resourceVersion":"%d",%b' % (revision, stored))
    _copy_raw_fields(made.metadata)
    return made


def load_custom(kind: Kind, stored: bytes, revision: int) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.json.decode(stored_to_wire(kind, stored, revision))
    return data
