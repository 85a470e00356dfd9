"""Situations of a VolumeSnapshot and the steps that follow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.waits import describe_wait
from volplane.api import codec
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from volplane.controllers.snapshot import plan as p
from volplane.controllers.snapshot.plan import SnapshotInputs, SnapshotPlanOptions
from volplane.controllers.snapshot.steps import CopyStatus, ReportError, SetFinalizers
from volplane.rules import snapshots
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait

DRIVER = "ebs.csi.aws.com"
OURS = (snapshots.AS_SOURCE, snapshots.BOUND)
READY = {"readyToUse": True, "boundVolumeSnapshotContentName": "snapcontent-u"}
TAKEN = {"snapshotHandle": "snap-1", "creationTime": 1_700_000_000_000_000_000, "restoreSize": 1 << 30}


def snapshot(
    *finalizers: str, deleting: bool = False, cls: str | None = "fast", **more: Any
) -> VolumeSnapshot:
    metadata: dict[str, Any] = {
        "name": "s",
        "namespace": "default",
        "uid": "u",
        "finalizers": list(finalizers),
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    source = more.pop("source", {"persistentVolumeClaimName": "data"})
    spec = {"source": source, "volumeSnapshotClassName": cls}
    return codec.convert(VolumeSnapshot, {"metadata": metadata, "spec": spec, **more})


def content(
    *,
    uid: str = "u",
    name: str = "snapcontent-u",
    policy: str = "Delete",
    cls: str | None = "fast",
    **more: Any,
) -> VolumeSnapshotContent:
    ref = {"namespace": "default", "name": "s", "uid": uid}
    source = more.pop("source", {"volumeHandle": "vol-1"})
    metadata = {"name": name, **more.pop("metadata", {})}
    spec = {
        "volumeSnapshotRef": ref,
        "deletionPolicy": policy,
        "driver": DRIVER,
        "source": source,
        "volumeSnapshotClassName": cls,
    }
    return codec.convert(VolumeSnapshotContent, {"metadata": metadata, "spec": spec, **more})


def claim(*finalizers: str, phase: str = "Bound", deleting: bool = False) -> PersistentVolumeClaim:
    metadata: dict[str, Any] = {
        "name": "data",
        "namespace": "default",
        "uid": "c",
        "finalizers": list(finalizers),
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    whole = {"metadata": metadata, "spec": {"volumeName": "pv"}, "status": {"phase": phase}}
    return codec.convert(PersistentVolumeClaim, whole)


def volume(*, uid: str = "c", csi: bool = True) -> PersistentVolume:
    spec: dict[str, Any] = {"claimRef": {"namespace": "default", "name": "data", "uid": uid}}
    if csi:
        spec["csi"] = {"driver": DRIVER, "volumeHandle": "vol-1"}
    return codec.convert(PersistentVolume, {"metadata": {"name": "pv"}, "spec": spec})


def snapshot_class(
    name: str = "fast", *, default: bool = False, parameters: dict[str, str] | None = None
) -> VolumeSnapshotClass:
    annotations = {snapshots.IS_DEFAULT: "true"} if default else {}
    whole = {
        "metadata": {"name": name, "annotations": annotations},
        "driver": DRIVER,
        "deletionPolicy": "Delete",
        "parameters": parameters or {},
    }
    return codec.convert(VolumeSnapshotClass, whole)


def inputs(*classes: VolumeSnapshotClass, **more: Any) -> SnapshotInputs:
    given: dict[str, Any] = {"claim": claim(), "volume": volume(), **more}
    return SnapshotInputs(classes={c.name: c for c in classes or (snapshot_class(),)}, **given)


def describe_step(step: object) -> str:
    match step:
        case Wait():
            return describe_wait(step)
        case RecordEvent(_, reason):
            return f"event {reason}"
        case ReportError(reason, _, unready, final):
            return f"ReportError {reason}" + ("" if unready else " ready") + (" final" if final else "")
        case SetFinalizers(finalizers, class_name):
            names = "+".join(f.rpartition("/")[2] for f in finalizers)
            return f"SetFinalizers {names}" + (f" class={class_name}" if class_name else "")
        case CopyStatus(status):
            return f"CopyStatus {'+'.join(sorted(status))}"
        case p.CreateContent(made):
            return f"CreateContent {made.name}"
    return type(step).__name__


SOURCE = snapshots.AS_SOURCE.rpartition("/")[2]
BOUND = snapshots.BOUND.rpartition("/")[2]
NEW = [
    "AddClaimFinalizer",
    "CreateContent snapcontent-u",
    "event CreatingSnapshot",
    "CopyStatus boundVolumeSnapshotContentName+readyToUse",
]
FIRST = [f"SetFinalizers {SOURCE}", *NEW]
HELD = claim(snapshots.CLAIM_AS_SOURCE)
FAILED = [f"SetFinalizers {SOURCE}", "ReportError SnapshotContentCreationFailed"]
GIVEN = {"volumeSnapshotContentName": "given"}
EXISTING = {"snapshotHandle": "snap-1"}
MEMBER = (snapshots.IN_GROUP,)

CASES: dict[str, tuple[VolumeSnapshot, SnapshotInputs, list[str]]] = {
    # Taken of a claim
    "new": (snapshot(), inputs(), FIRST),
    "new, the claim has the finalizer": (
        snapshot(*OURS),
        inputs(claim=HELD),
        ["CreateContent snapcontent-u", "event CreatingSnapshot", NEW[-1]],
    ),
    "its class does not exist": (
        snapshot(cls="slow"),
        inputs(),
        ["ReportError GetSnapshotClassFailed ready"],
    ),
    "the default class": (
        snapshot(cls=None),
        inputs(snapshot_class(default=True)),
        [f"SetFinalizers {SOURCE} class=fast", *NEW],
    ),
    "no default class": (
        snapshot(cls=None),
        inputs(),
        ["ReportError SetDefaultSnapshotClassFailed ready"],
    ),
    "two default classes": (
        snapshot(cls=None),
        inputs(snapshot_class(default=True), snapshot_class("other", default=True)),
        ["ReportError SetDefaultSnapshotClassFailed ready"],
    ),
    "no default class without a claim": (
        snapshot(cls=None),
        inputs(claim=None),
        ["ReportError SetDefaultSnapshotClassFailed ready"],
    ),
    "its claim does not exist": (snapshot(), inputs(claim=None), FAILED),
    "its claim is not bound": (snapshot(), inputs(claim=claim(phase="Pending")), FAILED),
    "its volume does not exist": (snapshot(), inputs(volume=None), FAILED),
    "its volume is another claim's": (snapshot(), inputs(volume=volume(uid="other")), FAILED),
    "its volume has no driver": (snapshot(), inputs(volume=volume(csi=False)), FAILED),
    "a secret that cannot be named": (
        snapshot(),
        inputs(snapshot_class(parameters={snapshots.SNAPSHOTTER.name: "key"})),
        FAILED,
    ),
    "its claim is being deleted": (snapshot(), inputs(claim=claim(deleting=True)), FAILED),
    "its content exists": (
        snapshot(),
        inputs(content=content(status={**TAKEN, "readyToUse": True})),
        [
            f"SetFinalizers {SOURCE}+{BOUND}",
            "CopyStatus boundVolumeSnapshotContentName+creationTime+readyToUse+restoreSize",
            "event SnapshotCreated",
            "event SnapshotReady",
        ],
    ),
    "its content has failed": (
        snapshot(*OURS, status={"boundVolumeSnapshotContentName": "snapcontent-u", "readyToUse": False}),
        inputs(content=content(status={"error": {"message": "no room", "time": "2026-01-01T00:00:00Z"}})),
        ["CopyStatus error"],
    ),
    "nothing new": (
        snapshot(*OURS, status={"boundVolumeSnapshotContentName": "snapcontent-u", "readyToUse": False}),
        inputs(content=content()),
        [],
    ),
    "its content is a given one": (
        snapshot(),
        inputs(content=content(source=EXISTING)),
        ["ReportError SnapshotContentMismatch"],
    ),
    "its content is another's": (
        snapshot(),
        inputs(content=content(uid="other")),
        ["ReportError SnapshotContentMisbound"],
    ),
    "its content is gone": (
        snapshot(status={"creationTime": "2026-01-01T00:00:00Z"}),
        inputs(),
        ["ReportError SnapshotContentMissing final"],
    ),
    # Given
    "given, no content": (snapshot(source=GIVEN), inputs(), ["ReportError SnapshotContentMissing"]),
    "given, taken of a claim": (
        snapshot(source=GIVEN),
        inputs(content=content()),
        ["ReportError SnapshotContentMismatch"],
    ),
    "given, for another": (
        snapshot(source=GIVEN),
        inputs(content=content(uid="other", source=EXISTING)),
        ["ReportError SnapshotContentMisbound"],
    ),
    "given, not bound yet": (
        snapshot(*OURS, source=GIVEN),
        inputs(content=content(uid="", source=EXISTING)),
        ["BindContent", "CopyStatus boundVolumeSnapshotContentName+readyToUse"],
    ),
    "given, without a class": (
        snapshot(*OURS, source=GIVEN),
        inputs(content=content(source=EXISTING, cls=None)),
        ["BindContent", "CopyStatus boundVolumeSnapshotContentName+readyToUse"],
    ),
    "given and bound": (
        snapshot(*OURS, source=GIVEN),
        inputs(content=content(source=EXISTING)),
        ["CopyStatus boundVolumeSnapshotContentName+readyToUse"],
    ),
    # Of a group
    "a member without a content": (
        snapshot(*MEMBER),
        inputs(),
        ["Wait GroupMemberWithoutContent(default/s)"],
    ),
    "a member": (
        snapshot(*MEMBER, *OURS),
        inputs(content=content(), group="g"),
        ["CopyStatus boundVolumeSnapshotContentName+readyToUse+volumeGroupSnapshotName"],
    ),
    # Ready
    "ready": (snapshot(*OURS, status=READY), inputs(content=content()), []),
    "ready, the claim is free": (
        snapshot(*OURS, status=READY),
        inputs(content=content(), claim=HELD),
        ["RemoveClaimFinalizer"],
    ),
    "ready, another snapshot needs the claim": (
        snapshot(*OURS, status=READY),
        inputs(content=content(), claim=HELD, claim_is_used=True),
        [],
    ),
    "ready, its content is gone": (
        snapshot(*OURS, status=READY),
        inputs(),
        ["ReportError SnapshotContentMissing final"],
    ),
    "ready, its content is another's": (
        snapshot(*OURS, status=READY),
        inputs(content=content(uid="other")),
        ["ReportError SnapshotMisbound final"],
    ),
    # Being deleted
    "deleted, not ours": (snapshot("mine", deleting=True), inputs(content=content()), []),
    "deleted, being restored": (
        snapshot(*OURS, deleting=True),
        inputs(content=content(), restoring=("copy",)),
        ["event SnapshotDeletePending", "Wait SnapshotRestoring(copy, default/s)"],
    ),
    "deleted, a member of a group": (
        snapshot(*OURS, deleting=True),
        inputs(content=content(), group="g"),
        ["event SnapshotDeletePending", "Wait DeletedWithGroup(g)"],
    ),
    "deleted, with its content": (
        snapshot(*OURS, deleting=True),
        inputs(content=content()),
        [
            "AnnotateBeingDeleted",
            "DeleteContent",
            f"SetFinalizers {BOUND}",
            "Wait ContentDeletion(snapcontent-u)",
        ],
    ),
    "deleted, while it is being taken": (
        snapshot(snapshots.BOUND, deleting=True),
        inputs(
            claim=HELD,
            content=content(
                metadata={
                    "annotations": {snapshots.BEING_DELETED: "yes", snapshots.BEING_CREATED: "yes"},
                    "deletionTimestamp": "2026-01-01T00:00:00Z",
                }
            ),
        ),
        ["Wait ContentDeletion(snapcontent-u)"],
    ),
    "deleted, the content is retained": (
        snapshot(*OURS, deleting=True),
        inputs(claim=HELD, content=content(policy="Retain")),
        ["AnnotateBeingDeleted", "RemoveClaimFinalizer", "SetFinalizers"],
    ),
    "deleted, the content is another's": (
        snapshot(*OURS, deleting=True),
        inputs(content=content(uid="other")),
        ["SetFinalizers"],
    ),
}


@pytest.mark.parametrize(("which", "given", "steps"), CASES.values(), ids=CASES)
def test_plan(which: VolumeSnapshot, given: SnapshotInputs, steps: list[str]) -> None:
    found = [describe_step(step).strip() for step in p.plan(which, given, SnapshotPlanOptions())]
    assert [text.partition(": ")[0] for text in found] == steps


def test_the_status_of_a_content_is_copied_once() -> None:
    there = content(status={**TAKEN, "readyToUse": True})
    now = codec.convert(
        VolumeSnapshot,
        {
            "status": {
                "boundVolumeSnapshotContentName": "snapcontent-u",
                "readyToUse": True,
                "creationTime": "2023-11-14T22:13:20Z",
                "restoreSize": "0",
            }
        },
    ).status
    assert now is not None
    assert p.status_changes(now, there) == {"restoreSize": "1Gi"}


def test_a_bound_content_is_kept_until_its_snapshotter_is_done() -> None:
    bound = content()
    assert list(p.plan_content(bound)) == [p.AddContentFinalizer(bound, (snapshots.CONTENT_BOUND,))]
    assert list(p.plan_content(content(uid=""))) == []
    assert list(p.plan_content(content(metadata={"finalizers": [snapshots.CONTENT_BOUND]}))) == []
