"""Situations of a VolumeGroupSnapshot and the steps that follow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.waits import describe_wait
from volplane.api import codec
from volplane.api.core import PersistentVolume
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshot,
)
from volplane.controllers.snapshot.groups import plan as p
from volplane.controllers.snapshot.groups.objects import member_name
from volplane.controllers.snapshot.groups.plan import GroupSnapshotInputs
from volplane.controllers.snapshot.steps import CopyStatus, ReportError, SetFinalizers
from volplane.rules import groups
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait

DRIVER = "ebs.csi.aws.com"
READY = {"readyToUse": True, "boundVolumeGroupSnapshotContentName": "groupsnapcontent-u"}
SHOWN = {**READY, "readyToUse": False}
GONE = "2026-01-01T00:00:00Z"


def group(
    *finalizers: str, deleting: bool = False, cls: str | None = "fast", **more: Any
) -> VolumeGroupSnapshot:
    metadata: dict[str, Any] = {
        "name": "g",
        "namespace": "default",
        "uid": "u",
        "finalizers": list(finalizers),
    }
    if deleting:
        metadata["deletionTimestamp"] = GONE
    source = more.pop("source", {"selector": {"matchLabels": {"app": "db"}}})
    spec = {"source": source, "volumeGroupSnapshotClassName": cls}
    return codec.convert(VolumeGroupSnapshot, {"metadata": metadata, "spec": spec, **more})


def content(*, uid: str = "u", policy: str = "Delete", **more: Any) -> VolumeGroupSnapshotContent:
    source = more.pop("source", {"volumeHandles": ["vol-1"]})
    metadata = {"name": "groupsnapcontent-u", **more.pop("metadata", {})}
    spec = {
        "volumeGroupSnapshotRef": {"namespace": "default", "name": "g", "uid": uid},
        "deletionPolicy": policy,
        "driver": DRIVER,
        "source": source,
    }
    return codec.convert(VolumeGroupSnapshotContent, {"metadata": metadata, "spec": spec, **more})


def volume(*, driver: str = DRIVER) -> PersistentVolume:
    spec = {"csi": {"driver": driver, "volumeHandle": "vol-1"}} if driver else {}
    return codec.convert(PersistentVolume, {"metadata": {"name": "pv"}, "spec": spec})


def group_class(name: str = "fast", *, default: bool = False) -> VolumeGroupSnapshotClass:
    annotations = {groups.IS_DEFAULT: "true"} if default else {}
    whole = {
        "metadata": {"name": name, "annotations": annotations},
        "driver": DRIVER,
        "deletionPolicy": "Delete",
    }
    return codec.convert(VolumeGroupSnapshotClass, whole)


def inputs(*classes: VolumeGroupSnapshotClass, **more: Any) -> GroupSnapshotInputs:
    given: dict[str, Any] = {"volumes": (volume(),), **more}
    return GroupSnapshotInputs(classes={c.name: c for c in classes or (group_class(),)}, **given)


def describe_step(step: object) -> str:
    match step:
        case Wait():
            return describe_wait(step).partition(": ")[0]
        case RecordEvent(_, reason):
            return f"event {reason}"
        case ReportError(reason, _, unready, final):
            return f"ReportError {reason}" + ("" if unready else " ready") + (" final" if final else "")
        case SetFinalizers(finalizers, class_name):
            return f"SetFinalizers {len(finalizers)}" + (f" class={class_name}" if class_name else "")
        case CopyStatus(status):
            return f"CopyStatus {'+'.join(sorted(status))}"
        case p.CreateMember(info):
            return f"CreateMember {info.volume_handle}"
        case p.DeleteMember(member):
            return f"DeleteMember {member.name}"
    return type(step).__name__


INFO = {"volumeHandle": "vol-1", "snapshotHandle": "snap-1", "readyToUse": True}
TAKEN = content(
    status={
        "volumeGroupSnapshotHandle": "group-1",
        "readyToUse": True,
        "creationTime": "2026-01-01T00:00:00Z",
        "volumeSnapshotInfoList": [INFO],
    }
)
assert TAKEN.status is not None
NAME = member_name(group(), TAKEN.status.volume_snapshot_info_list[0])


def member(*, deleting: bool = False, shown: bool = True) -> dict[str, VolumeSnapshot]:
    metadata = {"name": NAME, **({"deletionTimestamp": GONE} if deleting else {})}
    status = {"status": {"readyToUse": True}} if shown else {}
    return {NAME: codec.convert(VolumeSnapshot, {"metadata": metadata, **status})}


CREATED = [
    "CreateGroupContent",
    "event CreatingGroupSnapshot",
    "CopyStatus boundVolumeGroupSnapshotContentName+readyToUse",
]
COPIED = [
    "CopyStatus boundVolumeGroupSnapshotContentName+creationTime+readyToUse",
    "event GroupSnapshotCreated",
    "event GroupSnapshotReady",
]
GIVEN = {"volumeGroupSnapshotContentName": "given"}
HANDLES = {
    "groupSnapshotHandles": {"volumeGroupSnapshotHandle": "group-1", "volumeSnapshotHandles": ["snap-1"]}
}
NO_DEFAULT = ["ReportError SetDefaultGroupSnapshotClassFailed ready"]
FAILED = ["ReportError GroupSnapshotContentCreationFailed"]

CASES: dict[str, tuple[VolumeGroupSnapshot, GroupSnapshotInputs, list[str]]] = {
    "new": (group(), inputs(), CREATED),
    "its class does not exist": (
        group(cls="slow"),
        inputs(),
        ["ReportError GetGroupSnapshotClassFailed ready"],
    ),
    "the default class": (
        group(cls=None),
        inputs(group_class(default=True)),
        ["SetFinalizers 0 class=fast", *CREATED],
    ),
    "no default class": (group(cls=None), inputs(), NO_DEFAULT),
    "two default classes": (
        group(cls=None),
        inputs(group_class(default=True), group_class("other", default=True)),
        NO_DEFAULT,
    ),
    "no default class for a volume without a driver": (
        group(cls=None),
        inputs(volumes=(volume(driver=""),)),
        NO_DEFAULT,
    ),
    "no default class without claims": (group(cls=None), inputs(unfit="no claims"), NO_DEFAULT),
    "no claims": (group(), inputs(unfit="no claims"), FAILED),
    "a volume of another driver": (group(), inputs(volumes=(volume(driver="other"),)), FAILED),
    "its content has no handle yet": (
        group(groups.BOUND),
        inputs(content=content()),
        ["CopyStatus boundVolumeGroupSnapshotContentName+readyToUse"],
    ),
    "its content is taken": (
        group(),
        inputs(content=TAKEN),
        ["SetFinalizers 1", "CreateMember vol-1", *COPIED],
    ),
    "a member without a status is created again": (
        group(groups.BOUND),
        inputs(content=TAKEN, members=member(shown=False)),
        ["CreateMember vol-1", *COPIED],
    ),
    "all members are there": (group(groups.BOUND), inputs(content=TAKEN, members=member()), COPIED),
    "its content has failed": (
        group(groups.BOUND, status=SHOWN),
        inputs(content=content(status={"error": {"message": "no room"}})),
        ["CopyStatus error"],
    ),
    "nothing new": (group(groups.BOUND, status=SHOWN), inputs(content=content()), []),
    "its content is a given one": (
        group(),
        inputs(content=content(source=HANDLES)),
        ["ReportError GroupSnapshotContentMismatch"],
    ),
    "its content is another's": (
        group(),
        inputs(content=content(uid="other")),
        ["ReportError GroupSnapshotContentMisbound"],
    ),
    "given, no content": (group(source=GIVEN), inputs(), ["ReportError GroupSnapshotContentMissing"]),
    "given, taken of claims": (
        group(source=GIVEN),
        inputs(content=content()),
        ["ReportError GroupSnapshotContentMismatch"],
    ),
    "given, for another": (
        group(source=GIVEN),
        inputs(content=content(uid="other", source=HANDLES)),
        ["ReportError GroupSnapshotContentMisbound"],
    ),
    "given, not bound yet": (
        group(groups.BOUND, source=GIVEN),
        inputs(content=content(uid="", source=HANDLES)),
        ["BindContent", "CopyStatus boundVolumeGroupSnapshotContentName+readyToUse"],
    ),
    "given and bound": (
        group(groups.BOUND, source=GIVEN, status=SHOWN),
        inputs(content=content(source=HANDLES)),
        [],
    ),
    "ready": (group(groups.BOUND, status=READY), inputs(content=content()), []),
    "ready, its content is gone": (
        group(status=READY),
        inputs(),
        ["ReportError GroupSnapshotContentMissing final"],
    ),
    "ready, its content is another's": (
        group(status=READY),
        inputs(content=content(uid="other")),
        ["ReportError GroupSnapshotMisbound final"],
    ),
    "deleted, a member is being restored": (
        group(deleting=True),
        inputs(content=content(), restoring=(NAME,)),
        ["event SnapshotDeletePending", f"Wait SnapshotRestoring({NAME})"],
    ),
    "deleted, with its content and members": (
        group(groups.BOUND, deleting=True),
        inputs(content=content(), members=member()),
        ["AnnotateBeingDeleted", "DeleteContent", f"DeleteMember {NAME}"],
    ),
    "deleted before": (
        group(groups.BOUND, deleting=True),
        inputs(
            content=content(
                metadata={"annotations": {groups.BEING_DELETED: "yes"}, "deletionTimestamp": GONE}
            ),
            members=member(deleting=True),
        ),
        [],
    ),
    "deleted, the content is retained": (
        group(groups.BOUND, deleting=True),
        inputs(content=content(policy="Retain")),
        ["AnnotateBeingDeleted", "SetFinalizers 0"],
    ),
    "deleted, the content is another's": (group(deleting=True), inputs(content=content(uid="other")), []),
}


@pytest.mark.parametrize(("which", "given", "steps"), CASES.values(), ids=CASES)
def test_plan(which: VolumeGroupSnapshot, given: GroupSnapshotInputs, steps: list[str]) -> None:
    assert [describe_step(step) for step in p.plan(which, given)] == steps


def test_a_bound_content_is_kept_until_its_snapshotter_is_done() -> None:
    bound = content()
    assert list(p.plan_content(bound)) == [p.AddGroupContentFinalizer(bound, (groups.CONTENT_BOUND,))]
    assert list(p.plan_content(content(uid=""))) == []
    assert list(p.plan_content(content(metadata={"finalizers": [groups.CONTENT_BOUND]}))) == []
