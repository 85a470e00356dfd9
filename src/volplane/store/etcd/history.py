"""History read from etcd: snapshots, the compact revision, and events that are no longer in memory."""

from __future__ import annotations

import asyncio

import grpc.aio

from volplane.store.contract import (
    Listing,
    RevisionCompacted,
    StoreEvent,
    StoreEvents,
    StoreFailed,
    StoreRecord,
    StoreRecords,
)
from volplane.store.etcd import requests
from volplane.store.etcd.keys import EtcdKeys, Range
from volplane.store.etcd.members import WAIT_TIMEOUT, EtcdCompacted, EtcdMembers, MemberUnreachable
from volplane.store.etcd.proto import kv_pb2
from volplane.store.etcd.stream import EtcdWatchStream, WatchStreamEnded

PAGE = 1000  # records per response when reading a snapshot

_DELETE = kv_pb2.Event.EventType.DELETE


class EtcdHistory:
    def __init__(self, members: EtcdMembers, keys: EtcdKeys) -> None:
        self._members = members
        self._keys = keys

    async def snapshot(self, revision: int) -> StoreRecords:
        """All records at a revision. Raises EtcdCompacted, EtcdFutureRevision, StoreFailed."""
        records: StoreRecords = []
        start, end = self._keys.everything
        while True:
            request = requests.page((start, end), limit=PAGE, revision=revision)
            answer = await self._members.read("Range", request)
            records += [requests.record(self._keys, kv) for kv in answer.kvs]
            if not answer.more:
                return records
            start = answer.kvs[-1].key + b"\0"

    async def get(self, key: str, revision: int) -> StoreRecord | None:
        """Raises EtcdCompacted, EtcdFutureRevision, StoreFailed."""
        outer = self._keys.outer(key)
        answer = await self._members.read("Range", requests.page((outer, b""), revision=revision))
        return requests.record(self._keys, answer.kvs[0]) if answer.kvs else None

    async def list(self, keys: Range, *, limit: int, revision: int) -> Listing:
        """Raises EtcdCompacted, EtcdFutureRevision, StoreFailed."""
        if keys[0] >= keys[1]:
            return Listing([], revision, 0)
        answer = await self._members.read("Range", requests.page(keys, limit=limit, revision=revision))
        records = [requests.record(self._keys, kv) for kv in answer.kvs]
        return Listing(records, revision, answer.count - len(records))

    async def floor(self) -> int:
        """The oldest revision that can be read. etcd reveals it only to a watch that starts too early."""
        try:
            await self._members.read("Range", requests.page((self._keys.mark, b""), limit=1, revision=1))
        except EtcdCompacted:
            return await self._read_compact_revision()
        return 0

    async def _read_compact_revision(self) -> int:
        try:
            async with asyncio.timeout(WAIT_TIMEOUT), self._watch((self._keys.mark, b""), 1) as stream:
                while True:
                    await stream.next()
        except RevisionCompacted as compacted:
            return compacted.floor
        except _TROUBLE as error:
            raise StoreFailed(f"cannot read etcd's compact revision: {error}") from error

    async def events(self, after: int, upto: int) -> StoreEvents:
        """All events after one revision, up to another. Raises RevisionCompacted, StoreFailed.

        There must be an event of ours after the last one, because only that shows the end.
        """
        events: StoreEvents = []
        try:
            async with asyncio.timeout(WAIT_TIMEOUT), self._watch(self._keys.everything, after) as stream:
                while True:
                    for event in (await stream.next()).events:
                        if event.kv.mod_revision > upto:
                            return events
                        events.append(self._event(event))
        except _TROUBLE as error:
            raise StoreFailed(f"cannot read etcd's history: {error}") from error

    def _watch(self, keys: Range, known: int) -> EtcdWatchStream:
        return EtcdWatchStream(self._members.current, keys, known, previous=True)

    def _event(self, event: kv_pb2.Event) -> StoreEvent:
        kv = event.kv
        previous = requests.record(self._keys, event.prev_kv) if event.HasField("prev_kv") else None
        if previous is None and (event.type == _DELETE or kv.version > 1):
            raise RevisionCompacted(
                kv.mod_revision
            )  # compacted while reading: the event still exists, the state before it does not
        return StoreEvent(
            kv.mod_revision, None if event.type == _DELETE else requests.record(self._keys, kv), previous
        )


_TROUBLE = (WatchStreamEnded, MemberUnreachable, TimeoutError, grpc.aio.AioRpcError)
