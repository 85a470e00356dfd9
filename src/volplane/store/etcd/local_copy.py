"""A local copy of what etcd has under our prefix: records, newest events, and callers that wait for them.

All events arrive in revision order through one watch, so a copy at revision N is the state of revision N. An
event that does not fit the state before it proves that events were missed; then the copy is read again.
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
    """An event does not fit the copy: events before it are missing."""


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
        """Apply complete revisions in order; events of other prefixes only advance the revision. Raises
        CopyDiverged.
        """
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
                raise CopyDiverged(f"{key} was deleted at revision {kv.mod_revision}, but is missing here")
            return self.state.drop(key, kv.mod_revision)
        if kv.create_revision != (before.created if before else kv.mod_revision):
            raise CopyDiverged(f"{key} at revision {kv.mod_revision} was created at {kv.create_revision}")
        return self.state.put(key, kv.value, kv.mod_revision)

    def advance(self, revision: int) -> None:
        """Note that there are no events of our prefix up to this revision."""
        if revision > self.revision:
            self.state.skip(revision)
            self.hub.advance(revision)
            self._waiters.wake(revision)

    def replace(self, records: StoreRecords, *, revision: int, floor: int) -> None:
        """Start over. Watchers miss the events in between, so they must list again."""
        self.hub.fail(WatchOverrun("disconnected from etcd for longer than its history is kept"))
        self.state.load(records, revision=revision, floor=floor)
        self.hub.revision = revision
        self._waiters.wake(revision)

    async def wait(self, revision: int) -> None:
        await self._waiters.wait(revision, self.revision)

    def close(self) -> None:
        self.hub.close()
        self._waiters.close()
