"""Keep the local copy up to date: one watch over our prefix, reopened whenever it breaks.

A copy that has every event may still be at an old revision, because writes of other etcd clients count, too.
Then callers that wait for a revision make the follower send progress requests. An etcd version whose progress
responses are unreliable is watched as a whole, all keys included: then every revision arrives as an event.
"""

from __future__ import annotations

import asyncio
import logging

import grpc.aio

from volplane.base import clock
from volplane.base.backoff import Backoff, Failures
from volplane.base.tasks import cancel_and_wait
from volplane.store.contract import RevisionCompacted, StoreError
from volplane.store.etcd.freshness import SharedRevisionRead
from volplane.store.etcd.history import EtcdHistory
from volplane.store.etcd.keys import ALL, EtcdKeys
from volplane.store.etcd.local_copy import CopyDiverged, LocalCopy
from volplane.store.etcd.members import EtcdCompacted, EtcdMembers, MemberUnreachable
from volplane.store.etcd.stream import EtcdWatchStream, WatchStreamEnded, has_ordered_progress

log = logging.getLogger(__name__)

HISTORY = (
    1000  # revisions of history that a new copy starts with, so that watches of a restarted server can resume
)
RETRY = Backoff(0.05, 1.0)  # between two attempts to watch
PROGRESS = Backoff(0.005, 0.25)  # between progress requests; an event under way arrives sooner than the first
STALL = 3.0  # seconds without an event that etcd certainly has: the member hangs or is cut off

_TROUBLE = (WatchStreamEnded, MemberUnreachable, TimeoutError, grpc.aio.AioRpcError, StoreError)


class Follower:
    def __init__(
        self, members: EtcdMembers, keys: EtcdKeys, copy: LocalCopy, freshness: SharedRevisionRead
    ) -> None:
        self._members = members
        self._keys = keys
        self._copy = copy
        self._freshness = freshness
        self._history = EtcdHistory(members, keys)
        self._stream: EtcdWatchStream | None = None
        self._opened = False
        self._stale = False
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._nudging: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the copy and wait until it has what etcd has now. Raises StoreFailed."""
        await self._load()
        self._running = asyncio.create_task(self._run(), name="etcd watch")
        await self.wait_for(await self._freshness.revision())

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await cancel_and_wait(self._running, self._nudging)

    async def wait_for(self, revision: int) -> None:
        """Wait until the copy has reached the revision. Raises StoreClosed."""
        if revision <= self._copy.revision:
            return
        self._waiting += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PROGRESS.first, self._check_progress, self._copy.revision)
        try:
            await self._copy.wait(revision)
        finally:
            self._waiting -= 1

    def start_over(self, why: str) -> None:
        """Read the copy again, because it can no longer be trusted."""
        log.error("reading everything from etcd again: %s", why)
        self._stale = True
        if self._stream is not None:
            self._stream.cancel()

    # Watching

    async def _load(self) -> None:
        while True:
            newest, floor = await self._freshness.revision(), await self._history.floor()
            known = min(self._copy.revision, newest)  # readers must not see the state go back
            revision = max(1, floor, newest - HISTORY, known)
            try:
                records = await self._history.snapshot(revision)
            except EtcdCompacted:  # compacted while reading
                continue
            self._copy.replace(records, revision=revision, floor=floor)
            return

    async def _run(self) -> None:
        failures = Failures(RETRY)
        while True:
            self._opened = False
            try:
                if self._stale:
                    await self._load()
                    self._stale = False
                await self._follow()
            except (RevisionCompacted, CopyDiverged) as error:
                log.warning("reading the copy of etcd's state again: %s", error)
                self._stale = True
            except _TROUBLE as error:
                log.warning("the watch on etcd broke at revision %d: %s", self._copy.revision, error)
            except Exception:  # every reader depends on this task: it must not end
                log.exception("reading the copy of etcd's state again")
                self._stale = True
            went_well = self._opened and not self._stale
            if went_well:
                failures.reset()
            await asyncio.sleep(0.0 if went_well else failures.next_delay())

    async def _follow(self) -> None:
        member = self._members.current
        try:
            await self._members.select_member()
            keys = self._keys.everything if has_ordered_progress(member.version) else ALL
            async with EtcdWatchStream(member, keys, self._copy.revision) as stream:
                self._stream, self._opened = stream, True
                while True:
                    batch = await stream.next()
                    self._copy.apply(batch.events)
                    self._copy.advance(batch.progress)
        except _TROUBLE as error:
            if not isinstance(error, RevisionCompacted):
                self._members.switch_member(member, str(error))
            raise
        finally:
            self._stream = None

    # Catching up with revisions of other clients

    def _check_progress(self, before: int) -> None:
        self._timer = None
        if not self._waiting or self._nudging is not None:
            return
        if self._copy.revision > before:  # the copy advances by itself
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PROGRESS.first, self._check_progress, self._copy.revision)
            return
        self._nudging = asyncio.create_task(self._poll_progress(), name="etcd progress")

    async def _poll_progress(self) -> None:
        failures, at, since = Failures(PROGRESS), self._copy.revision, clock.now()
        try:
            while self._waiting:
                behind = await self._request_progress()
                await asyncio.sleep(failures.next_delay())
                if self._copy.revision > at:
                    failures.reset()
                if self._copy.revision > at or not behind:
                    at, since = self._copy.revision, clock.now()
                elif clock.now() - since > STALL and self._stream is not None:
                    self._stream.cancel()
                    since = clock.now()
        finally:
            self._nudging = None

    async def _request_progress(self) -> bool:
        """Whether etcd has newer revisions than the copy; if so, request the progress of the watch."""
        try:
            newest = await self._freshness.revision()
            known, stream = self._copy.revision, self._stream
            if newest <= known:
                return False
            if stream is not None and stream.supports_progress_requests:
                await stream.request_progress()
        except (WatchStreamEnded, StoreError) as error:
            log.debug("cannot request progress from etcd: %s", error)
        return True
