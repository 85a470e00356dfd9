"""Deletecollection: a list, then a delete of each item, with the same options."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from msgspec import structs

from volplane.api.errors import NotFound
from volplane.api.meta import DeleteOptions
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.delete import check_options, delete
from volplane.apiserver.verbs.list import Asked, Listed, list_records
from volplane.store import Record

AT_ONCE = 64


async def delete_collection(
    backend: Backend, entry: Entry, call: Call, asked: Asked, options: DeleteOptions
) -> Listed:
    """Answers the items as they were found; what others removed meanwhile does not count as a failure."""
    check_options(options)
    listed = await list_records(backend, entry, call, asked)
    for page in batched(listed.records, AT_ONCE):
        # Together, so that the store commits them together.
        deletes = (_delete(backend, entry, call, record, options) for record in page)
        for failed in await asyncio.gather(*deletes, return_exceptions=True):
            if isinstance(failed, BaseException) and not isinstance(failed, NotFound):
                raise failed
    return listed


async def _delete(backend: Backend, entry: Entry, call: Call, record: Record, options: DeleteOptions) -> None:
    namespace, _, name = record.key.removeprefix(entry.prefix).rpartition("/")
    await delete(backend, entry, structs.replace(call, namespace=namespace, name=name), options)


def batched(records: list[Record], size: int) -> Iterator[list[Record]]:
    return (records[at : at + size] for at in range(0, len(records), size))
