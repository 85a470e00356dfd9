"""The store on etcd v3: etcd stores the records, and a local copy in memory, kept by one watch, serves reads.

Every write is an etcd transaction with preconditions, so any number of stores can share one etcd cluster. A
read of the newest state first asks etcd for its revision (concurrent readers share the request) and answers
from memory once the copy has reached it. So a read never misses a write that was acknowledged before, by any
store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from volplane.base.virtual_time_loop import real_work
from volplane.store.contract import (
    FutureRevision,
    KeyExists,
    KeyMissing,
    Listing,
    RevisionCompacted,
    StaleRevision,
    StoreClosed,
    StoreError,
    StoreEvent,
    StoreEvents,
    StoreFailed,
    StoreRecord,
    StoreRecords,
)
from volplane.store.etcd import requests
from volplane.store.etcd.endpoints import EtcdTls, credentials, parse_endpoint
from volplane.store.etcd.follower import Follower
from volplane.store.etcd.freshness import SharedRevisionRead
from volplane.store.etcd.history import EtcdHistory
from volplane.store.etcd.keys import EtcdKeys
from volplane.store.etcd.local_copy import LocalCopy
from volplane.store.etcd.members import (
    WAIT_TIMEOUT,
    EtcdCompacted,
    EtcdFutureRevision,
    EtcdMember,
    EtcdMembers,
)
from volplane.store.hub import BACKLOG, Watcher

__all__ = ["EtcdStore", "EtcdTls"]

log = logging.getLogger(__name__)

T = TypeVar("T")

CHECK_PATIENCE = 2.0  # seconds, as upstream's --etcd-readycheck-timeout
MARK = b"volplane 1"  # the owner of the prefix, and the format


class EtcdStore:
    """Created by `await EtcdStore.open(urls, prefix=…)`; belongs to the loop that opened it."""

    def __init__(self, members: EtcdMembers, keys: EtcdKeys, backlog: int) -> None:
        self._members = members
        self._keys = keys
        self._copy = LocalCopy(keys, backlog=backlog)
        self._state = self._copy.state
        self._history = EtcdHistory(members, keys)
        self._freshness = SharedRevisionRead(self._ask_revision)
        self._follower = Follower(members, keys, self._copy, self._freshness)
        self._closed = False
        self._writes = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    async def open(
        cls,
        urls: Sequence[str],
        *,
        prefix: str = "/registry",
        root: str = "",
        tls: EtcdTls | None = None,
        backlog: int = BACKLOG,
    ) -> EtcdStore:
        """Open a store. All keys begin with `root`; in etcd they are under `prefix` instead. Raises
        StoreFailed.
        """
        endpoints = [parse_endpoint(url) for url in urls]
        if not endpoints:
            raise StoreFailed("no etcd server is given")
        trust = credentials(tls or EtcdTls()) if any(endpoint.secure for endpoint in endpoints) else None
        members = EtcdMembers([EtcdMember(endpoint, trust) for endpoint in endpoints])
        store = cls(members, EtcdKeys(prefix, root), backlog)
        try:
            with real_work():
                await store._start()
        except BaseException:
            await store.close()
            raise
        return store

    async def _start(self) -> None:
        await self._members.check_cluster()
        await self._claim_prefix()
        try:
            async with asyncio.timeout(2 * WAIT_TIMEOUT):
                await self._follower.start()
        except TimeoutError:
            raise StoreFailed("etcd answers, but its watch sends no events") from None

    async def _claim_prefix(self) -> None:
        """Mark the prefix as ours: two programs under one prefix would destroy each other's data."""
        answer = await self._members.read("Txn", requests.claim(self._keys, MARK))
        if answer.succeeded:
            return
        mark, others = (response.response_range for response in answer.responses)
        if not mark.kvs:
            first = others.kvs[0].key.decode(errors="replace")
            raise StoreFailed(
                f"{self._keys} in etcd has keys of another program, such as {first}; choose another prefix"
            )
        if mark.kvs[0].value != MARK:
            message = mark.kvs[0].value.decode(errors="replace")
            raise StoreFailed(
                f"{self._keys} in etcd is of another format: {message!r}, not {MARK.decode()!r}"
            )

    @property
    def revision(self) -> int:
        return self._state.revision

    @property
    def floor(self) -> int:
        return self._state.floor

    # Reading

    def peek(self, key: str) -> StoreRecord | None:
        return self._state.peek(key)

    def scan(self, prefix: str) -> StoreRecords:
        return self._state.scan(prefix)

    async def get(self, key: str, *, revision: int = 0) -> StoreRecord | None:
        with real_work():
            await self._catch_up(revision)
            if not revision:
                return self._state.peek(key)
            if revision >= self._state.horizon:
                return self._state.at(key, revision)
            return await self._read_history(self._history.get(key, revision))

    async def list(self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0) -> Listing:
        with real_work():
            await self._catch_up(revision)
            if not revision or revision >= self._state.horizon:
                revision = revision or self.revision
                return self._state.page(prefix, after=after, limit=limit, revision=revision)
            keys = self._keys.under(prefix, after)
            return await self._read_history(self._history.list(keys, limit=limit, revision=revision))

    async def _catch_up(self, revision: int) -> None:
        """Wait until the copy has the given revision, or everything acknowledged so far."""
        self._check()
        if 0 < revision < self.floor:
            raise RevisionCompacted(self.floor)
        if 0 < revision <= self.revision:
            return
        newest = await self._newest()
        if revision > newest:
            raise FutureRevision(newest)
        await self._wait_for_revision(revision or newest)

    async def _newest(self) -> int:
        before = self.revision
        newest = await self._freshness.revision()
        if newest < before:
            why = f"its revision went back from {before} to {newest}; was it restored from a backup?"
            self._follower.start_over(why)
            raise StoreFailed(f"etcd: {why}")
        return newest

    async def _wait_for_revision(self, revision: int) -> None:
        if revision <= self.revision:
            return
        try:
            async with asyncio.timeout(WAIT_TIMEOUT):
                await self._follower.wait_for(revision)
        except TimeoutError:
            message = f"etcd is at revision {revision}, but its watch has come only to {self.revision}"
            raise StoreFailed(message) from None

    async def _ask_revision(self) -> int:
        answer = await self._members.read("Range", requests.newest(self._keys))
        revision: int = answer.header.revision
        return revision

    async def _read_history(self, reading: Awaitable[T]) -> T:
        try:
            return await reading
        except EtcdCompacted as error:
            raise RevisionCompacted(await self._learn_floor()) from error
        except EtcdFutureRevision as error:
            raise FutureRevision(self.revision) from error

    async def _learn_floor(self) -> int:
        """Read the compact revision after another client of etcd has compacted."""
        floor = await self._history.floor()
        if floor > self.floor:
            self._state.compact(floor)
        return self.floor

    # Watching

    def watch(self, prefix: str, *, revision: int) -> Watcher:
        return self._copy.hub.watch(prefix, revision, self._past)

    async def wait_for(self, revision: int) -> None:
        await self._follower.wait_for(revision)

    async def _past(self, prefix: str, after: int, upto: int) -> StoreEvents:
        if after < self.floor:
            raise RevisionCompacted(self.floor)
        horizon = self._state.horizon
        recent = self._state.since(prefix, max(after, horizon))
        if after >= horizon:
            return recent
        if not self._state.since("", horizon):
            # The end of the history is recognized by the first event after it, and there is none.
            raise RevisionCompacted(horizon)
        with real_work():
            past = await self._history.events(after, horizon)
        return [event for event in past if event.key.startswith(prefix)] + recent

    # Writing

    async def create(self, key: str, value: bytes) -> int:
        answer = await self._write(requests.create(self._keys.outer(key), value))
        if not answer.succeeded:
            raise KeyExists(key)
        return self._revision(answer)

    async def update(self, key: str, value: bytes, *, revision: int) -> int:
        answer = await self._write(requests.update(self._keys.outer(key), value, revision))
        if not answer.succeeded:
            raise self._refusal(key, answer)
        return self._revision(answer)

    async def delete(self, key: str, *, revision: int = 0) -> StoreEvent:
        answer = await self._write(requests.delete(self._keys.outer(key), revision))
        if not answer.succeeded:
            raise self._refusal(key, answer)
        gone = answer.responses[0].response_delete_range.prev_kvs[0]
        return StoreEvent(self._revision(answer), None, requests.record(self._keys, gone))

    async def _write(self, request: Message) -> Any:
        """Write, and wait until local readers see the result. Raises StoreFailed, WriteUncertain."""
        self._check()
        self._writes += 1
        self._idle.clear()
        try:
            with real_work():
                answer = await self._members.write("Txn", request)
                if answer.succeeded:
                    await self._wait_until_visible(answer.header.revision)
                return answer
        finally:
            self._writes -= 1
            if not self._writes:
                self._idle.set()

    async def _wait_until_visible(self, revision: int) -> None:
        try:
            await self._wait_for_revision(revision)
        except StoreFailed as error:
            log.warning("a write is stored, but not visible here yet: %s", error)

    def _revision(self, answer: Any) -> int:
        revision: int = answer.header.revision
        return revision

    def _refusal(self, key: str, answer: Any) -> StoreError:
        found = answer.responses[0].response_range.kvs
        return StaleRevision(requests.record(self._keys, found[0])) if found else KeyMissing(key)

    # Maintenance

    async def check(self) -> None:
        self._check()
        try:
            with real_work():
                async with asyncio.timeout(CHECK_PATIENCE):
                    await self._freshness.revision()  # concurrent checks share the request
        except TimeoutError:
            raise StoreFailed(f"etcd does not answer within {CHECK_PATIENCE:g} s") from None

    async def compact(self, revision: int) -> None:
        self._check()
        if revision > self.revision:
            raise FutureRevision(self.revision)
        if revision <= self.floor:
            return
        with real_work():
            try:
                await self._members.read("Compact", requests.compact(revision))
            except EtcdCompacted:
                await self._learn_floor()  # another client has compacted already
            else:
                self._state.compact(revision)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with real_work():
            await self._idle.wait()  # writes in progress first
            self._copy.close()
            await self._follower.close()
            await self._freshness.close()
            await self._members.close()

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
