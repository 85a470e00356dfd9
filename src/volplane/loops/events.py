"""Record events in the background, as client-go does.

`event()` only appends to a bounded queue; one task writes the events a moment later. Repeated events become a
count, many similar ones become one combined event, and a source with too many events about an object is
rate-limited. A repeat patches the event written before; the API server deletes events after an hour, and then
a new one is created.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Generic, TypeVar

from msgspec import Struct

from volplane.api import kinds
from volplane.api.core import Event, EventSource, ObjectReference
from volplane.api.errors import APIError, NotFound, Unavailable
from volplane.api.meta import ObjectMeta, Resource
from volplane.base import clock
from volplane.base.tasks import cancel_and_wait
from volplane.client.client import Client

log = logging.getLogger(__name__)

BACKLOG = 1000  # events waiting to be written; further ones are dropped
BATCH_SIZE = 16  # events written concurrently
MAX_REMEMBERED = 512  # entries per recorder; a repeat of an older event is a new one
SIMILAR, SIMILAR_SECONDS = 10, 600.0  # more similar events than this within that time are combined
BURST, REFILL = 25, 300.0  # rate limit per object and source: events, and seconds until the next one
ROUNDING = 1e-3  # seconds; tolerance for floating-point sums
TRIES, TRY_PAUSE = 12, 10.0  # while the API server is unreachable
FLUSH_TIMEOUT = 2.0  # seconds to write the last events when the role stops
# QUIET_TIME: seconds without a new event before events are written, so that they do not compete with the
# work they are about. While more events come, or the event loop is late by LOOP_LAG seconds, as in a burst of
# work, they keep waiting, at most LONGEST_DELAY seconds.
QUIET_TIME, LOOP_LAG, LONGEST_DELAY = 0.25, 0.01, 2.0
MAX_MESSAGE_LENGTH = 1024
COMBINED = "(combined from similar events): "

V = TypeVar("V")

_serial = count()  # shared by all recorders: two may record about one object in the same microsecond


class RecentEntries(Generic[V]):
    """A dictionary of the newest entries, by the hash of their keys.

    The older half is dropped at once: dropping one entry for each new one takes three times the memory.
    """

    def __init__(self, capacity: int = MAX_REMEMBERED) -> None:
        self._newer: dict[int, V] = {}
        self._older: dict[int, V] = {}
        self._half = capacity // 2

    def get(self, key: tuple[str, ...]) -> V | None:
        found = self._newer.get(hash(key))
        if found is None and (found := self._older.get(hash(key))) is not None:
            self.put(key, found)
        return found

    def put(self, key: tuple[str, ...], value: V) -> V:
        if len(self._newer) >= self._half:
            self._newer, self._older = {}, self._newer
        self._newer[hash(key)] = value
        return value


class PendingEvent(Struct, frozen=True):
    about: ObjectReference
    type: str
    reason: str
    message: str
    component: str
    host: str
    time: str
    action: str = ""

    @property
    def group(self) -> tuple[str, ...]:
        """Equal for events that differ only in their message."""
        about = self.about
        where = (about.kind, about.namespace, about.name, about.uid, about.api_version)
        return (self.component, self.host, *where, self.type, self.reason)

    @property
    def source(self) -> tuple[str, ...]:
        about = self.about
        where = (about.kind, about.namespace, about.name, about.uid, about.api_version)
        return (self.component, self.host, *where)


class SimilarEvents(Struct, gc=False):
    messages: tuple[int, ...]  # their hashes
    since: float


class RecordedEvent(Struct, gc=False):
    name: str
    first: str
    count: int


class Correlator:
    """Decides which pending events are combined, counted or dropped; time is passed in."""

    def __init__(self) -> None:
        self._similar: RecentEntries[SimilarEvents] = RecentEntries()
        self._spent: RecentEntries[float] = RecentEntries()  # the time when the rate limit is full again
        self.known: RecentEntries[RecordedEvent] = RecentEntries()

    def admits(self, note: PendingEvent, now: float) -> bool:
        whole = max(now, self._spent.get(note.source) or now)
        if whole + REFILL - now > BURST * REFILL + ROUNDING:
            return False
        self._spent.put(note.source, whole + REFILL)
        return True

    def combine(self, note: PendingEvent, now: float) -> tuple[tuple[str, ...], str]:
        """The identity under which repeats are counted, and the message to show."""
        similar = self._similar.get(note.group)
        if similar is None or now - similar.since > SIMILAR_SECONDS:
            similar = self._similar.put(note.group, SimilarEvents((), now))
        if (message := hash(note.message)) not in similar.messages:
            similar.messages = (*similar.messages, message)[:SIMILAR]
        similar.since = now
        if len(similar.messages) < SIMILAR:
            return (*note.group, note.message), note.message
        return note.group, COMBINED + note.message


class EventRecorder:
    """`async with EventRecorder(client, "attachdetach-controller") as events: events.event(claim, …)`"""

    def __init__(
        self,
        client: Client,
        component: str = "",
        host: str = "",
        rewrite: Callable[[str], str] = lambda message: message,
    ) -> None:
        """`rewrite` makes each message fit for users."""
        self.client = client
        self.rewrite = rewrite
        self.component = component
        self.host = host
        self._notes: deque[PendingEvent] = deque()
        self._newest = 0.0  # when the last of them was recorded
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()  # flush() is waiting
        self._task: asyncio.Task[None] | None = None
        self._correlator = Correlator()

    def event(
        self,
        obj: Resource | ObjectReference,
        type: str,
        reason: str,
        message: str,
        component: str = "",
        action: str = "",
    ) -> None:
        if len(self._notes) >= BACKLOG:
            log.warning("event dropped, %d events are waiting: %s %s", BACKLOG, reason, message)
            return
        about = obj if isinstance(obj, ObjectReference) else reference(obj)
        message = self.rewrite(message)
        text = message if len(message) <= MAX_MESSAGE_LENGTH else message[: MAX_MESSAGE_LENGTH - 3] + "..."
        note = PendingEvent(
            about, type, reason, text, component or self.component, self.host, clock.stamp(), action
        )
        self._notes.append(note)
        self._newest = clock.now()
        self._idle.clear()
        self._news.set()

    def normal(self, obj: Resource | ObjectReference, reason: str, message: str) -> None:
        self.event(obj, "Normal", reason, message)

    def warning(self, obj: Resource | ObjectReference, reason: str, message: str) -> None:
        self.event(obj, "Warning", reason, message)

    async def flush(self) -> None:
        """Wait until all events so far are written or given up."""
        self._hurry.set()
        await self._idle.wait()

    async def __aenter__(self) -> EventRecorder:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"events of {self.component}")
        return self

    async def __aexit__(self, *_: object) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT):
                await self.flush()
        except TimeoutError:
            log.warning("%d events of %s were not written", len(self._notes), self.component)
        finally:
            await cancel_and_wait(task)

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            await self._wait_for_lull()
            while self._notes:
                wave = self._next_batch()
                await asyncio.gather(*(self._persist(note) for note in wave))
                for _ in wave:
                    self._notes.popleft()
            self._news.clear()
            self._hurry.clear()
            self._idle.set()

    async def _wait_for_lull(self) -> None:
        since, latest = self._newest, clock.now() + LONGEST_DELAY
        while not self._hurry.is_set():
            due = min(since + QUIET_TIME, latest)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._hurry.wait()
            is_late = clock.now() - due >= LOOP_LAG
            if due == latest or not (is_late or self._newest > since):
                return
            since = clock.now() if is_late else self._newest

    def _next_batch(self) -> list[PendingEvent]:
        """The next events of different groups: written concurrently they share the store's commit."""
        wave: list[PendingEvent] = []
        groups = set()
        for note in self._notes:
            if note.group in groups or len(wave) == BATCH_SIZE:
                break
            groups.add(note.group)
            wave.append(note)
        return wave

    async def _persist(self, note: PendingEvent) -> None:
        now = clock.now()
        identity, message = self._correlator.combine(note, now)
        if not self._correlator.admits(note, now):
            return
        for _ in range(TRIES):
            try:
                async with asyncio.timeout(TRY_PAUSE):
                    return await self._write(note, identity, message)
            except (Unavailable, TimeoutError):
                await asyncio.sleep(TRY_PAUSE)
            except APIError as error:  # the server refused it: a retry would not help
                log.debug("event %s about %s refused: %s", note.reason, note.about.name, error)
                return
            except Exception:
                log.exception("event %s about %s not written", note.reason, note.about.name)
                return

    async def _write(self, note: PendingEvent, identity: tuple[str, ...], message: str) -> None:
        namespace = note.about.namespace or "default"
        known = self._correlator.known.get(identity)
        if known is not None:
            patch = {"count": known.count + 1, "lastTimestamp": note.time, "message": message}
            try:
                await self.client.patch(Event, known.name, namespace, strategic=patch)
            except NotFound:
                pass
            else:
                known.count += 1
                return
        count, first = (known.count + 1, known.first) if known else (1, note.time)
        made = Event(
            metadata=ObjectMeta(name=self._fresh_name(note), namespace=namespace),
            involved_object=note.about,
            reason=note.reason,
            message=message,
            source=EventSource(component=note.component, host=note.host),
            first_timestamp=first,
            last_timestamp=note.time,
            count=count,
            type=note.type,
            action=note.action,
            reporting_component=note.component,
            reporting_instance=note.host,
        )
        await self.client.create(made)
        self._correlator.known.put(identity, RecordedEvent(made.name, first, count))

    def _fresh_name(self, note: PendingEvent) -> str:
        nanos = int(clock.wall().timestamp() * 1_000_000) * 1000 + next(_serial) % 1000
        return f"{note.about.name}.{nanos:x}"


def reference(obj: Resource) -> ObjectReference:
    kind = kinds.of(type(obj))
    return ObjectReference(
        kind=kind.kind,
        namespace=obj.namespace,
        name=obj.name,
        uid=obj.uid,
        api_version=kind.api_version,
        resource_version=obj.metadata.resource_version,
    )
