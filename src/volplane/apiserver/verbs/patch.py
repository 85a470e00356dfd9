"""Patch: the stored object as plain data, changed, typed again, and written like an update.

A patch is applied anew whenever another writer was faster, so it never fails for that reason, unless it sets
resourceVersion: then it means one state of the object and no other.
"""

from __future__ import annotations

from typing import Any

import msgspec

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
        current = msgspec.json.decode(entry.shape.wire(record.value, record.revision))
        if b"managedFields" not in body:
            current["metadata"].pop("managedFields", None)  # who does not name them leaves them as they are
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
