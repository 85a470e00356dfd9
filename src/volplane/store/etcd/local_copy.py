"""What etcd holds under our prefix, kept in memory: the state, its newest events, and who waits for them.

Everything arrives in revision order through one watch, so that a copy at revision N is the state of N. An
event that does not fit the state before it is proof that something was missed; then the copy has to be made
anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from volplane.store.contract import StoreEvent, StoreRecords, WatchOverrun
from volplane.store.etcd.keys import EtcdKeys
from volplane.store.etcd.proto import kv_pb2
from volplane.store.hub import Hub
from volplane.store.revision_waiters import RevisionWaiters
from volplane.store.state import StoreState

WINDOW_EVENTS = 8192
WINDOW_BYTES = 4 << 20

_DELETE = kv_pb2.Event.EventType.DELETE


class CopyDiverged(Exception):
    """An event does not fit: some before it are missing."""


class LocalCopy:
    def __init__(self, keys: EtcdKeys, *, backlog: int) -> None:
        self._keys = keys
        self.state = StoreState(max_events=WINDOW_EVENTS, max_bytes=WINDOW_BYTES)
        self.hub = Hub(backlog=backlog)
        self._waiters = RevisionWaiters()

    @property
    def revision(self) -> int:
        return self.state.revision

    def apply(self, events: Sequence[kv_pb2.Event]) -> None:
        """Whole revisions, in order; those of others count only as revisions. Diverged."""
        known, is_ours = self.revision, self._keys.is_ours
        made = [
            self._apply(event) for event in events if event.kv.mod_revision > known and is_ours(event.kv.key)
        ]
        if made:
            self.hub.publish(made)
            self._waiters.wake(self.revision)
        if events:
            self.advance(events[-1].kv.mod_revision)

    def _apply(self, event: kv_pb2.Event) -> StoreEvent:
        key, kv = self._keys.inner(event.kv.key), event.kv
        before = self.state.peek(key)
        if event.type == _DELETE:
            if before is None:
                raise CopyDiverged(f"{key} was deleted at revision {kv.mod_revision}, but it is not there")
            return self.state.drop(key, kv.mod_revision)
        if kv.create_revision != (before.created if before else kv.mod_revision):
            raise CopyDiverged(f"{key} at revision {kv.mod_revision} was created at {kv.create_revision}")
        return self.state.put(key, kv.value, kv.mod_revision)

    def advance(self, revision: int) -> None:
        """Nothing has happened under our prefix up to this revision."""
        if revision > self.revision:
            self.state.skip(revision)
            self.hub.advance(revision)
            self._waiters.wake(revision)

    def replace(self, records: StoreRecords, *, revision: int, floor: int) -> None:
        """Start over. Watchers cannot be told what happened in between: they must list again."""
        self.hub.fail(WatchOverrun("the store was away for longer than its history reaches"))
        self.state.load(records, revision=revision, floor=floor)
        self.hub.revision = revision
        self._waiters.wake(revision)

    async def wait(self, revision: int) -> None:
        await self._waiters.wait(revision, self.revision)

    def close(self) -> None:
        self.hub.close()
        self._waiters.close()
