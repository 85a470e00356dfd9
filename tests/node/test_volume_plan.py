"""Situations of a volume on a node, and the steps they call for."""

from __future__ import annotations

import pytest

from volplane.node.volume_manager.plan import (
    NOT_MANAGED,
    AttachState,
    AttachVolume,
    DetachVolume,
    ExpandInUseVolume,
    ForgetNodeVolume,
    MountDevice,
    MountOutcome,
    MountState,
    MountVolume,
    NodeVolumeView,
    Operation,
    OperationBackoff,
    RejectMount,
    UnmountDevice,
    UnmountVolume,
    VolumeStep,
    after_mount,
    after_unmount,
    plan,
)
from volplane.rules.waits import Wait, WaitData, WaitReason

ABSENT, MOUNTED, UNCERTAIN = MountState.ABSENT, MountState.MOUNTED, MountState.UNCERTAIN
DISK = {"name": "disk", "has_device": True, "attachable": True}
READY = {**DISK, "reported_in_use": True, "attached": True}
OWN = {**DISK, "controller_manages_attach": False, "kubelet_attaches": True}
ATTACHED = AttachState.ATTACHED
NOT_REPORTED = Wait(WaitReason.VOLUMES_IN_USE)
OTHER_LABEL = Wait(WaitReason.SELINUX_RELABEL, WaitData(volume="disk"))


def volume(**fields: object) -> NodeVolumeView:
    return NodeVolumeView(**fields)  # type: ignore[arg-type]


CASES = {
    "a wanted disk is reported in use first": (volume(**DISK, desired_pods=("a",)), [NOT_REPORTED]),
    "a reported disk waits until it is attached": (
        volume(**DISK, desired_pods=("a",), reported_in_use=True),
        [Wait(WaitReason.NOT_ATTACHED)],
    ),
    "an attached disk that is not reported is not staged": (
        volume(**DISK, desired_pods=("a",), attached=True),
        [NOT_REPORTED],
    ),
    "an attached and reported disk is staged, then published": (
        volume(**READY, desired_pods=("a",)),
        [MountDevice("a"), MountVolume("a")],
    ),
    "two pods share one stage": (
        volume(**READY, desired_pods=("a", "b")),
        [MountDevice("a"), MountVolume("a"), MountVolume("b")],
    ),
    "the second pod only publishes": (
        volume(**READY, desired_pods=("a", "b"), device=MOUNTED, mounts={"a": MOUNTED}),
        [MountVolume("b")],
    ),
    "another SELinux label waits for the pod that has it mounted": (
        volume(
            **READY,
            desired_pods=("b",),
            mounts={"a": MOUNTED},
            running_pods=frozenset("a"),
            device=MOUNTED,
            relabel=True,
        ),
        [OTHER_LABEL],
    ),
    "another SELinux label waits for the pod that leaves": (
        volume(**READY, desired_pods=("b",), mounts={"a": MOUNTED}, device=MOUNTED, relabel=True),
        [UnmountVolume("a"), OTHER_LABEL],
    ),
    "another SELinux label needs the device anew": (
        volume(**READY, desired_pods=("b",), device=MOUNTED, relabel=True),
        [UnmountDevice()],
    ),
    "nothing is unstaged for another SELinux label before the pods are known": (
        volume(**READY, desired_pods=("b",), device=UNCERTAIN, relabel=True, ready_to_unmount=False),
        [OTHER_LABEL],
    ),
    "all mounted is rest": (volume(**READY, desired_pods=("a",), device=MOUNTED, mounts={"a": MOUNTED}), []),
    "uncertain after a restart is staged and published again": (
        volume(**READY, desired_pods=("a",), device=UNCERTAIN, mounts={"a": UNCERTAIN}),
        [MountDevice("a"), MountVolume("a")],
    ),
    "stale content is published again without staging": (
        volume(
            **READY, desired_pods=("a",), device=MOUNTED, mounts={"a": MOUNTED}, remount_pods=frozenset("a")
        ),
        [MountVolume("a")],
    ),
    "a pod that left is unpublished, the device stays": (
        volume(**READY, desired_pods=("b",), device=MOUNTED, mounts={"a": MOUNTED, "b": MOUNTED}),
        [UnmountVolume("a")],
    ),
    "two pods leave side by side": (
        volume(**READY, device=MOUNTED, mounts={"a": MOUNTED, "b": UNCERTAIN}),
        [UnmountVolume("a"), UnmountVolume("b")],
    ),
    "the device is unstaged after the last pod": (volume(**READY, device=MOUNTED), [UnmountDevice()]),
    "an uncertain device is unstaged too": (volume(**READY, device=UNCERTAIN), [UnmountDevice()]),
    "nothing left is forgotten": (volume(**READY), [ForgetNodeVolume()]),
    "nothing is unmounted before the pods are known": (
        volume(**READY, device=UNCERTAIN, mounts={"a": UNCERTAIN}, ready_to_unmount=False),
        [Wait(WaitReason.PODS_NOT_KNOWN)],
    ),
    "nothing is unstaged or forgotten before the pods are known": (
        volume(**READY, device=UNCERTAIN, ready_to_unmount=False),
        [],
    ),
    "mounting goes on before the pods are known": (
        volume(
            **READY, desired_pods=("a",), device=UNCERTAIN, mounts={"a": UNCERTAIN}, ready_to_unmount=False
        ),
        [MountDevice("a"), MountVolume("a")],
    ),
    "a living pod keeps what it has mounted though it has not said what it wants": (
        volume(**READY, device=UNCERTAIN, mounts={"a": UNCERTAIN}, running_pods=frozenset("a")),
        [Wait(WaitReason.CONTAINERS_RUNNING)],
    ),
    "a volume without a device is only published": (
        volume(name="x", desired_pods=("a",)),
        [MountVolume("a")],
    ),
    "a driver without attach is staged at once": (
        volume(name="x", desired_pods=("a",), has_device=True),
        [MountDevice("a"), MountVolume("a")],
    ),
    "a disk that has grown is expanded through a pod that has it": (
        volume(**READY, desired_pods=("a",), device=MOUNTED, mounts={"a": MOUNTED}, expand_through="a"),
        [ExpandInUseVolume("a")],
    ),
    "a pod that waits does not keep the others' disk small": (
        volume(**READY, desired_pods=("a", "b"), device=MOUNTED, mounts={"a": MOUNTED}, expand_through="a"),
        [ExpandInUseVolume("a"), MountVolume("b")],
    ),
    "a device that was mounted before its disk grew is mounted anew for the next pod": (
        volume(**READY, desired_pods=("a",), device=MOUNTED, device_outdated=True),
        [UnmountDevice()],
    ),
    "a device that was mounted before its disk grew stays while a pod has it": (
        volume(
            **READY,
            desired_pods=("a", "b"),
            device=MOUNTED,
            mounts={"a": MOUNTED},
            device_outdated=True,
            expand_through="a",
        ),
        [ExpandInUseVolume("a"), MountVolume("b")],
    ),
    "a failed mount keeps all pods of the volume waiting": (
        volume(
            **READY,
            desired_pods=("a", "b"),
            backoffs=(OperationBackoff(Operation.MOUNT, "", 1.0, "mount failed"),),
        ),
        ["mount failed"],
    ),
    "a failed unmount keeps no other pod's unmount waiting, nor a mount": (
        volume(
            **READY,
            desired_pods=("c",),
            device=MOUNTED,
            mounts={"a": MOUNTED, "b": MOUNTED},
            backoffs=(OperationBackoff(Operation.UNMOUNT, "a", 1.0, "unmount failed"),),
        ),
        ["unmount failed", UnmountVolume("b"), MountVolume("c")],
    ),
    "a failed expansion keeps no mount waiting": (
        volume(
            **READY,
            desired_pods=("a", "b"),
            device=MOUNTED,
            mounts={"a": MOUNTED},
            expand_through="a",
            backoffs=(OperationBackoff(Operation.EXPAND, "", 1.0, "not now"),),
        ),
        ["not now", MountVolume("b")],
    ),
    "a device whose unmount failed waits for its backoff": (
        volume(
            **READY,
            device=UNCERTAIN,
            backoffs=(OperationBackoff(Operation.UNMOUNT_DEVICE, "", 1.0, "busy"),),
        ),
        ["busy"],
    ),
    "a node that attaches for itself cannot have a CSI volume attached": (
        volume(**DISK, desired_pods=("a",), controller_manages_attach=False),
        [RejectMount("a", NOT_MANAGED, attach=True)],
    ),
    "a node that attaches for itself attaches before it mounts": (
        volume(**OWN, desired_pods=("a", "b")),
        [AttachVolume("a"), MountDevice("a"), MountVolume("a"), MountVolume("b")],
    ),
    "an attach whose outcome is not known is repeated": (
        volume(**OWN, desired_pods=("a",), attachment=AttachState.UNCERTAIN, device=MOUNTED),
        [AttachVolume("a"), MountVolume("a")],
    ),
    "a volume that the node has attached is mounted": (
        volume(**OWN, desired_pods=("a",), attachment=ATTACHED),
        [MountDevice("a"), MountVolume("a")],
    ),
    "an attach that failed waits for its backoff, and the mount for it": (
        volume(
            **OWN,
            desired_pods=("a",),
            backoffs=(OperationBackoff(Operation.ATTACH, "", 1.0, "no slot"),),
        ),
        ["no slot"],
    ),
    "what the node has attached is unmounted before it is detached": (
        volume(**OWN, attachment=ATTACHED, device=MOUNTED),
        [UnmountDevice()],
    ),
    "what the node has attached is detached before it is forgotten": (
        volume(**OWN, attachment=AttachState.UNCERTAIN),
        [DetachVolume()],
    ),
    "a detach that failed waits for its backoff": (
        volume(**OWN, attachment=ATTACHED, backoffs=(OperationBackoff(Operation.DETACH, "", 1.0, "in use"),)),
        ["in use"],
    ),
    "what the node has detached is forgotten": (volume(**OWN), [ForgetNodeVolume()]),
    "without attach it does not matter who attaches": (
        volume(name="x", desired_pods=("a",), has_device=True, controller_manages_attach=False),
        [MountDevice("a"), MountVolume("a")],
    ),
    "ReadWriteOncePod refuses the second pod": (
        volume(**READY, desired_pods=("a", "b"), single_pod=True, device=MOUNTED, mounts={"a": UNCERTAIN}),
        [
            MountVolume("a"),
            RejectMount(
                "b", "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
            ),
        ],
    ),
    "ReadWriteOncePod waits for the first pod to leave": (
        volume(**READY, desired_pods=("b",), single_pod=True, device=MOUNTED, mounts={"a": MOUNTED}),
        [
            UnmountVolume("a"),
            RejectMount(
                "b", "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
            ),
        ],
    ),
}


@pytest.mark.parametrize(("seen", "steps"), CASES.values(), ids=CASES)
def test_plan(seen: NodeVolumeView, steps: list[VolumeStep | Wait | str]) -> None:
    """A text stands for the wait after an operation that failed with it."""
    found = [s.message if isinstance(s, Wait) and s.reason is WaitReason.RETRY else s for s in plan(seen)]
    assert found == steps


MOUNTS = [
    (ABSENT, MountOutcome.DONE, False, MOUNTED),
    (ABSENT, MountOutcome.UNCERTAIN, False, UNCERTAIN),
    (ABSENT, MountOutcome.FINAL, False, ABSENT),
    (ABSENT, MountOutcome.TRANSIENT, False, ABSENT),
    (UNCERTAIN, MountOutcome.DONE, True, MOUNTED),
    (UNCERTAIN, MountOutcome.UNCERTAIN, False, UNCERTAIN),
    (UNCERTAIN, MountOutcome.FINAL, False, ABSENT),
    (UNCERTAIN, MountOutcome.FINAL, True, UNCERTAIN),
    (UNCERTAIN, MountOutcome.TRANSIENT, True, UNCERTAIN),
    (MOUNTED, MountOutcome.UNCERTAIN, False, MOUNTED),
    (MOUNTED, MountOutcome.FINAL, False, MOUNTED),
    (MOUNTED, MountOutcome.TRANSIENT, False, MOUNTED),
]


@pytest.mark.parametrize(("state", "outcome", "reconstructed", "then"), MOUNTS)
def test_after_a_mount_call(
    state: MountState, outcome: MountOutcome, reconstructed: bool, then: MountState
) -> None:
    assert after_mount(state, outcome, reconstructed=reconstructed) is then


@pytest.mark.parametrize(
    ("outcome", "then"),
    [
        (MountOutcome.DONE, ABSENT),
        (MountOutcome.FINAL, UNCERTAIN),
        (MountOutcome.UNCERTAIN, UNCERTAIN),
        (MountOutcome.TRANSIENT, MOUNTED),
    ],
)
def test_only_success_ends_an_unmount(outcome: MountOutcome, then: MountState) -> None:
    assert after_unmount(MOUNTED, outcome) is then


def test_a_wait_for_backoff_tells_the_error_and_when_it_ends() -> None:
    backoffs = (OperationBackoff(Operation.MOUNT, "", 1.5, "no"),)
    (wait,) = plan(volume(**READY, desired_pods=("a",), backoffs=backoffs))
    data = WaitData(names=("volume_mount",))
    assert wait == Wait(WaitReason.RETRY, data, 1.5, message="no")
