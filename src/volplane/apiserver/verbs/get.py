"""Get: the stored record, as it is."""

from __future__ import annotations

from volplane.api.errors import NotFound
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.versions import not_older_than
from volplane.store import Record


async def get(backend: Backend, entry: Entry, call: Call, *, version: str = "") -> Record:
    """`version` is the request's resourceVersion: the answer is at least as new."""
    if version not in ("", "0"):
        await not_older_than(backend.store, version)
    record = await backend.record(entry, call.namespace, call.name)
    if record is None:
        raise NotFound.of(entry.kind, call.name)
    return record
