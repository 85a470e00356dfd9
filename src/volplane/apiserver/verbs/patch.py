"""Patch: the stored object as plain data, changed, typed again, and written like an update.

A patch is applied anew whenever another writer was faster, so it never fails for that reason, unless it sets
resourceVersion: then it means one state of the object and no other.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from volplane.api import codec
from volplane.apiserver import decode
from volplane.apiserver import patch as patches
from volplane.apiserver.backend import Backend, Written
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

    async def changed(old: Any, record: Record) -> Any:
        # Who does not name the owners of fields leaves them as they are.
        current = plain(entry, old, record, owners=b"managedFields" in body)
        found: list[str] = []
        result = patches.apply_patch(entry.kind, content_type, current, body, findings=found)
        obj, warnings[:] = decode.canonical(entry.kind, result, validation, findings=found)
        meta = entry.shape.metadata(obj)
        check_name(call, meta)
        placed(entry, call, meta.namespace)
        return obj

    written = await modify(backend, entry, call, changed)
    call.warnings.extend(warnings)
    return written


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
