"""Operations on a volume: each calls the volume's plugin and classifies the outcome.

The manager decides which operation runs when. An error that a plugin did not foresee counts as uncertain,
because it is not known how far the call got.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, assert_never

from msgspec.structs import replace

from volplane.api.core import AttachedVolume, Node
from volplane.api.errors import APIError
from volplane.base import clock, trace
from volplane.client.cache import Cache
from volplane.loops.events import EventRecorder
from volplane.loops.storage_metrics import observe_operation
from volplane.node.subpaths import remove_subpaths
from volplane.node.volume_manager.expansion import NodeVolumeExpander
from volplane.node.volume_manager.operation_metrics import BLOCK, FILE_SYSTEM, MountTimes
from volplane.node.volume_manager.plan import (
    AttachVolume,
    DetachVolume,
    ExpandInUseVolume,
    MountDevice,
    MountOutcome,
    MountVolume,
    RejectMount,
    UnmountDevice,
    UnmountVolume,
)
from volplane.node.volume_manager.reducer import (
    AttachmentVerified,
    ExpansionEnded,
    MountStarted,
    OperationEnded,
    VolumeAttached,
    VolumeEvent,
)
from volplane.node.volume_manager.state import NodeVolumeState, VolumeOperation
from volplane.node.volume_manager.state_comparison import find_plugin
from volplane.rules import topology
from volplane.volumes.base import (
    MAP_WORDING,
    EventWording,
    NodeContext,
    NotAttachedError,
    PodVolumeSpec,
    StagedVolumeRef,
    TransientOperationError,
    UncertainProgressError,
    VolumeOperationError,
    VolumePlugin,
)
from volplane.volumes.registry import PluginRegistry

log = logging.getLogger(__name__)

VERIFY = "verify_controller_attached_volume"

EXPAND_WORDING = EventWording("NodeExpandVolume", stage="", publish="", failed="VolumeResizeFailed")
ATTACH_WORDING = EventWording("AttachVolume", stage="", publish="", failed="FailedAttachVolume")

ReleaseOperation = UnmountVolume | UnmountDevice | DetachVolume

Apply = Callable[[str, VolumeEvent], None]


class NodeVolumeStatus(Protocol):
    """What the volume manager needs to know of its Node object."""

    @property
    def cache(self) -> Cache[Node]: ...

    @property
    def reported_in_use(self) -> frozenset[str]:
        """volumesInUse as the API server has acknowledged it."""
        ...

    @property
    def controller_manages_attach(self) -> bool: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    def report_volumes_in_use(self) -> None:
        """volumesInUse has changed: write it."""

    async def read_attached_volume(self, unique: str) -> AttachedVolume | None:
        """The volume's entry in volumesAttached, read live."""
        ...


class _CheckFailed(Exception):
    """A check before the call to the plugin failed: nothing has changed."""

    def __init__(self, phase: str, why: str) -> None:
        super().__init__(why)
        self.phase = phase


class _ExpansionFailed(Exception):
    """The volume is published, but its file system does not have its size yet."""


class VolumeOperations:
    """Carries out the steps of plans; `apply` passes on what happened to the reducer."""

    def __init__(
        self,
        context: NodeContext,
        plugins: PluginRegistry,
        node: NodeVolumeStatus,
        events: EventRecorder,
        states: Mapping[str, NodeVolumeState],
        apply: Apply,
        times: MountTimes,
    ) -> None:
        self.context, self.node, self.events = context, node, events
        self._plugins, self._states, self._apply = plugins, states, apply
        self._times = times
        self._expander = NodeVolumeExpander(context, events)

    async def run(self, name: str, step: VolumeOperation, *, keep_pod_data: bool = False) -> bool:
        """Carry out a step; return whether it succeeded. A failure is reported and starts a backoff."""
        state = self._states[name]
        plugin = self._plugins[state.plugin]
        spec = None if isinstance(step, ReleaseOperation) else state.desired.pods[step.pod]
        failure: Exception | None = None
        begun = clock.now()
        try:
            with self._trace(state, step, spec):
                if spec is not None:
                    await self._mount(state, plugin, step, spec)
                else:
                    await self._unmount(state, plugin, step, keep_pod_data=keep_pod_data)
        except Exception as error:
            failure = error
        why = "" if failure is None else self.context.paths.wire_text(str(failure) or type(failure).__name__)
        ended = OperationEnded(
            step, _classify(failure), spec, why, clock.now(), max_backoff=self.context.retry_max
        )
        self._apply(name, ended)
        if not (isinstance(failure, _CheckFailed) and failure.phase == VERIFY):  # observed by itself
            self._observe(state, plugin, step, begun, failed=failure is not None)
        if failure is not None:
            self._report_failure(name, plugin, step, _phase(plugin, step, failure), why)
        return failure is None

    def _trace(
        self, state: NodeVolumeState, step: VolumeOperation, spec: PodVolumeSpec | None
    ) -> AbstractContextManager[object]:
        """The span of an operation on a persistent volume, or on one of a driver."""
        name = type(step).__name__
        if spec is not None:
            has_driver = spec.source.csi is not None or spec.source.flex_volume is not None
            subject = f"pv/{spec.name}" if spec.volume is not None else spec.ref.owner if has_driver else ""
            pod = spec.pod.key
        else:
            mount = state.actual.mounts.get(step.pod) if isinstance(step, UnmountVolume) else None
            subject, pod = f"pv/{state.name}", mount.ref.owner.removeprefix("pod/") if mount else ""
            recorder = trace.recording()
            if recorder is None or not recorder.index.find(subject):
                subject = ""
        if not subject:
            return nullcontext()
        return trace.span("kubelet", name, subject, node=self.context.node, pod=pod)

    def _observe(
        self,
        state: NodeVolumeState,
        plugin: VolumePlugin,
        step: VolumeOperation,
        begun: float,
        *,
        failed: bool,
    ) -> None:
        names = BLOCK if plugin.wording is MAP_WORDING else FILE_SYSTEM
        seconds = clock.now() - begun
        self._times.observe(state.unique_name, find_plugin(state), names, step, seconds, failed=failed)

    # --- mount

    async def _mount(
        self, state: NodeVolumeState, plugin: VolumePlugin, step: VolumeOperation, spec: PodVolumeSpec
    ) -> None:
        match step:
            case AttachVolume():
                await self._attach(state, plugin, spec)
            case MountDevice():
                if spec.volume is not None and not topology.is_reachable_from(spec.volume, self.node.labels):
                    raise _CheckFailed("NodeAffinity check", "no matching NodeSelectorTerms")
                await self._verify_attached(state)
                await plugin.stage(self._with_device(state, spec))
            case MountVolume():
                await self._mount_for_pod(state, plugin, spec)
            case RejectMount(_, why, attach):
                raise _CheckFailed("Attach" if attach else plugin.wording.publish, why)
            case ExpandInUseVolume():
                if error := await self._expand(state.unique_name, plugin, spec):
                    raise error

    async def _verify_attached(self, state: NodeVolumeState) -> None:
        """Read the Node live, once per attachment: the cache may show a past one."""
        if (
            not state.attachable
            or state.actual.attachment_verified
            or not self.node.controller_manages_attach
        ):
            return
        begun, attached = clock.now(), None
        try:
            attached = await self.node.read_attached_volume(state.unique_name)
        except (APIError, TimeoutError) as error:
            raise _CheckFailed(VERIFY, f"the node's status cannot be read: {error}") from error
        finally:
            observe_operation(find_plugin(state), VERIFY, clock.now() - begun, failed=attached is None)
        if attached is None:
            raise _CheckFailed(VERIFY, "volume not attached according to node status")
        self._apply(state.unique_name, AttachmentVerified(attached.device_path))

    async def _attach(self, state: NodeVolumeState, plugin: VolumePlugin, spec: PodVolumeSpec) -> None:
        device = await plugin.attach(spec)
        self._apply(state.unique_name, VolumeAttached(device))
        text = f'AttachVolume.Attach succeeded for volume "{spec.name}" '
        self.events.normal(spec.pod, "SuccessfulAttachVolume", text)

    def _with_device(self, state: NodeVolumeState, spec: PodVolumeSpec) -> PodVolumeSpec:
        """With the device path that was read since the state was."""
        return replace(spec, device_path=self._states[state.unique_name].actual.device_path)

    async def _mount_for_pod(self, state: NodeVolumeState, plugin: VolumePlugin, spec: PodVolumeSpec) -> None:
        options = spec.volume.spec.mount_options if spec.volume is not None else ()
        if options and not plugin.supports_mount_options:
            why = "mount options are not supported for this volume type"
            raise _CheckFailed("MountOptionSupport check", why)
        remount = state.is_mounted(spec.pod.uid)
        self._apply(state.unique_name, MountStarted(spec))
        await plugin.publish(spec, again=remount)
        # The pod's containers do not start until the expansion has succeeded.
        if not remount and (error := await self._expand(state.unique_name, plugin, spec)):
            raise _ExpansionFailed(str(error)) from error
        for where in plugin.success_messages(spec):
            wording = plugin.wording
            text = f'{wording.operation}.{wording.publish} succeeded for volume "{spec.name}" {where}'
            self.events.normal(spec.pod, "SuccessfulMountVolume", text)

    async def _expand(self, name: str, plugin: VolumePlugin, spec: PodVolumeSpec) -> Exception | None:
        """Expand the volume if its disk has grown; the error of an attempt that must be retried."""
        target = self._states[name].desired.expansion
        if target is None:
            return None
        spec = self._with_device(self._states[name], spec)
        result = await self._expander.expand(plugin, spec, target)
        self._apply(name, ExpansionEnded(target, result.outcome, spec.pod.uid, result.claim))
        return result.error

    # --- unmount

    async def _unmount(
        self, state: NodeVolumeState, plugin: VolumePlugin, step: VolumeOperation, *, keep_pod_data: bool
    ) -> None:
        match step:
            case UnmountVolume(uid):
                ref = state.actual.mounts[uid].ref
                await remove_subpaths(self.context, ref.pod, ref.name)
                await (plugin.unpublish_keeping_data if keep_pod_data else plugin.unpublish)(ref)
            case UnmountDevice():
                await plugin.unstage(StagedVolumeRef(plugin.name, state.unique_name, state.name))
            case DetachVolume():
                await plugin.detach(StagedVolumeRef(plugin.name, state.unique_name, state.name))

    # --- failures

    def _report_failure(
        self, name: str, plugin: VolumePlugin, step: VolumeOperation, phase: str, error: str
    ) -> None:
        """Only failed mounts become events, and only for pods that still need the volume."""
        spec = None
        if not isinstance(step, ReleaseOperation):
            spec = self._states[name].desired.pods.get(step.pod)
        if spec is None or phase == VERIFY:
            log.warning("%s failed for volume %s: %s", phase, name, error)
            return
        wording = _wording(plugin, step)
        phrase = phase if " failed" in phase else f"{phase} failed"
        message = f'{wording.operation}.{phrase} for volume "{spec.name}" : {error}'
        log.warning("%s", message, extra={"pod": spec.pod.key})
        self.events.warning(spec.pod, wording.failed, message)


def _phase(plugin: VolumePlugin, step: VolumeOperation, error: Exception) -> str:
    """The part of the operation that failed, in Kubernetes' words."""
    if isinstance(error, _CheckFailed):
        return error.phase
    match step:
        case AttachVolume():
            return "Attach"
        case DetachVolume():
            return "DetachVolume.Detach"
        case MountDevice():
            return "WaitForAttach" if isinstance(error, NotAttachedError) else plugin.wording.stage
        case MountVolume() | RejectMount():
            expanding = isinstance(error, _ExpansionFailed)
            return "Setup failed while expanding volume" if expanding else plugin.wording.publish
        case ExpandInUseVolume():
            return "NodeExpandVolume"
        case UnmountVolume():
            return "UnmountVolume.TearDown"
        case UnmountDevice():
            return "UnmountDevice"
    assert_never(step)


def _wording(plugin: VolumePlugin, step: VolumeOperation) -> EventWording:
    match step:
        case ExpandInUseVolume():
            return EXPAND_WORDING
        case AttachVolume() | RejectMount(attach=True):
            return ATTACH_WORDING
    return plugin.wording


def _classify(error: Exception | None) -> MountOutcome:
    match error:
        case None:
            return MountOutcome.DONE
        case _CheckFailed() | TransientOperationError():
            return MountOutcome.TRANSIENT
        case _ExpansionFailed() | UncertainProgressError():
            return MountOutcome.UNCERTAIN
        case VolumeOperationError():
            return MountOutcome.FINAL
    log.warning("unexpected %s: %s", type(error).__name__, error, exc_info=error)
    return MountOutcome.UNCERTAIN
