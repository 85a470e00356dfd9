"""Patch: the stored object as plain data, changed, typed again, and written like an update.

A patch is applied anew whenever another writer was faster, so it never fails for that reason, unless it sets
resourceVersion: then it means one state of the object and no other. The subtle thing: what a patch does not
name is not made anew, and stays the same object.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from volplane.api import codec
from volplane.api.errors import Invalid
from volplane.apiserver import decode, effort
from volplane.apiserver.backend import Backend, Written
from volplane.apiserver.patch import Reading, read_patch
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.create import placed
from volplane.apiserver.verbs.update import check_name, modify
from volplane.store import Record


async def patch(
    backend: Backend,
    entry: Entry,
    call: Call,
    content_type: str,
    body: bytes,
    *,
    validation: str = "Warn",
) -> Written:
    warnings: list[str] = []
    reading: Reading | None = None

    async def changed(old: Any, record: Record) -> Any:
        nonlocal reading
        size = len(body) + len(record.value)
        if reading is None:
            reading = await effort.run(len(body), [], read_patch, entry.kind, content_type, body)
        # Who does not name the owners of fields leaves them as they are.
        owners = b"managedFields" in body
        obj, warnings[:] = await effort.run(
            size, [], _patched, entry, old, record, reading, validation, owners
        )
        meta = entry.shape.metadata(obj)
        check_name(call, meta)
        placed(entry, call, meta.namespace)
        return obj

    written = await modify(backend, entry, call, changed)
    call.warnings.extend(warnings)
    return written


def _patched(
    entry: Entry, old: Any, record: Record, reading: Reading, validation: str, owners: bool
) -> tuple[Any, list[str]]:
    return _in_parts(entry, old, reading, validation, owners=owners) or _whole(
        entry, plain(entry, old, record, owners=owners), reading, validation
    )


def _whole(entry: Entry, current: dict[str, Any], reading: Reading, validation: str) -> tuple[Any, list[str]]:
    result = reading.applied_to(current)
    return decode.canonical(entry.kind, result, validation, findings=list(reading.findings))


def _in_parts(
    entry: Entry, old: Any, reading: Reading, validation: str, *, owners: bool
) -> tuple[Any, list[str]] | None:
    """Only the members that the patch names become plain data and are typed again; the others stay the very
    objects that they are, and whoever sees that needs no second look at them.

    None where that cannot be told, and where the patch is refused: refusals show the whole object.
    """
    members = reading.members
    if members is None or entry.kind.type is None:
        return None
    base = old if owners else without_owners(entry, old)
    guards = _guards(members.get("metadata"))
    attributes = entry.shape.attributes
    touched = [attributes[name] for name in members if name in attributes]
    if guards is not None:
        touched.remove("metadata")
    part = entry.kind.type(**{name: getattr(base, name) for name in touched})
    try:
        made, warnings = _whole(entry, codec.builtins(part), reading, validation)
    except Invalid:
        return None
    new = {name: getattr(made, name) for name in touched}
    if guards is not None:
        new["metadata"] = structs.replace(base.metadata, **guards)
    return structs.replace(base, **new), warnings


_GUARDS = {"uid": "uid", "resourceVersion": "resource_version"}


def _guards(metadata: Any) -> dict[str, str] | None:
    """The preconditions, if a patch has nothing else to say about metadata."""
    if type(metadata) is not dict or not metadata.keys() <= _GUARDS.keys():
        return None
    guards = {_GUARDS[name]: value for name, value in metadata.items() if type(value) is str}
    return guards if len(guards) == len(metadata) else None


def plain(entry: Entry, obj: Any, record: Record, *, owners: bool = False) -> dict[str, Any]:
    """A stored object as plain data; of a built-in kind it is made from the Struct that is there already."""
    if entry.kind.type is not None:
        return codec.builtins(obj if owners else without_owners(entry, obj))
    data: dict[str, Any] = msgspec.json.decode(entry.shape.wire(record.value, record.revision))
    if not owners:
        data["metadata"].pop("managedFields", None)
    return data


def without_owners(entry: Entry, obj: Any) -> Any:
    meta = entry.shape.metadata(obj)
    if not meta.managed_fields:
        return obj
    return entry.shape.with_metadata(obj, structs.replace(meta, managed_fields=()))
