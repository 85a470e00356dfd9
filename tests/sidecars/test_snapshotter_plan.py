"""What the snapshotter does next for a content of either kind, in every state."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from volplane.api import codec
from volplane.api.annotations import GROUP_SNAPSHOT_HANDLE_ANNOTATION
from volplane.api.core import SecretReference
from volplane.api.snapshot import (
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from volplane.rules import snapshots
from volplane.rules.snapshots import GROUP_SNAPSHOT, SNAPSHOT, AnyContent, SnapshotKind
from volplane.rules.waits import Wait, WaitReason
from volplane.sidecars.snapshotter import plan as plans
from volplane.sidecars.snapshotter.plan import (
    DeleteDriverSnapshot,
    PollSnapshotStatus,
    RemoveContentFinalizer,
    RemoveCreationMark,
    ReportSnapshotError,
    SnapshotterDriverInfo,
    TakeSnapshot,
    plan,
)

NAME = "test.csi.example.com"
DRIVER = SnapshotterDriverInfo(NAME)
NOW = "2026-01-01T00:00:00Z"
SECRET = SecretReference(name="s", namespace="ns")
KINDS = pytest.mark.parametrize("kind", [SNAPSHOT, GROUP_SNAPSHOT], ids=lambda kind: kind.noun)


def content(
    kind: SnapshotKind,
    *,
    given: bool = False,
    cls: str | None = "c",
    uid: str = "u1",
    notes: tuple[str, ...] = (),
    deleting: bool = False,
    held: bool = True,
    policy: str = "Delete",
    status: dict[str, Any] | None = None,
    **annotations: str,
) -> AnyContent:
    grouped = kind is GROUP_SNAPSHOT
    handles = {"volumeGroupSnapshotHandle": "h", "volumeSnapshotHandles": ["m1", "m2"]}
    source: dict[str, Any] = {"volumeHandles": ["v1", "v2"]} if grouped else {"volumeHandle": "v1"}
    if given:
        source = {"groupSnapshotHandles": handles} if grouped else {"snapshotHandle": "h"}
    made = {
        "metadata": {
            "name": "content",
            "annotations": {**dict.fromkeys(notes, "yes"), **annotations},
            "finalizers": [kind.content_finalizer] if held else [],
            "deletionTimestamp": NOW if deleting else None,
        },
        "spec": {
            kind.ref_field: {"name": "snap", "namespace": "default", "uid": uid},
            kind.class_field: cls,
            "deletionPolicy": policy,
            "driver": NAME,
            "source": source,
        },
        "status": status,
    }
    if grouped:
        return codec.convert(VolumeGroupSnapshotContent, made)
    return codec.convert(VolumeSnapshotContent, made)


def snapshot_class(kind: SnapshotKind, **parameters: str) -> Any:
    type_ = VolumeGroupSnapshotClass if kind is GROUP_SNAPSHOT else VolumeSnapshotClass
    return type_(driver=NAME, parameters=parameters)


def with_handle(kind: SnapshotKind, **status: Any) -> dict[str, Any]:
    return {"volumeGroupSnapshotHandle" if kind is GROUP_SNAPSHOT else "snapshotHandle": "h", **status}


def run(made: AnyContent, cls: Any = None, driver: SnapshotterDriverInfo = DRIVER) -> list[Any]:
    return list(plan(made, cls, driver))


@KINDS
def test_a_snapshot_is_taken_under_a_name_that_stays_the_same(kind: SnapshotKind) -> None:
    volumes = ("v1", "v2") if kind is GROUP_SNAPSHOT else ("v1",)
    taken = TakeSnapshot("snapshot-u1", volumes, {"tier": "cold"}, None, True)
    assert run(content(kind), snapshot_class(kind, tier="cold")) == [taken]
    again = content(kind, status={"readyToUse": False})
    assert run(again, snapshot_class(kind, tier="cold")) == [structs.replace(taken, first=False)]


@KINDS
def test_names_are_sent_with_the_call_if_asked_for(kind: SnapshotKind) -> None:
    (step,) = run(content(kind), snapshot_class(kind), structs.replace(DRIVER, extra_metadata=True))
    assert isinstance(step, TakeSnapshot)
    assert step.parameters == {
        f"csi.storage.k8s.io/{kind.token}/name": "snap",
        f"csi.storage.k8s.io/{kind.token}/namespace": "default",
        f"csi.storage.k8s.io/{kind.token}content/name": "content",
    }


@KINDS
def test_the_secret_is_the_one_that_the_content_was_created_with(kind: SnapshotKind) -> None:
    notes: dict[str, Any] = {kind.secret_name: "s", kind.secret_namespace: "ns"}
    (step,) = run(content(kind, **notes), snapshot_class(kind))
    assert isinstance(step, TakeSnapshot)
    assert step.secret == SECRET


@KINDS
def test_without_its_class_nothing_is_taken(kind: SnapshotKind) -> None:
    step, wait = run(content(kind))
    assert isinstance(step, ReportSnapshotError)
    assert wait == Wait(WaitReason.SNAPSHOT_IMPOSSIBLE, message=step.message, backoff=True)
    assert step.message.endswith(f': "{kind.class_resource} "c" not found"')
    step, _ = run(content(kind, cls=None))
    assert isinstance(step, ReportSnapshotError)
    assert f"failed to take {kind.noun} content without a {kind.noun} class" in step.message
    unknown = snapshot_class(kind, **{"csi.storage.k8s.io/wrong": "x"})
    step, _ = run(content(kind), unknown)
    assert isinstance(step, ReportSnapshotError)
    assert "failed to remove CSI Parameters of prefixed keys" in step.message


@KINDS
def test_a_snapshot_that_exists_is_polled(kind: SnapshotKind) -> None:
    members = ("m1", "m2") if kind is GROUP_SNAPSHOT else ()
    assert run(content(kind, given=True, cls=None)) == [PollSnapshotStatus("h", None, members)]
    keys = kind.poll_secret
    named = snapshot_class(kind, **{keys.name: "s", keys.namespace: "ns"})
    assert run(content(kind, given=True), named) == [PollSnapshotStatus("h", SECRET, members)]
    step, _ = run(content(kind, given=True))
    assert step == ReportSnapshotError(
        f"failed to get {kind.noun} class c for {kind.noun} content content: "
        f'{kind.class_resource} "c" not found',
        False,
    )
    step, _ = run(content(kind, given=True), snapshot_class(kind, **{keys.name: "s"}))
    assert isinstance(step, ReportSnapshotError)
    assert "failed to get secret reference" in step.message


def test_a_member_of_a_group_is_polled_and_never_taken_alone() -> None:
    member: dict[str, Any] = {GROUP_SNAPSHOT_HANDLE_ANNOTATION: "g"}
    assert run(content(SNAPSHOT, **member), snapshot_class(SNAPSHOT)) == [Wait(WaitReason.GROUP_SNAPSHOT)]
    assert run(content(SNAPSHOT, status={"snapshotHandle": "h"}, **member)) == [PollSnapshotStatus("h", None)]


@KINDS
def test_the_mark_of_a_call_goes_when_the_snapshot_is_ready(kind: SnapshotKind) -> None:
    ready = with_handle(kind, readyToUse=True)
    assert run(content(kind, status=ready)) == []
    assert run(content(kind, status=ready, notes=(kind.being_created,))) == [RemoveCreationMark()]


@KINDS
def test_a_ready_content_is_deleted_when_the_snapshot_controller_requests_it(kind: SnapshotKind) -> None:
    going = content(kind, status=with_handle(kind, readyToUse=True), deleting=True)
    assert run(going) == [Wait(WaitReason.SNAPSHOT_DELETION_REQUEST)]


@KINDS
def test_a_deleted_content_takes_its_snapshot_along(kind: SnapshotKind) -> None:
    members = ("m1",) if kind is GROUP_SNAPSHOT else ()
    infos: dict[str, Any] = {"volumeSnapshotInfoList": [{"snapshotHandle": "m1"}]} if members else {}
    going: dict[str, Any] = {"deleting": True, "notes": (kind.being_deleted,)}
    deleted = DeleteDriverSnapshot("h", None, members)
    status = with_handle(kind, **infos)
    assert run(content(kind, status=status, **going)) == [deleted, RemoveContentFinalizer()]
    assert run(content(kind, status=status, held=False, **going)) == [deleted]
    assert run(content(kind, status=status, policy="Retain", **going)) == [RemoveContentFinalizer()]
    assert run(content(kind, **going)) == [RemoveContentFinalizer()]


@KINDS
def test_while_the_outcome_of_a_call_is_unknown_it_is_repeated(kind: SnapshotKind) -> None:
    unknown = content(kind, deleting=True, notes=(kind.being_created, kind.being_deleted))
    (step,) = run(unknown, snapshot_class(kind))
    assert isinstance(step, TakeSnapshot)


@KINDS
def test_a_content_that_was_never_bound_goes_at_once(kind: SnapshotKind) -> None:
    assert run(content(kind, given=True, uid="", deleting=True)) == [RemoveContentFinalizer()]


def test_a_member_goes_with_its_group() -> None:
    status = {"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g"}
    made = content(SNAPSHOT, status=status, deleting=True, notes=(snapshots.BEING_DELETED,))
    assert run(made) == [RemoveContentFinalizer()]


def test_the_members_of_a_group_are_known_from_its_status_or_source() -> None:
    assert plans.member_handles(content(GROUP_SNAPSHOT)) == ()
    assert plans.member_handles(content(GROUP_SNAPSHOT, given=True)) == ("m1", "m2")


def test_contents_of_other_drivers_and_nodes_are_left_alone() -> None:
    assert run(content(SNAPSHOT), driver=SnapshotterDriverInfo("other")) == []
    assert run(content(SNAPSHOT), driver=structs.replace(DRIVER, node="worker-1")) == []


@KINDS
def test_our_own_mark_does_not_wake_the_content(kind: SnapshotKind) -> None:
    assert plans.relevant_fields(None) is None
    marked = content(kind, notes=(kind.being_created,))
    assert plans.relevant_fields(content(kind)) == plans.relevant_fields(marked)
