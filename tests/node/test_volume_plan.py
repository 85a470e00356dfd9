"""Situations of a volume on a node, and the steps they call for."""

from __future__ import annotations

import pytest

from volplane.node.plan import (
    UNMANAGED,
    ExpandInUseVolume,
    ForgetNodeVolume,
    MountDevice,
    MountOutcome,
    MountState,
    MountVolume,
    NodeVolumeView,
    RejectMount,
    ReportInUse,
    UnmountDevice,
    UnmountVolume,
    VolumeStep,
    after_mount,
    after_unmount,
    plan,
)
from volplane.rules.waits import Wait, WaitData, WaitReason

ABSENT, MOUNTED, UNCERTAIN = MountState.ABSENT, MountState.MOUNTED, MountState.UNCERTAIN
DISK = {"name": "disk", "staged": True, "attachable": True}
READY = {**DISK, "reported": True, "attached": True}
OTHER_LABEL = Wait(WaitReason.SELINUX_RELABEL, WaitData(volume="disk"))


def volume(**fields: object) -> NodeVolumeView:
    return NodeVolumeView(**fields)  # type: ignore[arg-type]


CASES = {
    "a wanted disk is reported in use first": (volume(**DISK, wanted=("a",)), [ReportInUse()]),
    "a reported disk waits until it is attached": (
        volume(**DISK, wanted=("a",), reported=True),
        [Wait(WaitReason.NOT_ATTACHED)],
    ),
    "an attached disk that is not reported is not staged": (
        volume(**DISK, wanted=("a",), attached=True),
        [ReportInUse()],
    ),
    "an attached and reported disk is staged, then published": (
        volume(**READY, wanted=("a",)),
        [MountDevice("a"), MountVolume("a")],
    ),
    "two pods share one stage": (
        volume(**READY, wanted=("a", "b")),
        [MountDevice("a"), MountVolume("a"), MountVolume("b")],
    ),
    "the second pod only publishes": (
        volume(**READY, wanted=("a", "b"), device=MOUNTED, pods={"a": MOUNTED}),
        [MountVolume("b")],
    ),
    "another SELinux label waits for the pod that has it mounted": (
        volume(
            **READY, wanted=("b",), pods={"a": MOUNTED}, kept=frozenset("a"), device=MOUNTED, mislabelled=True
        ),
        [OTHER_LABEL],
    ),
    "another SELinux label waits for the pod that leaves": (
        volume(**READY, wanted=("b",), pods={"a": MOUNTED}, device=MOUNTED, mislabelled=True),
        [UnmountVolume("a"), OTHER_LABEL],
    ),
    "another SELinux label needs the device anew": (
        volume(**READY, wanted=("b",), device=MOUNTED, mislabelled=True),
        [UnmountDevice()],
    ),
    "nothing is unstaged for another SELinux label before the pods are known": (
        volume(**READY, wanted=("b",), device=UNCERTAIN, mislabelled=True, settled=False),
        [OTHER_LABEL],
    ),
    "all mounted is rest": (volume(**READY, wanted=("a",), device=MOUNTED, pods={"a": MOUNTED}), []),
    "uncertain after a restart is staged and published again": (
        volume(**READY, wanted=("a",), device=UNCERTAIN, pods={"a": UNCERTAIN}),
        [MountDevice("a"), MountVolume("a")],
    ),
    "stale content is published again without staging": (
        volume(**READY, wanted=("a",), device=MOUNTED, pods={"a": MOUNTED}, stale=frozenset("a")),
        [MountVolume("a")],
    ),
    "a pod that left is unpublished, the device stays": (
        volume(**READY, wanted=("b",), device=MOUNTED, pods={"a": MOUNTED, "b": MOUNTED}),
        [UnmountVolume("a")],
    ),
    "two pods leave side by side": (
        volume(**READY, device=MOUNTED, pods={"a": MOUNTED, "b": UNCERTAIN}),
        [UnmountVolume("a"), UnmountVolume("b")],
    ),
    "the device is unstaged after the last pod": (volume(**READY, device=MOUNTED), [UnmountDevice()]),
    "an uncertain device is unstaged too": (volume(**READY, device=UNCERTAIN), [UnmountDevice()]),
    "nothing left is forgotten": (volume(**READY), [ForgetNodeVolume()]),
    "nothing is unmounted before the pods are known": (
        volume(**READY, device=UNCERTAIN, pods={"a": UNCERTAIN}, settled=False),
        [Wait(WaitReason.PODS_NOT_KNOWN)],
    ),
    "nothing is unstaged or forgotten before the pods are known": (
        volume(**READY, device=UNCERTAIN, settled=False),
        [],
    ),
    "mounting goes on before the pods are known": (
        volume(**READY, wanted=("a",), device=UNCERTAIN, pods={"a": UNCERTAIN}, settled=False),
        [MountDevice("a"), MountVolume("a")],
    ),
    "a living pod keeps what it has mounted though it has not said what it wants": (
        volume(**READY, device=UNCERTAIN, pods={"a": UNCERTAIN}, kept=frozenset("a")),
        [Wait(WaitReason.CONTAINERS_RUNNING)],
    ),
    "a volume without a device is only published": (volume(name="x", wanted=("a",)), [MountVolume("a")]),
    "a driver without attach is staged at once": (
        volume(name="x", wanted=("a",), staged=True),
        [MountDevice("a"), MountVolume("a")],
    ),
    "a disk that has grown is expanded through a pod that has it": (
        volume(**READY, wanted=("a",), device=MOUNTED, pods={"a": MOUNTED}, growing="a"),
        [ExpandInUseVolume("a")],
    ),
    "a pod that waits does not keep the others' disk small": (
        volume(**READY, wanted=("a", "b"), device=MOUNTED, pods={"a": MOUNTED}, growing="a"),
        [ExpandInUseVolume("a"), MountVolume("b")],
    ),
    "a node that attaches for itself cannot have a CSI volume attached": (
        volume(**DISK, wanted=("a",), managed=False),
        [RejectMount("a", UNMANAGED, attach=True)],
    ),
    "without attach it does not matter who attaches": (
        volume(name="x", wanted=("a",), staged=True, managed=False),
        [MountDevice("a"), MountVolume("a")],
    ),
    "ReadWriteOncePod refuses the second pod": (
        volume(**READY, wanted=("a", "b"), one_pod=True, device=MOUNTED, pods={"a": UNCERTAIN}),
        [
            MountVolume("a"),
            RejectMount(
                "b", "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
            ),
        ],
    ),
    "ReadWriteOncePod waits for the first pod to leave": (
        volume(**READY, wanted=("b",), one_pod=True, device=MOUNTED, pods={"a": MOUNTED}),
        [
            UnmountVolume("a"),
            RejectMount(
                "b", "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
            ),
        ],
    ),
}


@pytest.mark.parametrize(("seen", "steps"), CASES.values(), ids=CASES)
def test_plan(seen: NodeVolumeView, steps: list[VolumeStep]) -> None:
    assert list(plan(seen)) == steps


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


@pytest.mark.parametrize("outcome", MountOutcome)
def test_only_success_ends_an_unmount(outcome: MountOutcome) -> None:
    assert after_unmount(outcome) is (ABSENT if outcome is MountOutcome.DONE else UNCERTAIN)
