"""What happens next to one volume on one node.

Pure: the manager shows a `Volume` (who wants it, what is mounted, what the node's status says) and gets
steps. It plans again after every outcome, so a plan holds only what may start now. Two orders are owed to the
driver and to the disk: all pods leave before the device is unstaged, and nothing is staged before the API
server has acknowledged `volumesInUse` and lists the volume in `volumesAttached`.

The subtle thing is `settled`: after a restart the disk knows more than we do. Until the pods of this node are
known and the disk has been read, nothing is ever taken down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from volplane.rules.waits import Wait, WaitData, WaitReason

UNMANAGED = (
    "this node attaches volumes itself (--enable-controller-attach-detach=false), and a volume of a CSI "
    "driver can only be attached by the attach/detach controller"
)


class MountState(StrEnum):
    """Of a staged device, or of one pod's mount."""

    ABSENT = "NotMounted"
    MOUNTED = "Mounted"
    UNCERTAIN = "Uncertain"  # a call may still be running, or its outcome was lost


class MountOutcome(StrEnum):
    DONE = "done"
    FINAL = "final"  # refused, nothing is left behind
    UNCERTAIN = "uncertain"  # may be running or done
    TRANSIENT = "transient"  # never reached the driver; nothing changed


class NodeVolumeView(Struct, frozen=True):
    """One volume on this node, as the manager sees it now."""

    name: str
    wanted: tuple[str, ...] = ()  # uids of the pods that want it, first come first served
    pods: Mapping[str, MountState] = {}  # every pod with a mount record
    kept: frozenset[str] = frozenset()  # pods whose containers may run: never unmounted, wanted or not
    stale: frozenset[str] = frozenset()  # mounted pods whose content must be published again
    device: MountState = MountState.ABSENT
    staged: bool = False  # this kind of volume has a device to stage
    attachable: bool = False
    one_pod: bool = False  # ReadWriteOncePod is its only access mode
    reported: bool = False  # the API server has acknowledged it in volumesInUse
    managed: bool = True  # the attach/detach controller attaches what this node needs
    attached: bool = False  # node.status.volumesAttached lists it
    settled: bool = True
    growing: str = ""  # the pod through whose mount it is to be expanded
    mislabelled: bool = False  # it is mounted with another SELinux label than those who want it now need


class ReportInUse(Struct, frozen=True):
    """Write volumesInUse; the plan goes on when the API server has acknowledged it."""


class MountDevice(Struct, frozen=True):
    pod: str  # on whose behalf: it gets the events


class MountVolume(Struct, frozen=True):
    pod: str


class RejectMount(Struct, frozen=True):
    """A mount that must fail without a call to the driver."""

    pod: str
    why: str
    attach: bool = False  # what fails is the attaching


class ExpandInUseVolume(Struct, frozen=True):
    """The disk has grown; what the pod has mounted follows."""

    pod: str


class UnmountVolume(Struct, frozen=True):
    pod: str


class UnmountDevice(Struct, frozen=True):
    pass


class ForgetNodeVolume(Struct, frozen=True):
    """Nothing is left of it: it leaves volumesInUse, and the controller may detach it."""


VolumeStep = (
    ReportInUse
    | MountDevice
    | MountVolume
    | RejectMount
    | ExpandInUseVolume
    | UnmountVolume
    | UnmountDevice
    | ForgetNodeVolume
    | Wait
)


def plan(volume: NodeVolumeView) -> Iterator[VolumeStep]:
    # Unmounts first: a mount of the same volume never overlaps them.
    unwanted = [pod for pod in volume.pods if pod not in volume.wanted]
    leaving = [pod for pod in unwanted if pod not in volume.kept]
    if leaving and not volume.settled:
        yield Wait(WaitReason.PODS_NOT_KNOWN)
    elif leaving:
        yield from map(UnmountVolume, leaving)
    if volume.growing:
        yield ExpandInUseVolume(volume.growing)
    if volume.wanted and volume.mislabelled:
        yield from _relabel(volume)
    elif volume.wanted:
        yield from _mount(volume, leaving)
    elif unwanted and not leaving:
        yield Wait(WaitReason.CONTAINERS_RUNNING)
    elif not unwanted and volume.settled:
        yield ForgetNodeVolume() if volume.device is MountState.ABSENT else UnmountDevice()


def _relabel(volume: NodeVolumeView) -> Iterator[VolumeStep]:
    """A label is of the whole mount: the volume goes from the node altogether before it comes again."""
    if volume.pods or not volume.settled:
        yield Wait(WaitReason.SELINUX_RELABEL, WaitData(volume=volume.name))
    else:
        yield UnmountDevice()


def _mount(volume: NodeVolumeView, leaving: list[str]) -> Iterator[VolumeStep]:
    todo = [
        pod
        for pod in volume.wanted
        if volume.pods.get(pod, MountState.ABSENT) is not MountState.MOUNTED or pod in volume.stale
    ]
    if not todo:
        return
    if volume.attachable and not volume.managed:
        for pod in todo:
            yield RejectMount(pod, UNMANAGED, attach=True)
        return
    if volume.attachable and not volume.reported:
        yield ReportInUse()
        return
    if volume.attachable and not volume.attached:
        yield Wait(WaitReason.NOT_ATTACHED)
        return
    allowed, refused = _admit(volume, todo, leaving)
    if allowed and volume.staged and volume.device is not MountState.MOUNTED:
        yield MountDevice(allowed[0])
    yield from map(MountVolume, allowed)
    for pod in refused:
        yield RejectMount(
            pod, "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
        )


def _admit(volume: NodeVolumeView, todo: list[str], leaving: list[str]) -> tuple[list[str], list[str]]:
    """Of a ReadWriteOncePod volume only one pod may hold it, mounted or uncertain."""
    if not volume.one_pod:
        return todo, []
    holder = next(iter(volume.pods), todo[0])
    return [p for p in todo if p == holder and not leaving], [p for p in todo if p != holder]


def after_mount(state: MountState, outcome: MountOutcome, *, reconstructed: bool) -> MountState:
    """A stage or publish call came back: what is there now?"""
    match outcome:
        case MountOutcome.DONE:
            return MountState.MOUNTED
        case MountOutcome.UNCERTAIN:
            # A failing republish changes nothing for a pod that runs on the earlier mount.
            return MountState.MOUNTED if state is MountState.MOUNTED else MountState.UNCERTAIN
        case MountOutcome.FINAL:
            # What an earlier life mounted is still there, whatever this call was refused for.
            undone = state is MountState.UNCERTAIN and not reconstructed
            return MountState.ABSENT if undone else state
        case MountOutcome.TRANSIENT:
            return state


def after_unmount(outcome: MountOutcome) -> MountState:
    """Only OK proves that an unpublish or unstage has happened; any error is tried again."""
    return MountState.ABSENT if outcome is MountOutcome.DONE else MountState.UNCERTAIN
