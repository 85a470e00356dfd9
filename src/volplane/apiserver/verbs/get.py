"""Get: return the stored record."""

from __future__ import annotations

from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.resource_versions import wait_for_revision
from volplane.store import StoreRecord


async def get(backend: Backend, entry: ServedResource, call: ApiCall, *, version: str = "") -> StoreRecord:
    """`version`: the resourceVersion of the request; the result is at least that new."""
    if version not in ("", "0"):
        await wait_for_revision(backend.store, version)
    return await backend.require(entry, call)
