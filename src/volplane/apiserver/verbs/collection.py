"""Deletecollection: a list, then a delete of each item, with the same options."""

from __future__ import annotations

from msgspec import structs

from volplane.api.errors import NotFound
from volplane.api.meta import DeleteOptions
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.delete import check_options, delete
from volplane.apiserver.verbs.list import Asked, Listed, list_records


async def delete_collection(
    backend: Backend, entry: Entry, call: Call, asked: Asked, options: DeleteOptions
) -> Listed:
    """Answers the items as they were found; what others removed meanwhile does not count as a failure."""
    check_options(options)
    listed = await list_records(backend, entry, call, asked)
    for record in listed.records:
        namespace, _, name = record.key.removeprefix(entry.prefix).rpartition("/")
        try:
            await delete(backend, entry, structs.replace(call, namespace=namespace, name=name), options)
        except NotFound:
            continue
    return listed
