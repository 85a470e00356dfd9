"""What the snapshot controller does next for a snapshot of either kind, in every state."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from tests.controllers.objects import DRIVER, claim, volume
from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from volplane.controllers.snapshot import common_plan
from volplane.controllers.snapshot import plan as single
from volplane.controllers.snapshot.groups import plan as grouped
from volplane.controllers.snapshot.groups.plan import CreateMember, DeleteMember, GroupSnapshotInputs
from volplane.controllers.snapshot.plan import (
    AddClaimFinalizer,
    RemoveClaimFinalizer,
    SnapshotInputs,
    SnapshotPlanOptions,
)
from volplane.controllers.snapshot.steps import (
    AddContentFinalizer,
    AnnotateBeingDeleted,
    BindContent,
    CopyStatus,
    CreateContent,
    DeleteContent,
    ReportError,
    SetFinalizers,
)
from volplane.rules import snapshots
from volplane.rules.snapshots import GROUP_SNAPSHOT, SNAPSHOT, AnySnapshot, SnapshotKind
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait

NOW, TIME, UID = "2026-01-01T00:00:00Z", 1_767_225_600_000_000_000, "u1"
KINDS = pytest.mark.parametrize("kind", [SNAPSHOT, GROUP_SNAPSHOT], ids=lambda kind: kind.noun)


def all_finalizers(kind: SnapshotKind) -> tuple[str, ...]:
    return (*kind.source_finalizers, kind.bound_finalizer)


def snapshot(
    kind: SnapshotKind,
    *,
    given: str | None = None,
    cls: str | None = "c",
    finalizers: tuple[str, ...] | None = None,
    deleting: bool = False,
    status: dict[str, Any] | None = None,
) -> Any:
    source: dict[str, Any]
    if given is not None:
        field = "volumeSnapshotContentName" if kind is SNAPSHOT else "volumeGroupSnapshotContentName"
        source = {field: given}
    else:
        source = {"persistentVolumeClaimName": "data"} if kind is SNAPSHOT else {"selector": {}}
    made = {
        "metadata": {
            "name": "snap",
            "namespace": "default",
            "uid": UID,
            "finalizers": list(all_finalizers(kind) if finalizers is None else finalizers),
            "deletionTimestamp": NOW if deleting else None,
        },
        "spec": {"source": source, kind.class_field: cls},
        "status": status,
    }
    return codec.convert(VolumeSnapshot if kind is SNAPSHOT else VolumeGroupSnapshot, made)


def content(
    kind: SnapshotKind,
    *,
    given: bool = False,
    uid: str = UID,
    cls: str | None = "c",
    notes: tuple[str, ...] = (),
    policy: str = "Delete",
    deleting: bool = False,
    held: bool = True,
    status: dict[str, Any] | None = None,
) -> Any:
    source: dict[str, Any]
    if kind is SNAPSHOT:
        source = {"snapshotHandle": "h"} if given else {"volumeHandle": "vol-v"}
    else:
        source = {"groupSnapshotHandles": {}} if given else {"volumeHandles": ["vol-v"]}
    made = {
        "metadata": {
            "name": "content",
            "annotations": dict.fromkeys(notes, "yes"),
            "finalizers": [kind.content_finalizer] if held else [],
            "deletionTimestamp": NOW if deleting else None,
        },
        "spec": {
            kind.ref_field: {"name": "snap", "namespace": "default", "uid": uid},
            kind.class_field: cls,
            "deletionPolicy": policy,
            "driver": DRIVER,
            "source": source,
        },
        "status": status,
    }
    return codec.convert(VolumeSnapshotContent if kind is SNAPSHOT else VolumeGroupSnapshotContent, made)


def snapshot_class(kind: SnapshotKind, name: str = "c", *, default: bool = False, **parameters: str) -> Any:
    made = {
        "metadata": {"name": name, "annotations": {kind.is_default: "true"} if default else {}},
        "driver": DRIVER,
        "deletionPolicy": "Delete",
        "parameters": parameters,
    }
    return codec.convert(VolumeSnapshotClass if kind is SNAPSHOT else VolumeGroupSnapshotClass, made)


def bound_claim(**metadata: Any) -> PersistentVolumeClaim:
    made = codec.to_dict(claim("data", volumeName="v", metadata={"uid": "claim", **metadata}))
    return codec.convert(PersistentVolumeClaim, {**made, "status": {"phase": "Bound"}})


HELD = bound_claim(finalizers=[snapshots.CLAIM_AS_SOURCE])
REF = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": "claim"}
VOLUME = volume("v", claimRef=REF)


def plan(made: AnySnapshot, found: Any = None, **inputs: Any) -> list[Any]:
    if isinstance(made, VolumeSnapshot):
        inputs = {"claim": HELD, "volume": VOLUME, **inputs}
        return list(single.plan(made, SnapshotInputs(content=found, **inputs), SnapshotPlanOptions()))
    inputs = {"volumes": (VOLUME,), **inputs}
    return list(grouped.plan(made, GroupSnapshotInputs(content=found, **inputs)))


def kinds_of(steps: list[Any]) -> list[type]:
    return [type(step) for step in steps]


def error_reason(steps: list[Any]) -> str:
    (error,) = (step for step in steps if isinstance(step, ReportError))
    return error.reason


def ready_status(kind: SnapshotKind) -> dict[str, Any]:
    return {kind.bound_field: "content", "readyToUse": True, "creationTime": NOW}


# --- a new snapshot


@KINDS
def test_a_content_is_created_for_a_new_snapshot(kind: SnapshotKind) -> None:
    new = snapshot(kind, finalizers=kind.source_finalizers)
    created, event, copied = plan(new, classes={"c": snapshot_class(kind)})
    assert isinstance(created, CreateContent)
    assert created.content.name == f"{kind.content_prefix}-{UID}"
    assert snapshots.is_bound_to(created.content, new)
    assert isinstance(event, RecordEvent)
    assert copied == CopyStatus({kind.bound_field: created.content.name, "readyToUse": False})


@KINDS
def test_the_only_default_class_is_written_into_the_snapshot(kind: SnapshotKind) -> None:
    classes = {"d": snapshot_class(kind, "d", default=True), "c": snapshot_class(kind)}
    first, *_ = plan(snapshot(kind, cls=None, finalizers=()), classes=classes)
    assert first == SetFinalizers(kind.source_finalizers, "d")


@KINDS
def test_without_one_class_to_take_an_error_is_reported(kind: SnapshotKind) -> None:
    assert error_reason(plan(snapshot(kind))) == f"Get{kind.reason}ClassFailed"
    unset, reason = snapshot(kind, cls=None), f"SetDefault{kind.reason}ClassFailed"
    assert error_reason(plan(unset)) == reason
    two = {name: snapshot_class(kind, name, default=True) for name in ("c", "d")}
    assert error_reason(plan(unset, classes=two)) == reason


def test_without_a_source_there_is_no_default_class() -> None:
    reason = "SetDefaultSnapshotClassFailed"
    assert error_reason(plan(snapshot(SNAPSHOT, cls=None), claim=None)) == reason
    reason = "SetDefaultGroupSnapshotClassFailed"
    assert error_reason(plan(snapshot(GROUP_SNAPSHOT, cls=None), unfit="no claims")) == reason
    in_tree = (volume("v", csi=None),)
    assert error_reason(plan(snapshot(GROUP_SNAPSHOT, cls=None), volumes=in_tree)) == reason


@pytest.mark.parametrize(
    "inputs",
    [
        {"claim": None},
        {"claim": claim("data")},
        {"volume": None},
        {"volume": volume("v")},
        {"volume": volume("v", claimRef=REF, csi=None)},
        {"claim": bound_claim(deletionTimestamp=NOW)},
    ],
)
def test_a_snapshot_of_nothing_fails(inputs: dict[str, Any]) -> None:
    steps = plan(snapshot(SNAPSHOT), classes={"c": snapshot_class(SNAPSHOT)}, **inputs)
    assert error_reason(steps) == "SnapshotContentCreationFailed"


@pytest.mark.parametrize("inputs", [{"unfit": "no claims"}, {"volumes": (volume("v", csi=None),)}])
def test_a_group_of_nothing_fails(inputs: dict[str, Any]) -> None:
    steps = plan(snapshot(GROUP_SNAPSHOT), classes={"c": snapshot_class(GROUP_SNAPSHOT)}, **inputs)
    assert error_reason(steps) == "GroupSnapshotContentCreationFailed"


def test_the_claim_is_kept_while_its_snapshot_is_taken() -> None:
    steps = plan(snapshot(SNAPSHOT), claim=bound_claim(), classes={"c": snapshot_class(SNAPSHOT)})
    assert AddClaimFinalizer() in steps
    ready = snapshot(SNAPSHOT, status=ready_status(SNAPSHOT))
    assert plan(ready, content(SNAPSHOT)) == [RemoveClaimFinalizer()]
    assert plan(ready, content(SNAPSHOT), claim_is_used=True) == []


# --- its content exists


@KINDS
def test_the_status_of_the_content_is_copied(kind: SnapshotKind) -> None:
    created: Any = TIME if kind is SNAPSHOT else NOW
    size = {"restoreSize": 1 << 30} if kind is SNAPSHOT else {}
    found = content(kind, status={"readyToUse": True, "creationTime": created, **size})
    copied, *events = plan(snapshot(kind), found)
    sized = {"restoreSize": "1Gi"} if kind is SNAPSHOT else {}
    assert copied == CopyStatus(
        {kind.bound_field: "content", "readyToUse": True, "creationTime": NOW, **sized}
    )
    assert [event.reason for event in events] == [f"{kind.reason}Created", f"{kind.reason}Ready"]


@KINDS
def test_an_error_of_the_content_is_copied_and_removed(kind: SnapshotKind) -> None:
    error = {"time": NOW, "message": "full"}
    bound = {kind.bound_field: "content", "readyToUse": False}
    failed = content(kind, status={"readyToUse": False, "error": error})
    assert plan(snapshot(kind, status=bound), failed) == [CopyStatus({"error": error})]
    assert plan(snapshot(kind, status={**bound, "error": error}), failed) == []
    assert plan(snapshot(kind, status={**bound, "error": error}), content(kind)) == [
        CopyStatus({"error": None})
    ]


def test_a_size_is_set_once_unless_it_was_nothing() -> None:
    found = content(SNAPSHOT, status={"restoreSize": 1 << 30})
    for now, changes in ((0, {"restoreSize": "1Gi"}), ("2Gi", {})):
        status = {"boundVolumeSnapshotContentName": "content", "readyToUse": False, "restoreSize": now}
        assert common_plan.status_changes(snapshot(SNAPSHOT, status=status), found) == changes


@KINDS
def test_a_content_of_another_kind_or_snapshot_is_refused(kind: SnapshotKind) -> None:
    assert error_reason(plan(snapshot(kind), content(kind, given=True))) == f"{kind.reason}ContentMismatch"
    assert error_reason(plan(snapshot(kind), content(kind, uid="other"))) == f"{kind.reason}ContentMisbound"


def test_a_snapshot_whose_content_is_gone_is_not_taken_again() -> None:
    taken = snapshot(SNAPSHOT, status={"creationTime": NOW})
    assert error_reason(plan(taken)) == "SnapshotContentMissing"


@KINDS
def test_finalizers_are_added_if_the_content_goes_along(kind: SnapshotKind) -> None:
    bare = snapshot(kind, finalizers=())
    assert plan(bare, content(kind))[0] == SetFinalizers(all_finalizers(kind))
    kept = [step for step in plan(bare, content(kind, policy="Retain")) if isinstance(step, SetFinalizers)]
    assert kept == ([SetFinalizers(kind.source_finalizers)] if kind.source_finalizers else [])


# --- a pre-provisioned content


@KINDS
def test_a_snapshot_is_bound_to_the_content_that_it_names(kind: SnapshotKind) -> None:
    names = snapshot(kind, given="content")
    assert BindContent in kinds_of(plan(names, content(kind, given=True, uid="")))
    assert BindContent in kinds_of(plan(names, content(kind, given=True, cls=None)))
    assert BindContent not in kinds_of(plan(names, content(kind, given=True)))
    assert error_reason(plan(names)) == f"{kind.reason}ContentMissing"
    assert error_reason(plan(names, content(kind))) == f"{kind.reason}ContentMismatch"
    assert (
        error_reason(plan(names, content(kind, given=True, uid="other"))) == f"{kind.reason}ContentMisbound"
    )


# --- a ready snapshot


@KINDS
def test_a_ready_snapshot_is_verified(kind: SnapshotKind) -> None:
    ready, free = snapshot(kind, status=ready_status(kind)), {"claim": None} if kind is SNAPSHOT else {}
    assert plan(ready, content(kind), **free) == []
    assert error_reason(plan(ready, **free)) == f"{kind.reason}ContentMissing"
    assert error_reason(plan(ready, content(kind, uid="other"), **free)) == f"{kind.reason}Misbound"


@KINDS
def test_a_bound_content_gets_a_finalizer(kind: SnapshotKind) -> None:
    bare = content(kind, held=False)
    assert list(common_plan.plan_content(bare)) == [AddContentFinalizer(bare, (kind.content_finalizer,))]
    for other in (content(kind), content(kind, held=False, uid=""), content(kind, held=False, deleting=True)):
        assert list(common_plan.plan_content(other)) == []


# --- members of a group


def test_a_member_follows_its_content_and_names_its_group() -> None:
    member = snapshot(SNAPSHOT, finalizers=(*all_finalizers(SNAPSHOT), snapshots.IN_GROUP))
    assert kinds_of(plan(member)) == [Wait]
    (copied,) = plan(member, content(SNAPSHOT), group="group")
    assert copied.status["volumeGroupSnapshotName"] == "group"
    named = structs.replace(
        member, status=codec.convert(type(member), {"status": {"volumeGroupSnapshotName": "group"}}).status
    )
    (copied,) = plan(named, content(SNAPSHOT), group="group")
    assert "volumeGroupSnapshotName" not in copied.status


def test_members_are_created_before_the_group_is_ready() -> None:
    info = {"volumeHandle": "vol-v", "snapshotHandle": "s1"}
    status = {"readyToUse": True, "volumeGroupSnapshotHandle": "g", "volumeSnapshotInfoList": [info]}
    found = content(GROUP_SNAPSHOT, status=status)
    created, copied, *_ = plan(snapshot(GROUP_SNAPSHOT), found)
    assert isinstance(created, CreateMember)
    assert isinstance(copied, CopyStatus)
    name = grouped.member_name(snapshot(GROUP_SNAPSHOT), created.info)
    done = snapshot(SNAPSHOT, status={"readyToUse": False})
    assert CreateMember not in kinds_of(plan(snapshot(GROUP_SNAPSHOT), found, members={name: done}))
    untaken = content(GROUP_SNAPSHOT, status={"readyToUse": False})
    assert CreateMember not in kinds_of(plan(snapshot(GROUP_SNAPSHOT), untaken))


# --- deletion


@KINDS
def test_a_deleted_snapshot_takes_its_content_along(kind: SnapshotKind) -> None:
    going, free = snapshot(kind, deleting=True), {"claim": None} if kind is SNAPSHOT else {}
    steps = [step for step in plan(going, content(kind), **free) if not isinstance(step, Wait)]
    rest = [SetFinalizers((kind.bound_finalizer,))] if kind.source_finalizers else []
    assert steps == [AnnotateBeingDeleted(), DeleteContent(), *rest]
    marked = content(kind, notes=(kind.being_deleted,), deleting=True)
    assert AnnotateBeingDeleted() not in plan(going, marked, **free)
    assert DeleteContent() not in plan(going, marked, **free)
    assert plan(going, content(kind, policy="Retain"), **free) == [AnnotateBeingDeleted(), SetFinalizers(())]
    assert plan(going, content(kind, uid="other"), **free) == [SetFinalizers(())]
    assert plan(going, None, **free) == [SetFinalizers(())]


def test_a_deleted_snapshot_without_our_finalizers_needs_nothing() -> None:
    assert plan(snapshot(SNAPSHOT, deleting=True, finalizers=()), content(SNAPSHOT)) == []


def test_a_deleted_snapshot_waits_for_restores_and_for_its_group() -> None:
    going = snapshot(SNAPSHOT, deleting=True)
    assert kinds_of(plan(going, content(SNAPSHOT), restoring=("default/new",))) == [RecordEvent, Wait]
    assert kinds_of(plan(going, content(SNAPSHOT), group="group")) == [RecordEvent, Wait]
    group = snapshot(GROUP_SNAPSHOT, deleting=True)
    assert kinds_of(plan(group, content(GROUP_SNAPSHOT), restoring=("default/m",))) == [RecordEvent, Wait]


def test_the_claim_is_kept_while_the_driver_may_still_copy_it() -> None:
    going = snapshot(SNAPSHOT, deleting=True)
    taking = content(SNAPSHOT, notes=(snapshots.BEING_CREATED,))
    assert RemoveClaimFinalizer() not in plan(going, taking)
    assert RemoveClaimFinalizer() in plan(going, content(SNAPSHOT))
    assert RemoveClaimFinalizer() in plan(going, None)


def test_members_are_deleted_with_their_group() -> None:
    group = snapshot(GROUP_SNAPSHOT, deleting=True)
    left, gone = snapshot(SNAPSHOT), snapshot(SNAPSHOT, deleting=True)
    steps = plan(group, None, members={"left": left, "gone": gone})
    assert [step for step in steps if isinstance(step, DeleteMember)] == [DeleteMember(left)]
