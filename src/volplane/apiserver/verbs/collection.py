"""Deletecollection: list, then delete each item with the same options."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from msgspec import structs

from volplane.api.errors import NotFound
from volplane.api.meta import DeleteOptions
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.delete import check_options, delete
from volplane.apiserver.verbs.list import ListOptions, ListResult, list_records
from volplane.store import StoreRecord

DELETES_AT_ONCE = 64


async def delete_collection(
    backend: Backend, entry: ServedResource, call: ApiCall, list_options: ListOptions, options: DeleteOptions
) -> ListResult:
    """Return the listed items; items that others deleted meanwhile are no error."""
    check_options(options)
    listed = await list_records(backend, entry, call, list_options)
    for page in split_batches(listed.records, DELETES_AT_ONCE):
        # Concurrently, so that the store commits them together.
        deletes = (_delete(backend, entry, call, record, options) for record in page)
        for failed in await asyncio.gather(*deletes, return_exceptions=True):
            if isinstance(failed, BaseException) and not isinstance(failed, NotFound):
                raise failed
    return listed


async def _delete(
    backend: Backend, entry: ServedResource, call: ApiCall, record: StoreRecord, options: DeleteOptions
) -> None:
    namespace, _, name = record.key.removeprefix(entry.prefix).rpartition("/")
    await delete(backend, entry, structs.replace(call, namespace=namespace, name=name), options)


def split_batches(records: list[StoreRecord], size: int) -> Iterator[list[StoreRecord]]:
    return (records[at : at + size] for at in range(0, len(records), size))
