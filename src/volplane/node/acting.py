"""Single operations on a volume: one call to its plugin, its outcome noted, its failure told and put off.

What is attempted when is the manager's business. The subtle thing: an error that a plugin did not foresee
counts as uncertain, because nobody knows how far it came.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, assert_never

from volplane.api.errors import APIError
from volplane.base import clock
from volplane.loops.events import EventRecorder
from volplane.node.expanding import Expander
from volplane.node.operations import OperationKey, PendingOperations
from volplane.node.plan import (
    ExpandInUseVolume,
    MountDevice,
    MountOutcome,
    MountState,
    MountVolume,
    RejectMount,
    UnmountDevice,
    UnmountVolume,
    after_mount,
    after_unmount,
)
from volplane.node.subpaths import remove_subpaths
from volplane.node.world import PodMount, VolumeEntry
from volplane.rules import topology
from volplane.volumes.base import (
    EventWording,
    NodeContext,
    PodVolumeSpec,
    StagedVolumeRef,
    TransientOperationError,
    UncertainProgressError,
    VolumeOperationError,
)
from volplane.volumes.csi.plugin import NotAttachedError

log = logging.getLogger(__name__)

MOUNT, UNMOUNT, UNMOUNT_DEVICE = "volume_mount", "volume_unmount", "unmount_device"
EXPAND = "volume_fs_resize"
VERIFY = "verify_controller_attached_volume"

RESIZED = EventWording("NodeExpandVolume", stage="", publish="", failed="VolumeResizeFailed")
ATTACHED = EventWording("AttachVolume", stage="", publish="", failed="FailedAttachVolume")

Work = MountDevice | MountVolume | RejectMount | ExpandInUseVolume | UnmountVolume | UnmountDevice


class NodeVolumeStatus(Protocol):
    """What volumes need to know of their Node object."""

    @property
    def reported_in_use(self) -> frozenset[str]:
        """volumesInUse as the API server has acknowledged it."""
        ...

    @property
    def controller_manages_attach(self) -> bool:
        """The attach/detach controller attaches what this node needs."""
        ...

    @property
    def volumes_attached(self) -> frozenset[str]: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    def report_volumes_in_use(self) -> None:
        """volumesInUse has changed: write it."""

    async def is_attached_live(self, unique: str) -> bool: ...


class _Failed(Exception):
    """A step that failed, with the word users know for it."""

    def __init__(self, step: str, cause: Exception | str) -> None:
        super().__init__(str(cause))
        self.step = step
        self.phrase = step if " failed" in step else f"{step} failed"


class Actor:
    def __init__(
        self, site: NodeContext, node: NodeVolumeStatus, events: EventRecorder, changed: Callable[[str], None]
    ) -> None:
        self.site, self.node, self.events = site, node, events
        self._changed = changed  # told the pod whose volumes are no longer as they were
        self._operations = PendingOperations(clock.now, site.retry_max)
        self._expander = Expander(site, events)
        self.suspending = False

    def forget(self, entry: VolumeEntry) -> None:
        """Past failures no longer count."""
        self._operations.forget(entry.unique)

    def backoff(self, entry: VolumeEntry, work: Work) -> tuple[float, str]:
        """Seconds before this may be tried again, and the failure it waits for."""
        key, name = _operation(entry, work)
        delay = self._operations.delay(key, name)
        failed = self._operations.failure(key, name)
        return delay, failed.error if failed is not None else ""

    async def act(self, entry: VolumeEntry, work: Work) -> bool:
        """Whether it succeeded; a failure is told to whom it concerns and starts a backoff."""
        try:
            with self._operations.running(*_operation(entry, work)):
                await self._work(entry, work)
        except _Failed as failure:
            self._tell(entry, work, failure)
            if isinstance(work, MountDevice | MountVolume):
                entry.step_back(work.pod)
            return False
        finally:
            if not isinstance(work, UnmountDevice):
                self._changed(work.pod)
        return True

    async def _work(self, entry: VolumeEntry, work: Work) -> None:
        match work:
            case MountDevice(pod):
                await self._stage(entry, entry.wanted[pod])
            case MountVolume(pod):
                await self._publish(entry, entry.wanted[pod])
            case RejectMount(_, why, attach):
                raise _Failed("Attach" if attach else entry.plugin.wording.publish, why)
            case ExpandInUseVolume(pod):
                await self._expand(entry, entry.wanted[pod])
            case UnmountVolume(pod):
                await self._unpublish(entry, entry.pods[pod])
            case UnmountDevice():
                await self._unstage(entry)
            case _:
                assert_never(work)

    def _tell(self, entry: VolumeEntry, work: Work, failure: _Failed) -> None:
        spec = None if isinstance(work, UnmountVolume | UnmountDevice) else entry.wanted.get(work.pod)
        if spec is None or failure.step == VERIFY:  # only failing mounts become events
            log.warning("%s failed for volume %s: %s", failure.step, entry.unique, failure)
            return
        words = _words(entry, work)
        message = f'{words.operation}.{failure.phrase} for volume "{spec.name}" : {failure}'
        log.warning("%s", message, extra={"pod": spec.pod.key})
        self.events.warning(spec.pod, words.failed, message)

    # --- up

    async def _stage(self, entry: VolumeEntry, spec: PodVolumeSpec) -> None:
        if spec.volume is not None and not topology.is_reachable_from(spec.volume, self.node.labels):
            raise _Failed("NodeAffinity check", "no matching NodeSelectorTerms")
        await self._verify(entry)
        entry.label = spec.label
        outcome, error = await _judge(entry.plugin.stage(spec))
        entry.device = after_mount(entry.device, outcome, reconstructed=entry.device_reconstructed)
        if error is not None:
            step = "WaitForAttach" if isinstance(error, NotAttachedError) else entry.plugin.wording.stage
            raise _Failed(step, error)
        entry.device_reconstructed = False

    async def _verify(self, entry: VolumeEntry) -> None:
        """Once per attachment the node's status is read live: the cache may show a past one."""
        if not entry.attachable or entry.verified:
            return
        try:
            attached = await self.node.is_attached_live(entry.unique)
        except (APIError, TimeoutError) as error:
            raise _Failed(VERIFY, f"the node's status cannot be read: {error}") from error
        if not attached:
            raise _Failed(VERIFY, "volume not attached according to node status")
        entry.verified = True

    async def _publish(self, entry: VolumeEntry, spec: PodVolumeSpec) -> None:
        if (
            spec.volume is not None
            and spec.volume.spec.mount_options
            and not entry.plugin.supports_mount_options
        ):
            raise _Failed("MountOptionSupport check", "mount options are not supported for this volume type")
        uid, entry.label = spec.pod.uid, spec.label
        held = entry.pods.setdefault(uid, PodMount(spec.place))
        before = held.state
        outcome, error = await _judge(entry.plugin.publish(spec, again=before is MountState.MOUNTED))
        if outcome is MountOutcome.DONE and before is not MountState.MOUNTED and entry.growth is not None:
            await self._expand_offline(entry, spec, held)
        held.state = after_mount(held.state, outcome, reconstructed=held.reconstructed)
        entry.stale.discard(uid)
        if held.state is MountState.ABSENT:
            del entry.pods[uid]
        if error is not None:
            raise _Failed(entry.plugin.wording.publish, error)
        held.place, held.reconstructed = spec.place, False
        self._tell_success(entry, spec)

    async def _expand_offline(self, entry: VolumeEntry, spec: PodVolumeSpec, held: PodMount) -> None:
        """Before the pod's containers see it; until that has succeeded they do not start."""
        held.state = MountState.UNCERTAIN
        _, error = await _judge(self._expander.expand(entry, spec))
        if error is not None:
            raise _Failed("Setup failed while expanding volume", error)

    async def _expand(self, entry: VolumeEntry, spec: PodVolumeSpec) -> None:
        _, error = await _judge(self._expander.expand(entry, spec))
        if error is not None:
            raise _Failed("NodeExpandVolume", error)

    def _tell_success(self, entry: VolumeEntry, spec: PodVolumeSpec) -> None:
        words = entry.plugin.wording
        for where in entry.plugin.success_messages(spec):
            text = f'{words.operation}.{words.publish} succeeded for volume "{spec.name}" {where}'
            self.events.normal(spec.pod, "SuccessfulMountVolume", text)

    # --- down

    async def _unpublish(self, entry: VolumeEntry, held: PodMount) -> None:
        outcome, error = await _judge(self._tear_down(entry, held))
        if outcome is not MountOutcome.TRANSIENT:  # a driver that is not registered has not even been asked
            held.state = after_unmount(outcome)
        if held.state is MountState.ABSENT:
            del entry.pods[held.place.pod]
        if error is not None:
            raise _Failed("UnmountVolume.TearDown", error)

    async def _tear_down(self, entry: VolumeEntry, held: PodMount) -> None:
        await remove_subpaths(self.site, held.place.pod, held.place.name)
        await (entry.plugin.unpublish_keeping_data if self.suspending else entry.plugin.unpublish)(held.place)

    async def _unstage(self, entry: VolumeEntry) -> None:
        outcome, error = await _judge(
            entry.plugin.unstage(StagedVolumeRef(entry.plugin.name, entry.unique, entry.name))
        )
        if outcome is not MountOutcome.TRANSIENT:
            entry.device = after_unmount(outcome)
        if error is not None:
            raise _Failed("UnmountDevice", error)


def _words(entry: VolumeEntry, work: Work) -> EventWording:
    match work:
        case ExpandInUseVolume():
            return RESIZED
        case RejectMount(attach=True):
            return ATTACHED
    return entry.plugin.wording


def _operation(entry: VolumeEntry, work: Work) -> tuple[OperationKey, str]:
    match work:
        case MountDevice(pod) | MountVolume(pod) | RejectMount(pod):
            shared = entry.attachable or entry.staged
            return OperationKey(entry.unique) if shared else OperationKey(entry.unique, pod), MOUNT
        case ExpandInUseVolume():
            return OperationKey(entry.unique), EXPAND
        case UnmountVolume(pod):
            return OperationKey(entry.unique, pod), UNMOUNT
        case UnmountDevice():
            return OperationKey(entry.unique), UNMOUNT_DEVICE
    assert_never(work)


async def _judge(call: Awaitable[None]) -> tuple[MountOutcome, Exception | None]:
    try:
        await call
    except TransientOperationError as error:
        return MountOutcome.TRANSIENT, error
    except UncertainProgressError as error:
        return MountOutcome.UNCERTAIN, error
    except VolumeOperationError as error:
        return MountOutcome.FINAL, error
    except Exception as error:
        log.warning("unforeseen %s: %s", type(error).__name__, error, exc_info=True)
        return MountOutcome.UNCERTAIN, error
    return MountOutcome.DONE, None
