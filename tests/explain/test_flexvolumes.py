"""Why a FlexVolume waits: no driver, attach, mount, expansion; and volumes that nobody expands."""

from __future__ import annotations

from typing import Any

import pytest

from tests.explain.explain_objects import (
    at,
    bound_pair,
    change,
    event,
    explain_first,
    node,
    pod,
    report,
    waiting,
)
from volplane.api import codec, names
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.rules.waits import Wait, WaitData, WaitReason

DRIVER = "example.com/disks"
KEY = f"{DRIVER}/pv"
ROLE = "persistentvolume-attach-detach-controller"
CALLER = "flexvolume-attachment-controller"
MISSING = f"FlexVolume driver {DRIVER} was not found at /exec/example.com~disks/disks"


def flex_pair() -> tuple[PersistentVolumeClaim, PersistentVolume]:
    claim, volume = bound_pair("data", "pv")
    return claim, change(volume, spec={"csi": None, "flexVolume": {"driver": DRIVER}})


def flex_node(*, in_use: bool = True, attached: bool = False) -> Node:
    listed = [{"name": KEY, "devicePath": "/dev/x"}] if attached else []
    return node("a", status={"volumesInUse": [KEY] if in_use else [], "volumesAttached": listed})


def flex_attachment(**more: Any) -> VolumeAttachment:
    metadata = {
        "name": names.flex_attachment_name(KEY, "a"),
        "annotations": {"flexvolume.volplane.io/volume": KEY},
        "creationTimestamp": at(60),
        **more.pop("metadata", {}),
    }
    spec = {
        "attacher": "flexvolume.volplane.io",
        "nodeName": "a",
        "source": {"persistentVolumeName": "pv"},
    }
    return codec.convert(VolumeAttachment, {"metadata": metadata, "spec": spec, "status": more})


def scheduled() -> Pod:
    return pod("web", "data", on="a")


async def test_a_driver_that_the_controller_lacks_is_named() -> None:
    wait = Wait(WaitReason.FLEX_DRIVER_MISSING, WaitData(node="a", driver=DRIVER), message=MISSING)
    answer = await explain_first(scheduled(), *flex_pair(), flex_node(), roles=[report(ROLE, KEY, wait)])
    assert answer.answer == MISSING
    assert waiting(answer).what == "attach pv to a"
    assert answer.advice == (
        f"install FlexVolume driver {DRIVER} where kube-controller-manager runs (--flex-volume-plugin-dir); "
        "it is used at once",
    )


async def test_an_attach_under_way_is_the_drivers() -> None:
    answer = await explain_first(scheduled(), *flex_pair(), flex_node(), flex_attachment(attached=False))
    assert answer.answer == f"waiting for FlexVolume driver {DRIVER} to attach the volume to a"
    assert waiting(answer).who == f"FlexVolume driver {DRIVER}"


async def test_a_failed_attach_has_the_drivers_message_and_the_next_attempt() -> None:
    error = "attach command failed, status: Failure, reason: no such disk"
    failed = flex_attachment(attached=False, attachError={"message": error})
    note = report(CALLER, failed.name, error, left=4)
    answer = await explain_first(scheduled(), *flex_pair(), flex_node(), failed, roles=[note])
    assert error in answer.answer
    assert waiting(answer).details == (f"{CALLER}: {error}", "retried in 4s")
    assert answer.advice == (
        f"check the log of kube-controller-manager for calls of FlexVolume driver {DRIVER}",
    )


async def test_a_detach_that_fails_has_the_drivers_message() -> None:
    leaving = flex_attachment(
        attached=True,
        detachError={"message": "device is busy"},
        metadata={
            "deletionTimestamp": at(5),
            "finalizers": ["flexvolume.volplane.io/attached"],
            "annotations": {"flexvolume.volplane.io/volume": KEY},
        },
    )
    answer = await explain_first(leaving, *flex_pair(), flex_node(in_use=False))
    assert (
        answer.answer == f"waiting for FlexVolume driver {DRIVER} to detach the volume from a: device is busy"
    )


async def test_a_failed_mount_has_the_kubelets_message() -> None:
    web = scheduled()
    note = event(web, "FailedMount", 'MountVolume.SetUp failed for volume "pv" : mount command failed')
    held = flex_attachment(attached=True, attachmentMetadata={"devicePath": "/dev/x"})
    answer = await explain_first(web, *flex_pair(), held, flex_node(attached=True), note)
    assert answer.answer == note.message
    assert waiting(answer).what == "stage and mount pv (mountdevice, mount)"


async def test_a_driver_that_does_not_attach_waits_only_for_its_mount() -> None:
    web = scheduled()
    note = report("node/a", f"{DRIVER}/{web.uid}-pv", "mount command failed, status: Failure, reason: full")
    answer = await explain_first(web, *flex_pair(), flex_node(in_use=False), roles=[note])
    assert answer.answer == "mount command failed, status: Failure, reason: full"


async def test_an_inline_volume_waits_for_its_attach() -> None:
    source = {"name": "scratch", "flexVolume": {"driver": DRIVER}}
    web = pod("web", on="a", spec={"volumes": [source]})
    here = node("a", status={"volumesInUse": [f"{DRIVER}/scratch"]})
    answer = await explain_first(web, here)
    assert waiting(answer).what == "attach scratch to a"
    assert answer.answer == "the controller has not created the VolumeAttachment yet"


# --- expansion


def grown(claim: PersistentVolumeClaim, **status: Any) -> PersistentVolumeClaim:
    resources = {"requests": {"storage": "2Gi"}}
    found: PersistentVolumeClaim = change(claim, spec={"resources": resources}, status=status)
    return found


async def test_an_expansion_waits_for_the_driver() -> None:
    claim, volume = flex_pair()
    answer = await explain_first(grown(claim), volume)
    assert answer.answer == f"FlexVolume driver {DRIVER} has not expanded the volume"
    claim = grown(claim)
    note = event(claim, "VolumeResizeFailed", "error expanding pvc default/data: full")
    answer = await explain_first(claim, volume, note)
    assert answer.answer.endswith("has not expanded the volume: error expanding pvc default/data: full")
    failed = report("persistentvolume-expander-controller", claim.key, "full", left=4)
    answer = await explain_first(claim, volume, roles=[failed])
    assert answer.answer.endswith("has not expanded the volume: full")


async def test_an_expansion_waits_for_the_node() -> None:
    claim, volume = flex_pair()
    claim = grown(
        claim,
        allocatedResources={"storage": "2Gi"},
        allocatedResourceStatuses={"storage": "NodeResizePending"},
    )
    answer = await explain_first(claim, change(volume, spec={"capacity": {"storage": "2Gi"}}))
    assert answer.answer == "the disk is expanded; its file system is expanded when a pod mounts the volume"
    assert f"FlexVolume driver {DRIVER}" in [step.who for step in answer.steps]


@pytest.mark.parametrize(
    ("kind", "source"),
    [("hostPath", {"path": "/x"}), ("nfs", {"server": "s", "path": "/"}), ("local", {"path": "/x"})],
)
async def test_a_type_that_nobody_expands_is_named(kind: str, source: dict[str, str]) -> None:
    claim, volume = bound_pair("data", "pv")
    answer = await explain_first(grown(claim), change(volume, spec={"csi": None, kind: source}))
    assert answer.waits
    assert answer.answer == (
        f"waiting for an external controller to expand this PVC: no volume plugin expands {kind} volumes"
    )
