"""`volplane journey --follow`: the steps of an object as they happen, until its volume is deleted.

The files of recorded steps are followed with inotify on Linux; the objects of any other cluster with watches.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

from volplane.api.core import Event, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.errors import NotFound
from volplane.api.meta import Resource
from volplane.api.storage import VolumeAttachment
from volplane.base.tasks import background
from volplane.cli.client_factory import open_transport
from volplane.cli.cluster_reader import WAIT_TIMEOUT, ClusterChoice, readable_errors
from volplane.client.client import Client
from volplane.client.live_caches import FrozenCaches, LiveCaches
from volplane.explain.cluster_state import ClusterState
from volplane.explain.journey.collect import RecordedJourneys, derive_journeys
from volplane.explain.journey.ending import is_over
from volplane.explain.journey.model import Journey, JourneyStep, StepOutcome
from volplane.explain.journey.render_text import step_table
from volplane.explain.resolve import ExplainTarget
from volplane.explain.state_table import list_unknown

COALESCE = 0.03  # seconds: steps that are stored together are printed together
RECORDED_WITHIN = 2.0  # seconds from the creation of an object until its first step is on disk, or none is
POLL = 0.5  # seconds between two looks at files whose changes the system does not announce
FOLLOWED: Sequence[type[Resource]] = (PersistentVolumeClaim, PersistentVolume, VolumeAttachment, Pod, Event)

Select = Callable[[Journey], Sequence[JourneyStep]]
Write = Callable[[str], None]


class StepPrinter:
    """Prints each step once, when it has ended."""

    def __init__(self, select: Select, write: Write, width: int) -> None:
        self._select, self._write, self._width = select, write, width
        self._printed: set[object] = set()
        self._unknown: set[str] = set()

    def print_new(self, journeys: Sequence[Journey]) -> None:
        for journey in journeys:
            for line in self._render(journey):
                self._write(line)

    def _render(self, journey: Journey) -> Iterator[str]:
        new = [step for step in self._select(journey) if _has_ended(step) and _key(step) not in self._printed]
        if new:
            head = 1 if self._printed else 0  # the names of the columns stand above the first step only
            self._printed |= set(map(_key, new))
            yield from list(step_table(new, journey.began, self._width))[head:]
        unknown = [line for line in journey.unknown if line not in self._unknown]
        self._unknown |= set(unknown)
        yield from list_unknown(unknown, self._width)


def _has_ended(step: JourneyStep) -> bool:
    """What objects and events show has happened; only its duration is not known."""
    return step.outcome is not StepOutcome.IN_PROGRESS


def _key(step: JourneyStep) -> object:
    return step.id or (step.at, step.component, step.what, step.subject, step.attempt)


async def follow_recorded(recorded: RecordedJourneys, target: ExplainTarget, printer: StepPrinter) -> None:
    """Print the steps that the roles record."""
    with ExitStack() as stack:
        wait_for_change = _watch(recorded.directory, stack)
        while True:
            recorded.update()
            journeys = recorded.find(target.text)
            printer.print_new(journeys)
            if journeys and all(map(is_over, journeys)):
                return
            await wait_for_change()
            await asyncio.sleep(COALESCE)


async def wait_for_recorded_steps(
    recorded: RecordedJourneys, cluster: ClusterChoice, target: ExplainTarget, note: Write
) -> bool:
    """Whether steps of the object are recorded. One that does not exist yet is waited for: `note` gets a line
    that says so. Raises CommandError.
    """
    recorded.update()
    if recorded.find(target.text):
        return True
    changed = asyncio.Event()
    async with _open_client(cluster, target) as (client, _):
        with readable_errors():
            async with asyncio.timeout(WAIT_TIMEOUT):
                await _exists(client, target)  # fails if this kind may not be read
                await client.cache(target.type).wait_synced()
        cache = client.cache(target.type)
        cache.subscribe(lambda old, new: changed.set())
        if cache.get(target.name, target.namespace) is None:
            note(_waiting_for(target))
        async with background(_set_on_change(recorded.directory, changed)):
            return await _have_recorded(
                recorded, target, changed, lambda: cache.get(target.name, target.namespace) is not None
            )


async def _have_recorded(
    recorded: RecordedJourneys, target: ExplainTarget, changed: asyncio.Event, exists: Callable[[], bool]
) -> bool:
    loop = asyncio.get_running_loop()
    deadline: float | None = None
    while True:
        changed.clear()
        recorded.update()
        if recorded.find(target.text):
            return True
        if not exists():
            deadline = None
        elif deadline is None:
            deadline = loop.time() + RECORDED_WITHIN
        elif loop.time() >= deadline:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await changed.wait()


async def _set_on_change(directory: Path, changed: asyncio.Event) -> None:
    with ExitStack() as stack:
        wait_for_change = _watch(directory, stack)
        while True:
            changed.set()  # also what was written before the watch began
            await wait_for_change()


def _waiting_for(target: ExplainTarget) -> str:
    return f"{target.text} does not exist yet: waiting for it"


def _watch(directory: Path, stack: ExitStack) -> Callable[[], Awaitable[object]]:
    """What waits for the next change; a pause if this is not Linux, or this user has too many watches."""
    if sys.platform == "linux":
        from volplane.host.inotify import CREATE, MODIFY, Inotify

        with suppress(OSError):
            files = stack.enter_context(closing(Inotify()))
            files.add(str(directory), MODIFY | CREATE)
            return files.read
    return lambda: asyncio.sleep(POLL)


@asynccontextmanager
async def _open_client(
    cluster: ClusterChoice, target: ExplainTarget
) -> AsyncIterator[tuple[Client, LiveCaches]]:
    transport = open_transport(cluster.files, "volplane-journey", cluster.context)
    caches = LiveCaches(transport, namespace=target.namespace or cluster.namespace)
    try:
        with readable_errors():
            await transport.log_in()
        yield Client(transport, caches=caches, component="volplane-journey"), caches
    finally:
        await caches.close()
        await transport.close()


async def follow_derived(
    cluster: ClusterChoice, target: ExplainTarget, printer: StepPrinter, note: Write
) -> None:
    """Print what the objects and events of any cluster show; `note` gets a line if there is no such object
    yet. Raises CommandError.
    """
    async with _open_client(cluster, target) as (client, caches):
        with readable_errors():
            async with asyncio.timeout(WAIT_TIMEOUT):
                was_there = await _exists(client, target)
                for type in FOLLOWED:
                    await client.cache(type).wait_synced()
        if not was_there:
            note(_waiting_for(target))
        await _print_changes(client, caches, target, printer, was_there=was_there)


async def _exists(client: Client, target: ExplainTarget) -> bool:
    """Also shows whether the kind may be read. Raises APIError."""
    try:
        await client.get(target.type, target.name, target.namespace)
    except NotFound:
        return False
    return True


async def _print_changes(
    client: Client, caches: LiveCaches, target: ExplainTarget, printer: StepPrinter, *, was_there: bool
) -> None:
    """Until the object is deleted, of a claim also its volume; one that does not exist yet is waited for."""
    changed = asyncio.Event()
    last: Resource | None = None  # as it was before it was deleted
    for type in FOLLOWED:
        client.cache(type).subscribe(lambda old, new: changed.set())
    while True:
        changed.clear()
        obj = client.cache(target.type).get(target.name, target.namespace)
        last = obj or last
        has_ended = obj is None and (was_there or last is not None) and not _has_volume(client, last)
        if last is not None:
            async with FrozenCaches(caches) as frozen:
                printer.print_new(await derive_journeys(ClusterState(frozen), last))
        if has_ended:
            return
        await changed.wait()
        await asyncio.sleep(COALESCE)


def _has_volume(client: Client, obj: Resource | None) -> bool:
    """Whether the volume of a deleted claim is still to be detached or deleted."""
    if not isinstance(obj, PersistentVolumeClaim) or not obj.spec.volume_name:
        return False
    name = obj.spec.volume_name
    volume = client.cache(PersistentVolume).get(name)
    if volume is not None:
        ref = volume.spec.claim_ref
        if ref is None or ref.uid != obj.uid:
            return False  # it was never bound to this claim, or is bound to another one by now
        if volume.spec.persistent_volume_reclaim_policy == "Delete":
            return True
    attachments = client.cache(VolumeAttachment).all()
    return any(each.spec.source.persistent_volume_name == name for each in attachments)
