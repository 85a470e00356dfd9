"""Patch: convert the stored object to plain data, patch it, convert it back, and write it like an update.

A patch is applied again whenever another writer was faster, so it fails with a conflict only if it sets
resourceVersion. Members that the patch does not name are not converted and stay the same objects.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from volplane.api import codec
from volplane.api.errors import Invalid
from volplane.apiserver import cpu_offload, decode
from volplane.apiserver.backend import Backend, WriteResult
from volplane.apiserver.patch import ParsedPatch, read_patch
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.create import resolve_namespace
from volplane.apiserver.verbs.update import check_name, modify
from volplane.store import StoreRecord


async def patch(
    backend: Backend,
    entry: ServedResource,
    call: ApiCall,
    content_type: str,
    body: bytes,
    *,
    validation: str = "Warn",
) -> WriteResult:
    warnings: list[str] = []
    reading: ParsedPatch | None = None

    async def patch_stored(old: Any, record: StoreRecord) -> Any:
        nonlocal reading
        size = len(body) + len(record.value)
        if reading is None:
            reading = await cpu_offload.run(len(body), [], read_patch, entry.kind, content_type, body)
        # A patch that does not mention managedFields keeps them.
        owners = b"managedFields" in body
        obj, warnings[:] = await cpu_offload.run(
            size, [], _patch_object, entry, old, record, reading, validation, owners
        )
        meta = entry.access.metadata(obj)
        check_name(call, meta)
        resolve_namespace(entry, call, meta.namespace)
        return obj

    written = await modify(backend, entry, call, patch_stored)
    call.warnings.extend(warnings)
    return written


def _patch_object(
    entry: ServedResource, old: Any, record: StoreRecord, reading: ParsedPatch, validation: str, owners: bool
) -> tuple[Any, list[str]]:
    return _patch_members(entry, old, reading, validation, owners=owners) or _patch_whole(
        entry, to_plain(entry, old, record, owners=owners), reading, validation
    )


def _patch_whole(
    entry: ServedResource, current: dict[str, Any], reading: ParsedPatch, validation: str
) -> tuple[Any, list[str]]:
    result = reading.apply_to(current)
    return decode.convert_patched(entry.kind, result, validation, findings=list(reading.findings))


def _patch_members(
    entry: ServedResource, old: Any, reading: ParsedPatch, validation: str, *, owners: bool
) -> tuple[Any, list[str]] | None:
    """Convert and patch only the members that the patch names; the others stay the same objects, so that
    later comparisons skip them.

    Return None if that is not possible, or if the patch is refused: error messages show the whole object.
    """
    members = reading.members
    if members is None or entry.kind.type is None:
        return None
    base = old if owners else without_owners(entry, old)
    guards = _preconditions(members.get("metadata"))
    attributes = entry.access.attributes
    touched = [attributes[name] for name in members if name in attributes]
    if guards is not None:
        touched.remove("metadata")
    part = entry.kind.type(**{name: getattr(base, name) for name in touched})
    try:
        made, warnings = _patch_whole(entry, codec.to_dict(part), reading, validation)
    except Invalid:
        return None
    new = {name: getattr(made, name) for name in touched}
    if guards is not None:
        new["metadata"] = structs.replace(base.metadata, **guards)
    return structs.replace(base, **new), warnings


_PRECONDITIONS = {"uid": "uid", "resourceVersion": "resource_version"}


def _preconditions(metadata: Any) -> dict[str, str] | None:
    """Return the preconditions (uid, resourceVersion) if the patch changes nothing else in metadata."""
    if type(metadata) is not dict or not metadata.keys() <= _PRECONDITIONS.keys():
        return None
    guards = {_PRECONDITIONS[name]: value for name, value in metadata.items() if type(value) is str}
    return guards if len(guards) == len(metadata) else None


def to_plain(entry: ServedResource, obj: Any, record: StoreRecord, *, owners: bool = False) -> dict[str, Any]:
    """Convert a stored object to plain data; for a built-in kind from the decoded Struct."""
    if entry.kind.type is not None:
        return codec.to_dict(obj if owners else without_owners(entry, obj))
    data: dict[str, Any] = msgspec.json.decode(entry.access.to_wire(record.value, record.revision))
    if not owners:
        data["metadata"].pop("managedFields", None)
    return data


def without_owners(entry: ServedResource, obj: Any) -> Any:
    meta = entry.access.metadata(obj)
    if not meta.managed_fields:
        return obj
    return entry.access.with_metadata(obj, structs.replace(meta, managed_fields=()))
