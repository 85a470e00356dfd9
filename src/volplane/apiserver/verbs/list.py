"""List: the records of a collection at one revision, complete or in pages.

The continue token contains the revision of the first page, so that all pages form one snapshot until that
revision is compacted (410).
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from volplane.api.errors import BadRequest, Expired, Invalid, forbidden, not_supported
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.selectors import EVERYTHING, Selection
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.resource_versions import (
    decode_token,
    encode_token,
    parse_revision,
    too_large_error,
    wait_for_revision,
)
from volplane.store import FutureRevision, RevisionCompacted, StoreRecord

TOO_OLD = "The resourceVersion for the provided list is too old."
TOKEN_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue parameter."
)


class ListOptions(Struct):
    """The options of a list."""

    selection: Selection = EVERYTHING
    limit: int = 0
    token: str = ""
    version: str = ""
    match: str = ""


class ListResult(Struct):
    records: list[StoreRecord]
    revision: int
    token: str = ""
    remaining: int = 0


async def list_records(
    backend: Backend, entry: ServedResource, call: ApiCall, options: ListOptions
) -> ListResult:
    _check(options)
    prefix = entry.selection_prefix(call.namespace, options.selection)
    if options.token:
        token = decode_token(options.token)
        revision, after = token.rv, prefix + token.start
    else:
        revision, after = await _revision(backend, options), ""
    try:
        return await _page(backend, entry, options, prefix, revision, after)
    except RevisionCompacted as error:
        raise Expired(TOKEN_TOO_OLD if options.token else TOO_OLD) from error
    except FutureRevision as error:
        raise too_large_error(revision, backend.store.revision) from error


def _check(options: ListOptions) -> None:
    if options.token and options.version not in ("", "0"):
        raise BadRequest("specifying resource version is not allowed when using continue")
    if not options.match:
        return
    causes = []
    if not options.version:
        detail = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        causes.append(forbidden("resourceVersionMatch", detail))
    if options.token:
        detail = "resourceVersionMatch is forbidden when continue is provided"
        causes.append(forbidden("resourceVersionMatch", detail))
    if options.match not in ("Exact", "NotOlderThan"):
        allowed = ("Exact", "NotOlderThan", "")
        causes.append(not_supported("resourceVersionMatch", options.match, allowed))
    elif options.match == "Exact" and options.version == "0":
        detail = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        causes.append(forbidden("resourceVersionMatch", detail))
    if causes:
        raise Invalid.of("ListOptions", "", causes, group="meta.k8s.io")


async def _revision(backend: Backend, options: ListOptions) -> int:
    """Return the exact revision to read, or 0 for the newest."""
    if options.version in ("", "0"):
        return 0
    if options.match == "Exact" or (options.limit and not options.match):
        return parse_revision(options.version)
    await wait_for_revision(backend.store, options.version)
    return 0


async def _page(
    backend: Backend, entry: ServedResource, options: ListOptions, prefix: str, revision: int, after: str
) -> ListResult:
    if options.selection.selects_all:
        listing = await backend.store.list(prefix, after=after, limit=options.limit, revision=revision)
        last = listing.records[-1].key.removeprefix(prefix) if listing.remaining else ""
        return _page_of(listing.records, listing.revision, last, listing.remaining)
    return await _select_page(backend, entry, options, prefix, revision, after)


async def _select_page(
    backend: Backend, entry: ServedResource, options: ListOptions, prefix: str, revision: int, after: str
) -> ListResult:
    """Read until the page is full. The remaining items are not counted, because that means reading them."""
    chosen: list[StoreRecord] = []
    while True:
        listing = await backend.store.list(
            prefix, after=after, limit=options.selection.objects_per_turn, revision=revision
        )
        for at, record in enumerate(listing.records):
            if not options.selection.matches(entry.selector_reader.read(record.value)):
                continue
            chosen.append(record)
            if len(chosen) == options.limit:
                more = listing.remaining or at + 1 < len(listing.records)
                return _page_of(chosen, listing.revision, record.key.removeprefix(prefix) if more else "")
        if not listing.remaining:
            return _page_of(chosen, listing.revision)
        after, revision = listing.records[-1].key, listing.revision
        await asyncio.sleep(0)


def _page_of(records: list[StoreRecord], revision: int, last: str = "", remaining: int = 0) -> ListResult:
    """`last`: the last key of this page if there is a next page."""
    return ListResult(records, revision, encode_token(revision, last) if last else "", remaining)
