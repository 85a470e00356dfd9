"""A snapshot that is not taken: its class, its claim, or its driver."""

from __future__ import annotations

from typing import Any

import pytest

from tests.explain.explain_objects import DRIVER, at, bound_pair, change, explain_first, report, waiting
from volplane.api import codec
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent

CLASS = codec.convert(VolumeSnapshotClass, {"metadata": {"name": "fast"}, "driver": DRIVER})


def snapshot(**status: Any) -> VolumeSnapshot:
    whole = {
        "metadata": {"name": "snap", "namespace": "default", "uid": "u", "creationTimestamp": at(60)},
        "spec": {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "fast"},
        **({"status": status} if status else {}),
    }
    return codec.convert(VolumeSnapshot, whole)


def content(**status: Any) -> VolumeSnapshotContent:
    ref = {"kind": "VolumeSnapshot", "namespace": "default", "name": "snap", "uid": "u"}
    spec = {
        "volumeSnapshotRef": ref,
        "driver": DRIVER,
        "source": {"volumeHandle": "vol-pv"},
        "volumeSnapshotClassName": "fast",
    }
    whole = {"metadata": {"name": "snapcontent-u"}, "spec": spec, "status": status}
    return codec.convert(VolumeSnapshotContent, whole)


async def test_a_class_that_does_not_exist() -> None:
    answer = await explain_first(snapshot(), *bound_pair("data", "pv"))
    assert answer.answer.endswith('volumesnapshotclass.snapshot.storage.k8s.io "fast" not found')


async def test_the_controller_has_not_begun() -> None:
    answer = await explain_first(snapshot(), CLASS, *bound_pair("data", "pv"))
    assert answer.answer.startswith("the controller has not created the VolumeSnapshotContent")


@pytest.mark.parametrize("by_role", [False, True])
async def test_the_driver_says_why_it_takes_none(by_role: bool) -> None:
    failed = content(error={"message": "rpc error: too many", "time": at(2)}, readyToUse=False)
    roles = [report("csi-snapshotter", "snapcontent-u", "rpc error: too many", left=9)] if by_role else None
    answer = await explain_first(snapshot(), CLASS, failed, *bound_pair("data", "pv"), roles=roles)
    assert answer.answer == "rpc error: too many"
    assert (waiting(answer).until is not None) is by_role


async def test_one_that_is_ready_waits_for_nothing() -> None:
    ready = {"readyToUse": True, "boundVolumeSnapshotContentName": "snapcontent-u", "restoreSize": "1Gi"}
    answer = await explain_first(
        snapshot(**ready), CLASS, content(readyToUse=True), *bound_pair("data", "pv")
    )
    assert (answer.waits, answer.answer) == (False, "ready to use, 1Gi")


async def test_the_snapshotters_own_plan_says_what_it_needs() -> None:
    older = change(content(), spec={"volumeSnapshotClassName": None})
    answer = await explain_first(snapshot(), CLASS, older, *bound_pair("data", "pv"))
    assert answer.answer.endswith('without a snapshot class"')
    assert waiting(answer).reason == "SnapshotImpossible"
