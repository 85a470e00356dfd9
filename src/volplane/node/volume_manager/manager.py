"""The volume manager: a reconciler whose keys are the volumes of this node.

It has the five parts of every controller (`loops/controller.py`). Changes of pods, of the Node, of drivers
and of state wake a volume; `view` puts its desired and actual state together with the Node's status; `plan`
decides; `act` carries out one step; `memory` holds the states of all volumes, which only `apply` changes.

One worker at a time has a volume. So its mounts are serial, and no unmount overlaps a mount; unmounts of
several pods run side by side, whenever each pod leaves. A call for a pod that is deleted meanwhile runs to
its end: only its outcome tells what has to be undone. Nothing polls, except for claims that cannot be mounted
yet, which a kubelet may read but not watch.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import assert_never

from msgspec import Struct, field

from volplane.api.core import AttachedVolume, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import CSIDriver
from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.loops.controller import Controller, Outcome, Replan, Stop
from volplane.loops.events import EventRecorder
from volplane.loops.volume_states import ComparedVolume, StateComparison, group_waits
from volplane.node.configmap_secret_watch import ConfigMapSecretWatch
from volplane.node.volume_manager import plan as plans
from volplane.node.volume_manager.operation_metrics import MountTimes
from volplane.node.volume_manager.operations import NodeVolumeStatus, VolumeOperations
from volplane.node.volume_manager.plan import (
    AttachVolume,
    DetachVolume,
    ExpandInUseVolume,
    ForgetNodeVolume,
    MountDevice,
    MountVolume,
    NodeVolumeView,
    RejectMount,
    UnmountDevice,
    UnmountVolume,
    VolumeStep,
)
from volplane.node.volume_manager.reducer import (
    AttachabilityRead,
    AttachmentLost,
    BackoffCleared,
    ClaimRead,
    PodAdded,
    PodChanged,
    PodRemoved,
    RemountRequired,
    VolumeEvent,
    VolumeForgotten,
    reduce,
)
from volplane.node.volume_manager.resolve_volumes import resolve_volumes
from volplane.node.volume_manager.state import (
    ActualStateOfWorld,
    DesiredStateOfWorld,
    NodeVolumeState,
    view_volume,
)
from volplane.node.volume_manager.state_comparison import compare, compare_unresolved
from volplane.node.volume_manager.volume_counts import count_volumes, total_volumes
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait
from volplane.volumes.base import NodeContext, PodVolumeSpec, ReferencedObject
from volplane.volumes.registry import PluginRegistry

FIRST_READ_DELAY, MAX_READ_DELAY = 0.005, 10.0  # between reads of a claim that cannot be mounted yet
REPORTED_DELAY = 0.16  # from this delay on, an event reports why the pod's volumes are not mounted


class MountedVolume(Struct, frozen=True):
    """A volume as a pod's containers get it."""

    name: str  # of the persistent volume, or of the volume in the pod
    path: str
    readonly: bool
    runtime_creates_path: bool = False


class PodVolumes(Struct):
    """The volumes that one pod needs, and the tasks that wait for them."""

    owner: str = ""  # the pod: namespace/name
    specs: dict[str, PodVolumeSpec] = field(default_factory=dict)  # by the volume's name in the pod
    problems: tuple[tuple[str, str], ...] = ()  # (name in the pod, why it cannot be mounted)
    is_resolved: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    blocked_by_label: set[str] = field(default_factory=set)  # volumes whose SELinux label other pods need
    read_again: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_to_read_again(self, seconds: float) -> None:
        """Wait until another pod has released a volume that blocks this pod, at most for `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.read_again.wait()
        self.read_again.clear()


class VolumeManagerMemory:
    """What only this process knows. `volumes` is changed by `VolumeManager.apply` alone."""

    def __init__(self) -> None:
        self.volumes: dict[str, NodeVolumeState] = {}  # by unique name
        self.pods: dict[str, PodVolumes] = {}  # by uid
        self.unmounting: dict[str, asyncio.Event] = {}  # set when a volume whose pods are unmounted changes
        self.running_pods: set[str] = set()  # pods that may have containers
        self.unresolved_pods: set[str] = set()  # pods of before a restart whose volumes are not known yet
        self.volumes_attached: frozenset[str] = frozenset()  # as the Node lists them
        self.ready_to_unmount = False  # the pods are known and the disk has been read
        self.keep_pod_data = False  # the node stops: its pods will run again
        self.volume_forgotten = asyncio.Event()
        self.unstage_ended = asyncio.Event()  # set when a volume was unstaged, failed to be, or is needed
        self.times = MountTimes()

    @property
    def desired_state_of_world(self) -> DesiredStateOfWorld:
        return DesiredStateOfWorld({name: s.desired for name, s in self.volumes.items() if s.desired.pods})

    @property
    def actual_state_of_world(self) -> ActualStateOfWorld:
        return ActualStateOfWorld({name: state.actual for name, state in self.volumes.items()})


class VolumeManager(Controller[str, NodeVolumeView, VolumeStep]):
    name = "volume-manager"
    component = "kubelet"

    def __init__(
        self,
        context: NodeContext,
        plugins: PluginRegistry,
        node: NodeVolumeStatus,
        events: EventRecorder,
        object_watch: ConfigMapSecretWatch,
    ) -> None:
        # A driver that hangs must not keep other volumes from their turn, so nothing limits the workers.
        super().__init__(
            context.client, events=events, workers=sys.maxsize, backoff=Backoff(0.5, MAX_READ_DELAY)
        )
        self.context, self.plugins, self.node, self.object_watch = context, plugins, node, object_watch
        # Made here and not in `setup`: what is on disk is read into it before the manager runs.
        self.memory = VolumeManagerMemory()
        self.operations = VolumeOperations(
            context, self.plugins, node, events, self.memory.volumes, self.apply, self.memory.times
        )

    # --- 1. which volumes a change wakes

    def setup(self) -> None:
        self.follow(self.node.cache, self.keys_of_node, observe=self.observe_node)
        self.watch(CSIDriver, observe=self.observe_driver)

    def keys_of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """Volumes that have entered or left volumesAttached."""
        if not _volumes_attached_changed(old, new):
            return ()
        return {volume.name for volume in _attached_volumes(old) ^ _attached_volumes(new)}

    def observe_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None and _volumes_attached_changed(old, new):
            attached = frozenset(volume.name for volume in new.status.volumes_attached)
            lost, self.memory.volumes_attached = self.memory.volumes_attached - attached, attached
            for name in lost:
                self.apply(name, AttachmentLost())

    def observe_driver(self, old: CSIDriver | None, new: CSIDriver | None) -> None:
        """A volume that waits to be attached may turn out not to need it."""
        if new is None or new.spec.attach_required is not False:
            return
        for name, state in list(self.memory.volumes.items()):
            spec = next(iter(state.desired.pods.values()), None)
            if state.attachable and spec is not None and not self.plugins[spec.plugin].needs_attach(spec):
                self.apply(name, AttachabilityRead(False))

    def wake(self, names: Iterable[str]) -> None:
        """Plan these volumes again, as when the API server has acknowledged them in volumesInUse."""
        for name in names:
            self._wake(name)

    def _wake(self, name: str) -> None:
        self.queue.add(name)
        if unmounting := self.memory.unmounting.get(name):
            unmounting.set()

    # --- 2. what is the case

    def view(self, key: str) -> NodeVolumeView | None:
        memory, node = self.memory, self.node
        state = memory.volumes.get(key)
        if state is None:
            return None
        # A device that was found on disk may be needed by a pod whose volumes are not known yet.
        may_be_needed = state.is_only_staged and memory.unresolved_pods
        return view_volume(
            state,
            reported_in_use=key in node.reported_in_use,
            attached=key in memory.volumes_attached,
            controller_manages_attach=node.controller_manages_attach,
            plugin_attaches=self.plugins[state.plugin].attaches_from_node,
            ready_to_unmount=memory.ready_to_unmount and not may_be_needed,
            running_pods=memory.running_pods,
            now=clock.now(),
        )

    # --- 3. what to do about it

    def plan(self, view: NodeVolumeView) -> Iterator[VolumeStep | Wait]:
        return plans.plan(view)

    def batches(
        self, steps: Sequence[VolumeStep | CommonStep]
    ) -> Iterator[Sequence[VolumeStep | CommonStep]]:
        """Unmounts first. One of them stands for all: `act` unmounts for every pod that has left."""
        unmounts = [step for step in steps if isinstance(step, UnmountVolume)]
        others = [step for step in steps if not isinstance(step, UnmountVolume)]
        yield from ((step,) for step in (*unmounts[:1], *others))

    # --- 4. doing it

    async def act(self, key: str, view: NodeVolumeView, step: VolumeStep) -> Outcome[NodeVolumeView]:
        """Carry out a step, unless the state has changed so that it no longer applies."""
        state = self.memory.volumes[key]
        match step:
            case AttachVolume(uid) | MountDevice(uid) | MountVolume(uid) | RejectMount(uid):
                if uid in state.desired.pods and await self.operations.run(key, step):
                    return None
                return Stop()
            case ExpandInUseVolume(uid):
                if uid in state.desired.pods:
                    await self.operations.run(key, step)
                return None
            case UnmountVolume():
                await self._unmount_pods(key)
                return self._replan(key)
            case UnmountDevice() | DetachVolume():
                await self.operations.run(key, step)
                return self._replan(key)
            case ForgetNodeVolume():
                actual = state.actual
                if not (state.desired.pods or actual.is_present or actual.is_attached_by_kubelet):
                    self.apply(key, VolumeForgotten())
                return Stop()
        assert_never(step)

    async def _unmount_pods(self, key: str) -> None:
        """Unmount for all pods that have left, side by side, those that leave meanwhile included."""
        changed = self.memory.unmounting[key] = asyncio.Event()
        running: dict[str, asyncio.Task[bool]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    changed.clear()
                    view = self.view(key)
                    for step in plans.plan(view) if view is not None else ():
                        if isinstance(step, UnmountVolume) and step.pod not in running:
                            call = self.operations.run(key, step, keep_pod_data=self.memory.keep_pod_data)
                            running[step.pod] = task = group.create_task(call)
                            task.add_done_callback(lambda _: changed.set())
                    running = {pod: task for pod, task in running.items() if not task.done()}
                    if not running:
                        return
                    await changed.wait()
        finally:
            del self.memory.unmounting[key]

    def _replan(self, key: str) -> Outcome[NodeVolumeView]:
        """After the last unmount: go on with the device, or with a mount that waited, in the same task."""
        view = self.view(key)
        return Replan(view) if view is not None else Stop()

    # --- 5. what only this process knows

    def apply(self, name: str, event: VolumeEvent) -> None:
        """Change the state of one volume; the only place where that happens."""
        volumes = self.memory.volumes
        before = volumes.get(name)
        after = reduce(before, event)
        if after is before:
            return
        if after is None:
            del volumes[name]
            self.memory.volume_forgotten.set()
        else:
            volumes[name] = after
        if before is not None and before.awaits_first_unstage != _awaits_first_unstage(after):
            self.memory.unstage_ended.set()
        if _is_attachable(before) != _is_attachable(after):
            self.node.report_volumes_in_use()
        if not isinstance(event, PodChanged):  # no plan depends on a pod's labels or status
            self._wake(name)
            self._wake_pods(before, after)

    def _wake_pods(self, before: NodeVolumeState | None, after: NodeVolumeState | None) -> None:
        """Wake the tasks that wait for a pod's mounts."""
        old = before.actual.mounts if before is not None else {}
        new = after.actual.mounts if after is not None else {}
        if old is not new:
            for uid in {*old, *new}:
                if old.get(uid) is not new.get(uid) and (pod := self.memory.pods.get(uid)):
                    pod.changed.set()

    @contextmanager
    def counting(self) -> Iterator[None]:
        with total_volumes.counting(lambda: list(self.memory.volumes.values()), count_volumes):
            yield

    async def compare_states(self) -> StateComparison:
        waits, node, memory = group_waits(self.waits), self.context.node, self.memory
        found: list[ComparedVolume] = []
        for key, state in memory.volumes.items():
            if (view := self.view(key)) is not None:
                found += compare(node, state, view, self.plan(view), waits.get(key, ()))
        for pod in memory.pods.values():
            found += compare_unresolved(node, pod.owner, pod.problems)
        return StateComparison(f"node/{node}", found)

    # --- pods

    def expect_pod(self, uid: str) -> None:
        """Containers of the pod may run: until it is released, none of its mounts is removed."""
        self.memory.running_pods.add(uid)
        if not self.memory.ready_to_unmount:
            self.memory.unresolved_pods.add(uid)

    async def wait_for_attach_and_mount(self, pod: Pod) -> None:
        """Until all volumes of the pod are mounted. Cancelling it ends the wait, not the mounting."""
        volumes = self.memory.pods.setdefault(pod.uid, PodVolumes(pod.key))
        if not volumes.is_resolved:
            await self._resolve(pod, volumes)
        if not volumes.is_resolved:
            await self._wait_until_resolved(pod, volumes)
        while not self.is_mounted(pod.uid):
            volumes.changed.clear()
            await volumes.changed.wait()

    async def _wait_until_resolved(self, pod: Pod, volumes: PodVolumes) -> None:
        """Read again, soon at first, until every volume of the pod is known.

        A pod may arrive shortly before its claim is Bound, because the scheduler relies on the binder's first
        write. So short waits are not reported. They cost nothing: the disk is being attached meanwhile.
        """
        delay = FIRST_READ_DELAY
        while not volumes.is_resolved:
            await volumes.wait_to_read_again(delay)
            if delay >= REPORTED_DELAY:
                self._report_problems(pod, volumes)
            delay = min(delay * 2, MAX_READ_DELAY)
            await self._resolve(pod, volumes)

    async def _resolve(self, pod: Pod, volumes: PodVolumes) -> None:
        resolved = await resolve_volumes(self.context.client, self.plugins, pod)
        volumes.problems = resolved.problems
        volumes.blocked_by_label.clear()
        for spec in resolved.specs:
            if spec.source.name not in volumes.specs:
                self._add_volume(volumes, spec)
        volumes.is_resolved = not volumes.problems
        self._mark_resolved(pod.uid)

    def _mark_resolved(self, uid: str) -> None:
        unresolved = self.memory.unresolved_pods
        if uid in unresolved:
            unresolved.discard(uid)
            if not unresolved:
                self.wake(self.memory.volumes)

    def _add_volume(self, volumes: PodVolumes, spec: PodVolumeSpec) -> None:
        state = self.memory.volumes.get(spec.unique_name)
        spec, conflict = state.fit_selinux_label(spec) if state is not None else (spec, "")
        if conflict:
            volumes.problems = (*volumes.problems, (spec.source.name, conflict))
            volumes.blocked_by_label.add(spec.unique_name)
            return
        plugin = self.plugins[spec.plugin]
        volumes.specs[spec.source.name] = spec
        added = PodAdded(spec, attachable=plugin.needs_attach(spec), has_device=plugin.needs_stage(spec))
        self.memory.times.note_request(spec.unique_name, spec.pod.uid)
        self.apply(spec.unique_name, added)
        self.object_watch.add_volume(plugin, spec)

    def _report_problems(self, pod: Pod, volumes: PodVolumes) -> None:
        names = (*volumes.specs, *(name for name, _ in volumes.problems))
        unmounted = [name for name in names if not self._is_volume_mounted(pod.uid, name)]
        failed = [name for name, _ in volumes.problems]
        why = ", ".join(dict.fromkeys(text for _, text in volumes.problems))
        self.events.warning(
            pod,
            "FailedMount",
            f"Unable to attach or mount volumes: unmounted volumes={_format_names(unmounted)}, "
            f"unattached volumes=[], failed to process volumes={_format_names(failed)}: {why}",
        )

    def is_mounted(self, uid: str) -> bool:
        """Whether all volumes of the pod are mounted."""
        volumes = self.memory.pods.get(uid)
        if volumes is None or not volumes.is_resolved:
            return False
        return all(self._is_volume_mounted(uid, name) for name in volumes.specs)

    def _is_volume_mounted(self, uid: str, name: str) -> bool:
        spec = self.memory.pods[uid].specs.get(name)
        state = self.memory.volumes.get(spec.unique_name) if spec else None
        return state is not None and state.is_mounted(uid)

    def mounted_volumes(self, uid: str) -> dict[str, MountedVolume]:
        """The pod's volumes by their names in the pod."""
        specs = self.memory.pods[uid].specs if uid in self.memory.pods else {}
        return {name: self._mounted_volume(spec) for name, spec in specs.items()}

    def _mounted_volume(self, spec: PodVolumeSpec) -> MountedVolume:
        plugin = self.plugins[spec.plugin]
        return MountedVolume(spec.name, plugin.path(spec), spec.readonly, plugin.runtime_creates_path)

    def unmounted_specs(self, uid: str) -> list[PodVolumeSpec]:
        """The volumes that the pod waits for."""
        specs = self.memory.pods[uid].specs if uid in self.memory.pods else {}
        return [spec for name, spec in specs.items() if not self._is_volume_mounted(uid, name)]

    def update_pod(self, pod: Pod) -> None:
        """Note the pod's new labels and annotations; volumes that show them are published again."""
        volumes = self.memory.pods.get(pod.uid)
        for name in {spec.unique_name for spec in volumes.specs.values()} if volumes is not None else ():
            state = self.memory.volumes.get(name)
            spec = state.desired.pods.get(pod.uid) if state is not None else None
            if spec is None:
                continue
            self.apply(name, PodChanged(pod))
            if _shown_fields(spec.pod) != _shown_fields(pod) and self.plugins[spec.plugin].requires_remount(
                spec
            ):
                self.apply(name, RemountRequired(pod.uid))

    def release_pod(self, uid: str) -> frozenset[str]:
        """The pod's containers have ended: its volumes may be unmounted. Returns their unique names."""
        memory = self.memory
        memory.running_pods.discard(uid)
        self._mark_resolved(uid)
        self.object_watch.remove_pod(uid)
        for plugin in self.plugins:
            plugin.forget_pod(uid)
        if volumes := memory.pods.pop(uid, None):
            volumes.changed.set()
        released = frozenset(name for name, state in memory.volumes.items() if state.concerns(uid))
        for name in released:
            memory.times.forget(name, uid)
            self.apply(name, PodRemoved(uid))
            self._wake(name)
            for other in memory.pods.values():
                if name in other.blocked_by_label:
                    other.read_again.set()
        return released

    async def wait_for_unmount(self, uid: str) -> None:
        """Until nothing of the pod's volumes is mounted."""
        volumes = self.memory.pods.setdefault(uid, PodVolumes())
        try:
            while self.has_mounts(uid):
                volumes.changed.clear()
                await volumes.changed.wait()
        finally:
            if self.memory.pods.get(uid) is volumes and not volumes.specs:
                del self.memory.pods[uid]

    async def wait_for_first_unstage(self, names: Collection[str]) -> None:
        """Until a first call to unstage each of these volumes has ended, unless other pods need it.

        Without attach, nothing but the pod's object keeps a volume from being deleted under a node that still
        has it staged. A volume found on disk after a restart may be one of the pod's.
        """

        def awaits(name: str, state: NodeVolumeState) -> bool:
            return (name in names or state.is_only_staged) and state.awaits_first_unstage

        while any(awaits(name, state) for name, state in self.memory.volumes.items()):
            self.memory.unstage_ended.clear()
            await self.memory.unstage_ended.wait()

    def has_mounts(self, uid: str) -> bool:
        return any(uid in state.actual.mounts for state in self.memory.volumes.values())

    # --- the node

    @property
    def ready_to_unmount(self) -> bool:
        return self.memory.ready_to_unmount

    def allow_unmounts(self) -> None:
        """The disk has been read and the pods are known: volumes that no pod needs may be unmounted."""
        self.memory.ready_to_unmount = True
        self.wake(self.memory.volumes)

    def keep_pod_data(self) -> None:
        """The node stops: mounts are removed, but what its pods have written stays for their next run."""
        self.memory.keep_pod_data = True

    async def wait_until_empty(self) -> None:
        """Until no volume is left on this node."""
        while self.memory.volumes:
            self.memory.volume_forgotten.clear()
            await self.memory.volume_forgotten.wait()

    async def wait_until_drivers_unused(self) -> None:
        """Until no volume is left that only its driver can unmount, staged or not."""
        while any(map(self._needs_driver, self.memory.volumes.values())):
            self.memory.volume_forgotten.clear()
            await self.memory.volume_forgotten.wait()

    def volumes_in_use(self) -> list[str]:
        return sorted(name for name, state in self.memory.volumes.items() if state.attachable)

    def uses_drivers(self, uid: str) -> bool:
        """Whether the pod has volumes that only their drivers can unmount."""
        return any(self._needs_driver(s) and s.concerns(uid) for s in self.memory.volumes.values())

    def _needs_driver(self, state: NodeVolumeState) -> bool:
        return state.has_device or self.plugins[state.plugin].calls_driver

    # --- drivers, objects and claims that change

    def driver_changed(self, driver: str) -> None:
        """A driver has appeared, was replaced, or is gone.

        Its volumes need not wait until the backoff of their last failure ends, nor pods whose volumes had no
        plugin until they are read again.
        """
        for pod in self.memory.pods.values():
            if not pod.is_resolved:  # also one that is being read, and has found no plugin already
                pod.read_again.set()
        for name, state in list(self.memory.volumes.items()):
            if self.plugins[state.plugin].may_use_driver(name, driver):
                self.apply(name, BackoffCleared())
                self._wake(name)

    def remount_due(self) -> None:
        """Publish again what is mounted and must be refreshed from time to time."""
        for spec in self.desired_specs():
            if self.plugins[spec.plugin].requires_remount(spec):
                self.apply(spec.unique_name, RemountRequired(spec.pod.uid))

    def object_changed(self, changed: ReferencedObject) -> None:
        """A ConfigMap or Secret was created, changed or deleted: publish the volumes that show it again."""
        for spec in self.desired_specs():
            if changed in self.plugins[spec.plugin].referenced_objects(spec):
                self.apply(spec.unique_name, BackoffCleared())
                self.apply(spec.unique_name, RemountRequired(spec.pod.uid))

    def desired_specs(self) -> list[PodVolumeSpec]:
        """Every volume of every pod."""
        desired = self.memory.desired_state_of_world.volumes.values()
        return [spec for volume in desired for spec in volume.pods.values()]

    def mounted_specs(self) -> list[PodVolumeSpec]:
        """Every volume that a pod has mounted."""
        volumes = self.memory.volumes
        return [s for s in self.desired_specs() if volumes[s.unique_name].is_mounted(s.pod.uid)]

    def claim_read(self, spec: PodVolumeSpec, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """A claim was read again; perhaps its disk has grown."""
        self.apply(spec.unique_name, ClaimRead(spec.pod.uid, claim, volume))


def _awaits_first_unstage(state: NodeVolumeState | None) -> bool:
    return state is not None and state.awaits_first_unstage


def _is_attachable(state: NodeVolumeState | None) -> bool:
    return state is not None and state.attachable


def _volumes_attached_changed(old: Node | None, new: Node | None) -> bool:
    """Always False for a deleted Node: its volumes are still attached."""
    return new is not None and (old is None or old.status.volumes_attached != new.status.volumes_attached)


def _attached_volumes(node: Node | None) -> frozenset[AttachedVolume]:
    return frozenset(node.status.volumes_attached) if node is not None else frozenset()


def _shown_fields(pod: Pod) -> tuple[object, object]:
    """The fields of a pod that change while it runs and that files of its volumes may show."""
    return pod.metadata.labels, pod.metadata.annotations


def _format_names(names: Iterable[str]) -> str:
    return "[" + " ".join(names) + "]"
