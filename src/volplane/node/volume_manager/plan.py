"""The next steps for one volume on this node.

Pure: the volume manager passes a `NodeVolumeView` and gets steps. It plans again after each outcome, so a
plan holds only what may start now. Two orders are guaranteed to the driver and the disk: all pods are
unmounted before the device is, and no device is mounted before the API server has acknowledged the volume in
`volumesInUse` and lists it in `volumesAttached`.

Until `ready_to_unmount` nothing is unmounted: after a restart, mounts on disk may belong to pods that the
kubelet has not seen yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from volplane.rules.waits import Wait, WaitData, WaitReason

NOT_MANAGED = (
    "this node attaches volumes itself (--enable-controller-attach-detach=false), and a volume of a CSI "
    "driver can only be attached by the attach/detach controller"
)
SINGLE_POD = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"


class MountState(StrEnum):
    """State of a device that is mounted globally, or of one pod's mount."""

    ABSENT = "NotMounted"
    MOUNTED = "Mounted"
    UNCERTAIN = "Uncertain"  # a call may still be running, or its outcome was lost


class AttachState(StrEnum):
    """State of a volume that the kubelet attaches itself."""

    DETACHED = "Detached"
    ATTACHED = "Attached"
    UNCERTAIN = "Uncertain"  # an attach or detach may still be running, or its outcome was lost


class MountOutcome(StrEnum):
    DONE = "done"
    FINAL = "final"  # refused, nothing is left behind
    UNCERTAIN = "uncertain"  # may be running or done
    TRANSIENT = "transient"  # never reached the driver; nothing changed


class Operation(StrEnum):
    """Names of operations as in Kubernetes' operation map: a failed one delays only its own kind."""

    MOUNT = "volume_mount"
    UNMOUNT = "volume_unmount"
    UNMOUNT_DEVICE = "unmount_device"
    EXPAND = "volume_fs_resize"
    ATTACH = "volume_attach"
    DETACH = "volume_detach"


class OperationBackoff(Struct, frozen=True):
    """An operation that failed and may not be tried again yet."""

    operation: Operation
    pod: str  # "": for all pods
    seconds: float
    error: str


class NodeVolumeView(Struct, frozen=True):
    """One volume on this node: what its state and the Node object show now."""

    name: str
    desired_pods: tuple[str, ...] = ()  # uids of the pods that need it, in the order in which they are served
    mounts: Mapping[str, MountState] = {}  # every pod with a mount, by uid
    running_pods: frozenset[str] = frozenset()  # pods whose containers may run: never unmounted
    remount_pods: frozenset[str] = frozenset()  # mounted pods for which it must be published again
    device: MountState = MountState.ABSENT
    has_device: bool = False  # this kind of volume is mounted globally before it is mounted for pods
    attachable: bool = False
    single_pod: bool = False  # ReadWriteOncePod is its only access mode
    reported_in_use: bool = False  # the API server has acknowledged it in volumesInUse
    controller_manages_attach: bool = True
    attached: bool = False  # node.status.volumesAttached lists it
    kubelet_attaches: bool = False  # its plugin can, and the controller does not
    attachment: AttachState = AttachState.DETACHED  # by the kubelet
    ready_to_unmount: bool = True
    expand_through: str = ""  # the pod through whose mount it is to be expanded
    relabel: bool = False  # it is mounted with another SELinux label than the desired pods need
    device_outdated: bool = False  # it was mounted before the disk grew
    backoffs: tuple[OperationBackoff, ...] = ()

    def backoff(self, operation: Operation, pod: str = "") -> OperationBackoff | None:
        """The backoff that this operation has to wait for: the pod's own, or one of all pods."""
        found = (b for b in self.backoffs if b.operation is operation and b.pod in ("", pod))
        return next(found, None)


class AttachVolume(Struct, frozen=True):
    """Attach it to this node without the attach/detach controller."""

    pod: str  # on whose behalf: it gets the events


class DetachVolume(Struct, frozen=True):
    """Detach what the kubelet has attached."""


class MountDevice(Struct, frozen=True):
    pod: str  # on whose behalf: it gets the events


class MountVolume(Struct, frozen=True):
    pod: str


class RejectMount(Struct, frozen=True):
    """A mount that must fail without a call to the driver."""

    pod: str
    why: str
    attach: bool = False  # what fails is the attach


class ExpandInUseVolume(Struct, frozen=True):
    """The disk has grown: expand what the pod has mounted."""

    pod: str


class UnmountVolume(Struct, frozen=True):
    pod: str


class UnmountDevice(Struct, frozen=True):
    pass


class ForgetNodeVolume(Struct, frozen=True):
    """Nothing is left of it: it leaves volumesInUse, and the attach/detach controller may detach it."""


MountStep = AttachVolume | MountDevice | MountVolume | RejectMount
VolumeStep = MountStep | ExpandInUseVolume | UnmountVolume | UnmountDevice | DetachVolume | ForgetNodeVolume


def plan(volume: NodeVolumeView) -> Iterator[VolumeStep | Wait]:
    # Unmounts first: a mount of the same volume never overlaps them.
    unneeded = [pod for pod in volume.mounts if pod not in volume.desired_pods]
    leaving = [pod for pod in unneeded if pod not in volume.running_pods]
    if leaving and not volume.ready_to_unmount:
        yield Wait(WaitReason.PODS_NOT_KNOWN)
    elif leaving:
        for pod in leaving:
            yield _wait_for_backoff(volume, Operation.UNMOUNT, pod) or UnmountVolume(pod)
    if volume.expand_through:
        expand = ExpandInUseVolume(volume.expand_through)
        yield _wait_for_backoff(volume, Operation.EXPAND) or expand
    if volume.desired_pods and volume.relabel:
        yield from _relabel(volume)
    elif volume.desired_pods and volume.device_outdated and _is_device_free(volume):
        # Some drivers expand a file system only when it is not mounted. An unmount that failed after the last
        # pod, or was not started yet, must not leave the volume small for the next pod.
        yield _unmount_device(volume)
    elif volume.desired_pods:
        yield from _mount(volume, leaving)
    elif unneeded and not leaving:
        yield Wait(WaitReason.CONTAINERS_RUNNING)
    elif not unneeded and volume.ready_to_unmount:
        yield _release(volume)


def _wait_for_backoff(volume: NodeVolumeView, operation: Operation, pod: str = "") -> Wait | None:
    backoff = volume.backoff(operation, pod)
    if backoff is None:
        return None
    data = WaitData(pods=(backoff.pod,) if backoff.pod else (), names=(operation,))
    return Wait(WaitReason.RETRY, data, backoff.seconds, message=backoff.error)


def _is_device_free(volume: NodeVolumeView) -> bool:
    return not volume.mounts and volume.ready_to_unmount


def _unmount_device(volume: NodeVolumeView) -> VolumeStep | Wait:
    return _wait_for_backoff(volume, Operation.UNMOUNT_DEVICE) or UnmountDevice()


def _release(volume: NodeVolumeView) -> VolumeStep | Wait:
    """No pod needs it, and none has it mounted."""
    if volume.device is not MountState.ABSENT:
        return _unmount_device(volume)
    if volume.attachment is not AttachState.DETACHED:
        return _wait_for_backoff(volume, Operation.DETACH) or DetachVolume()
    return ForgetNodeVolume()


def _relabel(volume: NodeVolumeView) -> Iterator[VolumeStep | Wait]:
    """An SELinux label holds for the whole volume: it is unmounted everywhere before it is mounted again."""
    if volume.mounts or not volume.ready_to_unmount:
        yield Wait(WaitReason.SELINUX_RELABEL, WaitData(volume=volume.name))
    else:
        yield _unmount_device(volume)


def _mount(volume: NodeVolumeView, leaving: list[str]) -> Iterator[VolumeStep | Wait]:
    pending = [
        pod
        for pod in volume.desired_pods
        if volume.mounts.get(pod, MountState.ABSENT) is not MountState.MOUNTED or pod in volume.remount_pods
    ]
    if not pending:
        return
    if volume.attachable and volume.kubelet_attaches:
        yield from _until_backoff(volume, _mount_steps(volume, pending, leaving))
        return
    if volume.attachable and not volume.controller_manages_attach:
        yield from _until_backoff(volume, (RejectMount(pod, NOT_MANAGED, attach=True) for pod in pending))
        return
    if volume.attachable and not volume.reported_in_use:
        yield Wait(WaitReason.VOLUMES_IN_USE)  # until the API server has acknowledged the volume there
        return
    if volume.attachable and not volume.attached:
        yield Wait(WaitReason.NOT_ATTACHED)
        return
    yield from _until_backoff(volume, _mount_steps(volume, pending, leaving))


def _until_backoff(volume: NodeVolumeView, steps: Iterable[MountStep]) -> Iterator[MountStep | Wait]:
    """The steps before the first one whose backoff has not ended yet."""
    for step in steps:
        operation = Operation.ATTACH if isinstance(step, AttachVolume) else Operation.MOUNT
        if wait := _wait_for_backoff(volume, operation, step.pod):
            yield wait
            return
        yield step


def _mount_steps(volume: NodeVolumeView, pending: list[str], leaving: list[str]) -> Iterator[MountStep]:
    admitted, rejected = _admit(volume, pending, leaving)
    if admitted and volume.kubelet_attaches and volume.attachment is not AttachState.ATTACHED:
        yield AttachVolume(admitted[0])
    if admitted and volume.has_device and volume.device is not MountState.MOUNTED:
        yield MountDevice(admitted[0])
    yield from map(MountVolume, admitted)
    for pod in rejected:
        yield RejectMount(pod, SINGLE_POD)


def _admit(volume: NodeVolumeView, pending: list[str], leaving: list[str]) -> tuple[list[str], list[str]]:
    """Only one pod may have a ReadWriteOncePod volume, mounted or uncertain."""
    if not volume.single_pod:
        return pending, []
    holder = next(iter(volume.mounts), pending[0])
    return [p for p in pending if p == holder and not leaving], [p for p in pending if p != holder]


def after_mount(state: MountState, outcome: MountOutcome, *, reconstructed: bool) -> MountState:
    """The state after a mount call."""
    match outcome:
        case MountOutcome.DONE:
            return MountState.MOUNTED
        case MountOutcome.UNCERTAIN:
            # A failed remount changes nothing for a pod that runs on the earlier mount.
            return MountState.MOUNTED if state is MountState.MOUNTED else MountState.UNCERTAIN
        case MountOutcome.FINAL:
            # What was mounted before a restart is still there, whatever this call was refused for.
            undone = state is MountState.UNCERTAIN and not reconstructed
            return MountState.ABSENT if undone else state
        case MountOutcome.TRANSIENT:
            return state


def after_unmount(state: MountState, outcome: MountOutcome) -> MountState:
    """The state after an unmount call. Only OK proves that it is gone; any error is retried."""
    match outcome:
        case MountOutcome.DONE:
            return MountState.ABSENT
        case MountOutcome.TRANSIENT:  # a driver that is not registered has not even been called
            return state
    return MountState.UNCERTAIN
