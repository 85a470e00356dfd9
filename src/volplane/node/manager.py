"""The volume manager: acts out the plan of every volume on this node.

One task at most works on a volume, so that mounts of one volume are serial and nobody unmounts what another
mounts; unmounts of several pods run side by side within it. Everything starts with an event (a pod, the
node's status, a driver, a timer after a failure) and nothing polls. The subtle thing: when a pod goes while a
call for it hangs, the call is left to end; only its outcome says what has to be undone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from msgspec import Struct, structs

from volplane.api.core import Pod
from volplane.base import clock
from volplane.loops.events import EventRecorder
from volplane.node import desired
from volplane.node.acting import Actor, NodeVolumeStatus, Work
from volplane.node.plan import (
    ExpandInUseVolume,
    ForgetNodeVolume,
    MountDevice,
    MountVolume,
    RejectMount,
    ReportInUse,
    UnmountDevice,
    UnmountVolume,
    VolumeStep,
    plan,
)
from volplane.node.world import PodVolumes, VolumeEntry
from volplane.rules.waits import Wait, WaitReason
from volplane.volumes.base import NodeContext, PodVolumeSpec, VolumePlugin

log = logging.getLogger(__name__)

FIRST_LOOK, LONGEST_LOOK = 0.005, 10.0  # between reads of a claim that cannot be mounted yet
COMPLAINS = 0.16  # from this pause on the pod's user is told why nothing happens


class MountedVolume(Struct, frozen=True):
    """A volume as a pod's containers get it."""

    name: str  # of the persistent volume, or of the volume in the pod
    path: str
    readonly: bool


class KubeletWait(Struct, frozen=True):
    key: str
    wait: Wait
    since: float
    next_try: float

    @property
    def why(self) -> str:
        return self.wait.text


class VolumeManager:
    def __init__(
        self,
        site: NodeContext,
        plugins: Sequence[VolumePlugin],
        node: NodeVolumeStatus,
        events: EventRecorder,
    ) -> None:
        self.context, self.node, self.events = site, node, events
        self.plugins = {plugin.name: plugin for plugin in plugins}
        self.entries: dict[str, VolumeEntry] = {}
        self.ready_to_unmount = False
        self._actor = Actor(site, node, events, self._wake_pod)
        self._pods: dict[str, PodVolumes] = {}
        self._alive: set[str] = set()
        self._unheard: set[str] = set()  # pods that were known first, and what they want is not known yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._forgot = asyncio.Event()
        self.on_volume_added: Callable[[VolumePlugin, PodVolumeSpec], None] = lambda plugin, spec: None
        self.on_pod_released: Callable[[str], None] = lambda pod: None

    # --- what pods ask for

    def expect_pod(self, pod: str) -> None:
        """The pod lives: until it is released, nothing that it has mounted is taken from it."""
        self._alive.add(pod)
        if not self.ready_to_unmount:
            self._unheard.add(pod)

    def _hear(self, pod: str) -> None:
        if pod in self._unheard:
            self._unheard.discard(pod)
            if not self._unheard:
                self.wake_all()

    async def wait_for_attach_and_mount(self, pod: Pod) -> None:
        """Until all volumes of the pod are mounted. Cancelling it ends the waiting, not the wish."""
        mine = self._pods.setdefault(pod.uid, PodVolumes())
        if not mine.resolved:
            await self._resolve(pod, mine)
        if not mine.resolved:
            await self._until_resolved(pod, mine)
        while not self.is_mounted(pod.uid):
            mine.changed.clear()
            await mine.changed.wait()

    async def _until_resolved(self, pod: Pod, mine: PodVolumes) -> None:
        """Look again, soon at first, until every volume of the pod is known.

        A pod may come a moment before its claim says Bound: the scheduler believes what the binder wrote
        first. That is no reason to complain, and costs nothing: the disk is being attached meanwhile. A node
        may get the claims of its pods and not watch them, so there is no event to wait for.
        """
        pause = FIRST_LOOK
        while not mine.resolved:
            await mine.second_look(pause)
            if pause >= COMPLAINS:
                self._complain(pod, mine)
            pause = min(pause * 2, LONGEST_LOOK)
            await self._resolve(pod, mine)

    async def _resolve(self, pod: Pod, mine: PodVolumes) -> None:
        wanted = await desired.resolve_volumes(self.context.client, tuple(self.plugins.values()), pod)
        mine.problems = wanted.problems
        mine.blocked.clear()
        for found in wanted.specs:
            if found.source.name not in mine.specs:
                self._want_or_refuse(mine, found)
        mine.resolved = not mine.problems
        self._hear(pod.uid)

    def _want_or_refuse(self, mine: PodVolumes, found: PodVolumeSpec) -> None:
        entry = self.entries.get(found.unique)
        spec, conflict = entry.labelled(found) if entry is not None else (found, "")
        if conflict:
            mine.problems = (*mine.problems, (spec.source.name, conflict))
            mine.blocked.add(spec.unique)
        else:
            mine.specs[spec.source.name] = spec
            self._want(spec)

    def _want(self, spec: PodVolumeSpec) -> None:
        plugin = self.plugins[spec.plugin]
        entry = self.entries.get(spec.unique)
        if entry is None:
            entry = self.entries[spec.unique] = VolumeEntry(spec.unique, plugin)
        entry.name = spec.name
        entry.attachable, entry.staged = plugin.needs_attach(spec), plugin.needs_stage(spec)
        entry.wanted[spec.pod.uid] = spec
        entry.note(spec)
        self.on_volume_added(plugin, spec)
        self.kick(entry)

    def _complain(self, pod: Pod, mine: PodVolumes) -> None:
        unmounted = [name for name in mine.names() if not self._is_there(pod.uid, name)]
        failed = [name for name, _ in mine.problems]
        why = ", ".join(dict.fromkeys(text for _, text in mine.problems))
        self.events.warning(
            pod,
            "FailedMount",
            f"Unable to attach or mount volumes: unmounted volumes={_spell(unmounted)}, "
            f"unattached volumes=[], failed to process volumes={_spell(failed)}: {why}",
        )

    def is_mounted(self, pod: str) -> bool:
        mine = self._pods.get(pod)
        return mine is not None and mine.resolved and all(self._is_there(pod, name) for name in mine.specs)

    def _is_there(self, pod: str, name: str) -> bool:
        spec = self._pods[pod].specs.get(name)
        entry = self.entries.get(spec.unique) if spec else None
        return entry is not None and entry.is_mounted(pod)

    def mounted_volumes(self, pod: str) -> dict[str, MountedVolume]:
        """The pod's volumes by their names in the pod."""
        specs = self._pods[pod].specs if pod in self._pods else {}
        return {
            name: MountedVolume(s.name, self.plugins[s.plugin].path(s), s.readonly)
            for name, s in specs.items()
        }

    def unmounted_specs(self, pod: str) -> list[PodVolumeSpec]:
        """What the pod still waits for."""
        specs = self._pods[pod].specs if pod in self._pods else {}
        return [spec for name, spec in specs.items() if not self._is_there(pod, name)]

    def update_pod(self, pod: Pod) -> None:
        """The pod's labels or annotations may have changed; volumes that show them are written again."""
        mine = self._pods.get(pod.uid)
        for name, spec in list(mine.specs.items()) if mine is not None else ():
            assert mine is not None
            mine.specs[name] = fresh = structs.replace(spec, pod=pod)
            entry = self.entries.get(spec.unique)
            if entry is None or pod.uid not in entry.wanted:
                continue
            entry.wanted[pod.uid] = fresh
            if _shown(spec.pod) != _shown(pod) and entry.plugin.requires_remount(fresh):
                self._refresh(entry, pod.uid)

    def release_pod(self, pod: str) -> None:
        """Nothing of the pod runs any more: its volumes may go."""
        self._alive.discard(pod)
        self._hear(pod)
        self.on_pod_released(pod)
        for plugin in self.plugins.values():
            plugin.forget_pod(pod)
        if mine := self._pods.pop(pod, None):
            mine.changed.set()
        for entry in list(self.entries.values()):
            if pod in entry.wanted or pod in entry.pods:
                entry.wanted.pop(pod, None)
                for other in self._pods.values():
                    other.is_free(entry.unique)
                entry.stale.discard(pod)
                self.kick(entry)

    async def wait_for_unmount(self, pod: str) -> None:
        """Until nothing of the pod's volumes is mounted."""
        mine = self._pods.setdefault(pod, PodVolumes())
        try:
            while self.has_mounts(pod):
                mine.changed.clear()
                await mine.changed.wait()
        finally:
            if self._pods.get(pod) is mine and not mine.specs:
                del self._pods[pod]

    def has_mounts(self, pod: str) -> bool:
        return any(pod in entry.pods for entry in self.entries.values())

    async def wait_until_empty(self) -> None:
        """Until no volume is left on this node."""
        while self.entries:
            self._forgot.clear()
            await self._forgot.wait()

    async def wait_until_unstaged(self) -> None:
        """Until no volume is left that only its driver can take down."""
        while any(entry.staged for entry in self.entries.values()):
            self._forgot.clear()
            await self._forgot.wait()

    # --- what else wakes it

    def keep_pod_data(self) -> None:
        """The node stops: mounts go, but what belongs to pods that will run again is not deleted."""
        self._actor.suspending = True

    def allow_unmounts(self) -> None:
        """The disk has been read and the pods are known: what nobody wants may be taken down."""
        self.ready_to_unmount = True
        self.wake_all()

    def wake_all(self, names: Iterable[str] | None = None) -> None:
        for name in list(self.entries) if names is None else names:
            if entry := self.entries.get(name):
                self.kick(entry)

    def driver_added(self, driver: str) -> None:
        """Whoever failed for want of this driver need not sit out the backoff."""
        for entry in list(self.entries.values()):
            plugin, _, rest = entry.unique.partition("/csi/")
            if plugin == "kubernetes.io" and ("^" not in rest or rest.startswith(f"{driver}^")):
                self._actor.forget(entry)
                self.kick(entry)

    def remount(self, is_due: Callable[[VolumePlugin, PodVolumeSpec], bool]) -> None:
        """Publish again what is mounted and due."""
        for entry in list(self.entries.values()):
            for uid, spec in list(entry.wanted.items()):
                if is_due(entry.plugin, spec):
                    self._refresh(entry, uid)

    def source_changed(self, is_shown: Callable[[VolumePlugin, PodVolumeSpec], bool]) -> None:
        """An object that volumes show has changed, or has come at last."""
        for entry in list(self.entries.values()):
            if any(is_shown(entry.plugin, spec) for spec in entry.wanted.values()):
                self._actor.forget(entry)
                self.kick(entry)
        self.remount(is_shown)

    def reread(self, entry: VolumeEntry, spec: PodVolumeSpec) -> None:
        """The pod's claim has changed; perhaps its volume has grown."""
        entry.wanted[spec.pod.uid] = spec
        if mine := self._pods.get(spec.pod.uid):
            mine.specs[spec.source.name] = spec
        entry.note(spec)
        if entry.growth is not None:
            self.kick(entry)

    def _refresh(self, entry: VolumeEntry, pod: str) -> None:
        if entry.is_mounted(pod):
            entry.stale.add(pod)
            self.kick(entry)

    # --- what it tells

    def volumes_in_use(self) -> list[str]:
        return sorted(name for name, entry in self.entries.items() if entry.attachable)

    def list_waits(self) -> list[KubeletWait]:
        return [KubeletWait(e.unique, e.wait, e.since, e.next_try) for e in self.entries.values() if e.wait]

    # --- acting

    def kick(self, entry: VolumeEntry) -> None:
        entry.again = True
        if entry.task is None:
            entry.task = task = asyncio.create_task(self._drive(entry), name=f"volume {entry.unique}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _drive(self, entry: VolumeEntry) -> None:
        try:
            while entry.again:
                entry.again = False
                entry.cancel_timer()
                entry.again = await self._round(entry) or entry.again
        except Exception:  # a mistake of ours must not freeze the volume for good
            log.exception("volume %s", entry.unique)
            self._later(entry, LONGEST_LOOK)
        finally:
            entry.task = None

    async def _round(self, entry: VolumeEntry) -> bool:
        """Act out one plan; True if something was done, so that it is time for the next."""
        if self.entries.get(entry.unique) is not entry:
            return False
        attached = entry.unique in self.node.volumes_attached
        entry.verified = entry.verified and attached
        reported = entry.unique in self.node.reported_in_use
        view = entry.view(
            reported=reported,
            attached=attached,
            # What was only staged may be wanted by a pod that has not said so yet.
            settled=self.ready_to_unmount and not (self._unheard and entry.is_only_found),
            alive=self._alive,
            managed=self.node.controller_manages_attach,
        )
        steps = list(plan(view))
        entry.waits(None)
        leaving = [step for step in steps if isinstance(step, UnmountVolume)]
        done = any(await asyncio.gather(*(self._try(entry, step) for step in leaving)))
        for step in steps:
            if not isinstance(step, UnmountVolume):
                acted, go_on = await self._step(entry, step)
                done = done or acted
                if not go_on:
                    break
        return done

    async def _step(self, entry: VolumeEntry, step: VolumeStep) -> tuple[bool, bool]:
        """(something was done, the steps after it still make sense)"""
        match step:
            case ReportInUse():
                entry.waits(Wait(WaitReason.VOLUMES_IN_USE))
                self.node.report_volumes_in_use()
                return False, False
            case Wait():
                entry.waits(step)
                return False, True
            case MountDevice(pod) | MountVolume(pod) | RejectMount(pod):
                if pod not in entry.wanted:  # it went while an earlier step was under way
                    return False, False
                tried = await self._try(entry, step)
                return tried, tried and self._actor.backoff(entry, step)[0] <= 0
            case ExpandInUseVolume(pod):
                return pod in entry.wanted and await self._try(entry, step), True
            case UnmountVolume() | UnmountDevice():
                return await self._try(entry, step), False
            case ForgetNodeVolume():
                self._forget(entry)
                return False, False
        assert_never(step)

    async def _try(self, entry: VolumeEntry, work: Work) -> bool:
        """False when it may not be tried yet; its backoff's end wakes the volume."""
        delay, why = self._actor.backoff(entry, work)
        if delay > 0:
            entry.waits(Wait(WaitReason.RETRY, message=why), clock.now() + delay)
            self._later(entry, delay)
            return False
        await self._actor.act(entry, work)
        return True

    def _forget(self, entry: VolumeEntry) -> None:
        entry.cancel_timer()
        del self.entries[entry.unique]
        self._actor.forget(entry)
        self._forgot.set()
        if entry.attachable:
            self.node.report_volumes_in_use()

    def _later(self, entry: VolumeEntry, delay: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        if entry.timer is None or entry.timer.when() > due:
            entry.cancel_timer()
            entry.timer = loop.call_at(due, self.kick, entry)

    def _wake_pod(self, pod: str) -> None:
        if mine := self._pods.get(pod):
            mine.changed.set()

    async def close(self) -> None:
        """Stop acting; what is mounted stays mounted."""
        for entry in self.entries.values():
            entry.cancel_timer()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _shown(pod: Pod) -> tuple[object, object]:
    """What of a pod a mounted file may show."""
    return pod.metadata.labels, pod.metadata.annotations


def _spell(names: Iterable[str]) -> str:
    return "[" + " ".join(names) + "]"
