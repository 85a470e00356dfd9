"""What pods need beside what is mounted on a node, and the step between the two; and how both are counted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.test_volume_state import added, after, ended, mounted, pod, spec
from volplane.api.codec import convert
from volplane.api.core import PersistentVolume, Volume
from volplane.node.volume_manager.plan import MountDevice, MountOutcome, MountVolume, UnmountVolume, plan
from volplane.node.volume_manager.reducer import DeviceFound, MountFound, MountStarted, PodAdded, PodRemoved
from volplane.node.volume_manager.state import NodeVolumeState, view_volume
from volplane.node.volume_manager.state_comparison import compare, compare_unresolved, find_plugin
from volplane.node.volume_manager.volume_counts import count_volumes
from volplane.volumes.base import PodVolumeRef, PodVolumeSpec, StagedVolumeRef

FINAL, LOST = MountOutcome.FINAL, MountOutcome.UNCERTAIN
EBS = "kubernetes.io/csi:ebs.csi.aws.com"
UNIQUE = "kubernetes.io/csi/ebs.csi.aws.com^vol-1"


async def describe(state: NodeVolumeState, **more: Any) -> list[str]:
    seen: dict[str, Any] = {
        "reported_in_use": True,
        "attached": True,
        "controller_manages_attach": True,
        "plugin_attaches": False,
        "ready_to_unmount": True,
        "running_pods": (),
        "now": 100.0,
    }
    view = view_volume(state, **{**seen, **more})
    return [
        f"{','.join(row.pods) or '-'}: {row.desired or '-'} | {row.actual or '-'} | "
        f"{row.pending.text if row.pending else '-'}"
        for row in compare("worker-1", state, view, plan(view))
    ]


FRESH = after(added("a"))
STAGED = after(added("a"), ended(MountDevice("a")))
CASES: dict[str, tuple[NodeVolumeState, dict[str, Any], list[str]]] = {
    "not attached": (
        FRESH,
        {"attached": False},
        [
            "default/a: mounted | - | not attached yet: node.status.volumesAttached does not list it",
        ],
    ),
    "attached": (FRESH, {}, ["default/a: mounted | attached | mount the device"]),
    "staged": (STAGED, {}, ["default/a: mounted | device mounted | mount it for the pod"]),
    "mounted": (mounted("a"), {}, ["default/a: mounted | mounted | -"]),
    "mount uncertain": (
        after(MountStarted(spec("a")), ended(MountVolume("a"), LOST), state=STAGED),
        {"now": 1000.0},
        ["default/a: mounted | mount uncertain | mount it for the pod"],
    ),
    "a mount that failed": (
        after(ended(MountDevice("a"), FINAL), state=FRESH),
        {},
        ["default/a: mounted | attached | no"],
    ),
    "one pod has it, another does not": (
        after(added("b"), state=mounted("a")),
        {},
        ["default/a: mounted | mounted | -", "default/b: mounted | device mounted | mount it for the pod"],
    ),
    "one pod has it, the other's mount has failed": (
        after(added("b"), ended(MountVolume("b"), FINAL), state=mounted("a")),
        {},
        ["default/a: mounted | mounted | -", "default/b: mounted | device mounted | no"],
    ),
    "the pod is gone": (
        after(PodRemoved("a"), state=mounted("a")),
        {},
        ["default/a: - | mounted | unmount it for the pod"],
    ),
    "the pod's containers run": (
        after(PodRemoved("a"), state=mounted("a")),
        {"running_pods": ("a",)},
        ["default/a: - | mounted | a pod that has the volume mounted is still running"],
    ),
    "an unmount that failed": (
        after(PodRemoved("a"), ended(UnmountVolume("a"), FINAL), state=mounted("a")),
        {},
        ["default/a: - | mount uncertain | no"],
    ),
    "only the device is left": (
        after(PodRemoved("a"), ended(UnmountVolume("a")), state=mounted("a")),
        {},
        ["-: - | device mounted | unmount the device"],
    ),
    "nothing is left": (
        after(PodRemoved("a"), state=FRESH),
        {"attached": False},
        ["-: - | - | remove it from volumesInUse"],
    ),
    "found on disk": (
        after(MountFound(PodVolumeRef("csi", "v", "pv", "uid-9"), attachable=True)),
        {"ready_to_unmount": False},
        ["uid-9: - | mount uncertain | nothing is unmounted until all pods of this node are known"],
    ),
}


@pytest.mark.parametrize(("state", "seen", "lines"), CASES.values(), ids=CASES)
async def test_the_states_of_a_volume(state: NodeVolumeState, seen: dict[str, Any], lines: list[str]) -> None:
    assert await describe(state, **seen) == lines


def test_a_volume_that_is_not_known_yet_has_its_problem() -> None:
    (row,) = compare_unresolved("worker-1", "default/a", [("data", "PVC is not bound")])
    assert (row.name, row.pods, row.desired, row.actual) == ("data", ("default/a",), "mounted", "")
    assert row.pending is not None
    assert row.pending.text == "PVC is not bound"


# --- plugins and counts


def of_driver(uid: str) -> PodAdded:
    body = {"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}}
    volume = convert(PersistentVolume, {"metadata": {"name": "pv"}, "spec": body})
    given = PodVolumeSpec("kubernetes.io/csi", UNIQUE, "pv", pod(uid), Volume(name="data"), volume=volume)
    return PodAdded(given, attachable=True, has_device=True)


def inline(uid: str, source: dict[str, Any], plugin: str) -> PodAdded:
    given = PodVolumeSpec(
        plugin, f"{plugin}/{uid}-data", "data", pod(uid), convert(Volume, {"name": "data", **source})
    )
    return PodAdded(given, attachable=False, has_device=False)


@pytest.mark.parametrize(
    ("state", "plugin"),
    [
        (after(of_driver("a")), EBS),
        (
            after(inline("a", {"csi": {"driver": "x.example.com"}}, "kubernetes.io/csi")),
            f"{EBS[:17]}:x.example.com",
        ),
        (after(inline("a", {"emptyDir": {}}, "kubernetes.io/empty-dir")), "kubernetes.io/empty-dir"),
        (after(DeviceFound(StagedVolumeRef("kubernetes.io/csi:block", UNIQUE), attachable=True)), EBS),
        (
            after(
                MountFound(
                    PodVolumeRef("example.com/disks", "example.com/disks/v", "v", "u"), attachable=True
                )
            ),
            "example.com/disks",
        ),
    ],
    ids=["persistent volume", "inline CSI", "built-in", "found on disk", "FlexVolume found on disk"],
)
def test_the_plugin_is_named_with_its_driver(state: NodeVolumeState, plugin: str) -> None:
    assert find_plugin(state) == plugin


def test_volumes_count_once_for_each_pod() -> None:
    states = [
        after(of_driver("a"), of_driver("b")),
        mounted("a", "b"),
        after(PodRemoved("a"), state=mounted("a")),
    ]
    assert count_volumes(states) == {
        (EBS, "desired_state_of_world"): 2,
        ("csi", "desired_state_of_world"): 2,
        ("csi", "actual_state_of_world"): 3,
    }
