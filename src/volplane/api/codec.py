"""Objects to bytes and back: the wire's JSON, plain data for patches, and the form the store keeps.

The stored form is an object's JSON from inside `{"metadata":{` on, without kind, apiVersion and
resourceVersion: the first two are known from the key and the last one is the revision the store assigns. So
turning a record into an answer is one concatenation, never a decode.
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
    """What the wire has before the stored form."""
    return f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}","metadata":{{'.encode()


_cached_wire_prefix = cache(wire_prefix)


def encode(obj: Object) -> bytes:
    """The wire form; a top-level object carries its kind and apiVersion."""
    body = _encoder.encode(obj)
    kind = kinds._BY_TYPE.get(type(obj)) if isinstance(obj, Resource) else None
    if kind is None:
        return body
    opening = f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}"'.encode()
    return opening + (b"," + body[1:] if len(body) > 2 else b"}")


def decode(of: type[O], data: bytes) -> O:
    """An object from JSON; what the Struct does not know is dropped. Raises msgspec.ValidationError."""
    made: O = _decoder(of).decode(data)
    if isinstance(made, Resource):
        _copy_raw_fields(made.metadata)
    return made


def _copy_raw_fields(metadata: ObjectMeta) -> None:
    """Raw parts are views that keep all of the bytes they came in; a cached object shall not."""
    for entry in metadata.managed_fields:
        structs.force_setattr(entry, "fields_v1", entry.fields_v1.copy())


def to_dict(obj: Object) -> dict[str, Any]:
    """Plain dicts and lists with wire names, kind and apiVersion included: what patches work on."""
    data: dict[str, Any] = msgspec.to_builtins(obj, str_keys=True, enc_hook=decode_raw)
    kind = kinds._BY_TYPE.get(type(obj)) if isinstance(obj, Resource) else None
    return data if kind is None else {"kind": kind.kind, "apiVersion": kind.api_version, **data}


def full_merge_patch(obj: Object) -> dict[str, Any]:
    """A merge patch that makes a piece of an object equal to `obj`: what is not set is told to go."""
    data: dict[str, Any] = msgspec.to_builtins(obj, enc_hook=decode_raw)
    for name, info in schema(type(obj)).items():
        if name not in data:
            data[name] = None
        elif info.shape == "object" and info.type is not None:
            data[name] = full_merge_patch(getattr(obj, info.attribute))
    return data


def decode_raw(part: Any) -> Any:
    """JSON that stayed as it came, as plain data."""
    return msgspec.json.decode(part) if isinstance(part, msgspec.Raw) and bytes(part) else None


def convert(of: type[O], data: Mapping[str, Any]) -> O:
    return msgspec.convert(encode_raw_fields(data), of)


def encode_raw_fields(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Plain data of an object as its Struct wants it: the sets of fields in its metadata stay JSON."""
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
    """What the store keeps of an object."""
    if obj.metadata.resource_version:
        obj = structs.replace(obj, metadata=structs.replace(obj.metadata, resource_version=""))
    body = _encoder.encode(obj)
    if not body.startswith(_OPENING):
        raise ValueError("an object without metadata cannot be stored")
    return body[len(_OPENING) :]


def encode_stored_custom(data: Mapping[str, Any]) -> bytes:
    """The same for a custom resource, which is plain data."""
    metadata = {k: v for k, v in data["metadata"].items() if k != "resourceVersion"}
    rest = {k: v for k, v in data.items() if k not in ("kind", "apiVersion", "metadata")}
    return _encoder.encode({"metadata": metadata, **rest})[len(_OPENING) :]


def stored_to_wire(kind: Kind, stored: bytes, revision: int) -> bytes:
    """A stored object as readers and watchers get it."""
    return b'%b"resourceVersion":"%d",%b' % (_cached_wire_prefix(kind), revision, stored)


def load(of: type[R], stored: bytes, revision: int) -> R:
    made: R = _decoder(of).decode(b'{"metadata":{"resourceVersion":"%d",%b' % (revision, stored))
    _copy_raw_fields(made.metadata)
    return made


def load_custom(kind: Kind, stored: bytes, revision: int) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.json.decode(stored_to_wire(kind, stored, revision))
    return data
