"""Desired and actual state of the volumes on this node.

`DesiredVolume` is an entry of the DesiredStateOfWorld: the pods that need a volume. `ActualVolume` is an
entry of the ActualStateOfWorld: what is mounted, or may be. Both are halves of one immutable
`NodeVolumeState`. Only `reducer.reduce` makes a new one from an old one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from volplane.api.core import PersistentVolume
from volplane.node.volume_manager.expansion import ExpansionTarget
from volplane.node.volume_manager.plan import (
    AttachState,
    AttachVolume,
    DetachVolume,
    ExpandInUseVolume,
    MountDevice,
    MountState,
    MountVolume,
    NodeVolumeView,
    Operation,
    OperationBackoff,
    RejectMount,
    UnmountDevice,
    UnmountVolume,
)
from volplane.rules import access
from volplane.volumes.base import PodVolumeRef, PodVolumeSpec

VolumeOperation = (
    AttachVolume
    | MountDevice
    | MountVolume
    | RejectMount
    | ExpandInUseVolume
    | UnmountVolume
    | UnmountDevice
    | DetachVolume
)


class DesiredVolume(Struct, frozen=True):
    """The pods that need a volume, in the order in which they are served."""

    pods: Mapping[str, PodVolumeSpec] = {}  # by uid
    remount_pods: frozenset[str] = frozenset()  # pods whose mounts must be published again
    expansion: ExpansionTarget | None = None


class PodMount(Struct, frozen=True):
    """One pod's mount that exists, or may exist."""

    ref: PodVolumeRef
    state: MountState = MountState.ABSENT
    reconstructed: bool = False  # found on disk after a restart


class ActualVolume(Struct, frozen=True):
    """What is mounted of a volume, or may be."""

    device: MountState = MountState.ABSENT
    device_reconstructed: bool = False  # found on disk after a restart
    device_expansion: ExpansionTarget | None = None  # the expansion that was pending at its last mount
    mounts: Mapping[str, PodMount] = {}  # by the pod's uid
    selinux_label: str = ""  # of the last mount
    size: int = 0  # bytes, as far as this node knows
    refuses_expansion_in_use: bool = False  # its driver expands only volumes that no pod uses
    attachment_verified: bool = False  # a live read of the Node has confirmed volumesAttached
    attachment: AttachState = AttachState.DETACHED  # by the kubelet, where no controller attaches it
    device_path: str = ""  # where it is attached, if its driver reports it

    @property
    def is_present(self) -> bool:
        return self.device is not MountState.ABSENT or bool(self.mounts)

    @property
    def is_attached_by_kubelet(self) -> bool:
        """Attached, or perhaps."""
        return self.attachment is not AttachState.DETACHED


class OperationFailure(Struct, frozen=True):
    error: str
    delay: float
    until: float  # on the loop's clock


class NodeVolumeState(Struct, frozen=True):
    """One volume on this node, from the first pod that needs it until nothing of it is left."""

    unique_name: str
    plugin: str
    name: str = ""  # of the persistent volume, where that is known
    attachable: bool = False
    has_device: bool = False  # it is mounted globally before it is mounted for pods
    desired: DesiredVolume = DesiredVolume()
    actual: ActualVolume = ActualVolume()
    # By operation and pod. A pod "" stands for all pods.
    failures: Mapping[tuple[Operation, str], OperationFailure] = {}

    def is_mounted(self, pod: str) -> bool:
        mount = self.actual.mounts.get(pod)
        return mount is not None and mount.state is MountState.MOUNTED

    def concerns(self, pod: str) -> bool:
        return pod in self.desired.pods or pod in self.actual.mounts

    @property
    def is_only_staged(self) -> bool:
        """The device was found on disk after a restart; no pod has it mounted or is known to need it."""
        return self.actual.device_reconstructed and not self.actual.mounts and not self.desired.pods

    @property
    def awaits_first_unstage(self) -> bool:
        """No pod has or needs it, and no call to unstage it has ended yet.

        Only of volumes that are not attached: no detach waits until they are unstaged.
        """
        return (
            not self.attachable
            and not self.desired.pods
            and not self.actual.mounts
            and self.actual.device is not MountState.ABSENT
            and (Operation.UNMOUNT_DEVICE, "") not in self.failures
        )

    def fit_selinux_label(self, spec: PodVolumeSpec) -> tuple[PodVolumeSpec, str]:
        """The spec with the SELinux label to mount it with, and its conflict with other pods, else ""."""
        if spec.pod.uid in self.actual.mounts:  # a label is not changed while containers run
            spec = replace(spec, selinux_label=self.actual.selinux_label)
        labels = (other.selinux_label for other in self.desired.pods.values())
        other_label = next((label for label in labels if label != spec.selinux_label), None)
        if other_label is None:
            return spec, ""
        labels_text = f'"{other_label}" and "{spec.selinux_label}"'
        return spec, f"conflicting SELinux labels of volume {spec.name}: {labels_text}"


class DesiredStateOfWorld(Struct, frozen=True):
    """What the pods of this node need, by the volume's unique name."""

    volumes: Mapping[str, DesiredVolume]


class ActualStateOfWorld(Struct, frozen=True):
    """What is mounted on this node, or may be, by the volume's unique name."""

    volumes: Mapping[str, ActualVolume]


# --- failed operations


def operation_key(state: NodeVolumeState, step: VolumeOperation) -> tuple[Operation, str]:
    """The kind of operation, and the pod whose backoff it has: "" for a backoff of all pods."""
    match step:
        case AttachVolume():
            return Operation.ATTACH, ""
        case DetachVolume():
            return Operation.DETACH, ""
        case MountDevice(pod) | MountVolume(pod) | RejectMount(pod):
            return Operation.MOUNT, "" if state.attachable or state.has_device else pod
        case ExpandInUseVolume():
            return Operation.EXPAND, ""
        case UnmountVolume(pod):
            return Operation.UNMOUNT, pod
        case UnmountDevice():
            return Operation.UNMOUNT_DEVICE, ""
    assert_never(step)


def find_failure(state: NodeVolumeState, operation: Operation, pod: str) -> OperationFailure | None:
    """The last failure of this operation for the pod, or for all pods."""
    for (failed, of), failure in state.failures.items():
        if failed is operation and pods_overlap(of, pod):
            return failure
    return None


def pods_overlap(pod: str, other: str) -> bool:
    return not pod or not other or pod == other


# --- the view


def view_volume(
    state: NodeVolumeState,
    *,
    reported_in_use: bool,
    attached: bool,
    controller_manages_attach: bool,
    plugin_attaches: bool,
    ready_to_unmount: bool,
    running_pods: Container[str],
    now: float,
) -> NodeVolumeView:
    desired, actual = state.desired, state.actual
    labels = {spec.selinux_label for spec in desired.pods.values()}
    device_outdated = (
        desired.expansion is not None
        and actual.device is not MountState.ABSENT
        and actual.device_expansion != desired.expansion
    )
    return NodeVolumeView(
        name=state.unique_name,
        desired_pods=tuple(desired.pods),
        mounts={uid: mount.state for uid, mount in actual.mounts.items()},
        running_pods=frozenset(uid for uid in actual.mounts if uid in running_pods),
        remount_pods=desired.remount_pods,
        device=actual.device,
        has_device=state.has_device,
        attachable=state.attachable,
        single_pod=any(_is_for_one_pod(spec.volume) for spec in desired.pods.values()),
        reported_in_use=reported_in_use,
        controller_manages_attach=controller_manages_attach,
        attached=attached,
        kubelet_attaches=plugin_attaches and not controller_manages_attach,
        attachment=actual.attachment,
        ready_to_unmount=ready_to_unmount,
        expand_through=_find_expandable_pod(state),
        relabel=actual.is_present and bool(labels - {actual.selinux_label}),
        device_outdated=device_outdated,
        backoffs=tuple(
            OperationBackoff(operation, pod, failure.until - now, failure.error)
            for (operation, pod), failure in state.failures.items()
            if failure.until > now
        ),
    )


def _find_expandable_pod(state: NodeVolumeState) -> str:
    if state.desired.expansion is None:
        return ""
    pods = state.desired.pods.items()
    return next((uid for uid, spec in pods if state.is_mounted(uid) and not spec.readonly), "")


def _is_for_one_pod(volume: PersistentVolume | None) -> bool:
    return volume is not None and volume.spec.access_modes == (access.ONCE_POD,)
