"""Snapshots and group snapshots: which content belongs to which, classes, secrets."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim, SecretReference
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from volplane.rules import groups, snapshots
from volplane.rules.templates import InvalidTemplate

PREFIX = "csi.storage.k8s.io/"


def group(source: dict[str, Any] | None = None, **status: Any) -> VolumeGroupSnapshot:
    whole = {
        "metadata": {"name": "g", "namespace": "ns", "uid": "u1"},
        "spec": {"source": source or {}},
        **({"status": status} if status else {}),
    }
    return codec.convert(VolumeGroupSnapshot, whole)


def group_content(uid: str = "", name: str = "g", **status: Any) -> VolumeGroupSnapshotContent:
    ref = {"namespace": "ns", "name": name, "uid": uid}
    whole = {
        "metadata": {"name": "content"},
        "spec": {"volumeGroupSnapshotRef": ref, "driver": "d", "deletionPolicy": "Delete", "source": {}},
        **({"status": status} if status else {}),
    }
    return codec.convert(VolumeGroupSnapshotContent, whole)


def test_a_group_looks_at_the_content_it_is_bound_to_or_names() -> None:
    assert groups.named_content(group()) == "groupsnapcontent-u1"
    assert groups.named_content(group({"volumeGroupSnapshotContentName": "given"})) == "given"
    bound = group(boundVolumeGroupSnapshotContentName="bound")
    assert groups.bound_name(bound) == groups.named_content(bound) == "bound"
    assert groups.bound_name(group(readyToUse=True)) == ""


def test_a_content_is_for_a_group_by_name_and_uid() -> None:
    assert groups.group_key(group_content()) == "ns/g"
    assert groups.is_for(group_content(), group())
    assert groups.is_for(group_content("u1"), group())
    assert not groups.is_for(group_content("u2"), group())
    assert not groups.is_for(group_content(name="other"), group())
    assert groups.is_bound_to(group_content("u1"), group())
    assert not groups.is_bound_to(group_content(), group())


def test_a_group_is_ready_when_its_status_says_so() -> None:
    assert groups.is_ready(group(readyToUse=True))
    assert not groups.is_ready(group(readyToUse=False))
    assert not groups.is_ready(group())


def test_the_default_class_of_a_driver_and_its_secret() -> None:
    parameters = {
        f"{PREFIX}group-snapshotter-secret-name": "${volumegroupsnapshot.name}",
        f"{PREFIX}group-snapshotter-secret-namespace": "${volumegroupsnapshot.namespace}",
    }
    marked = {"name": "c", "annotations": {groups.IS_DEFAULT: "true"}}
    cls = codec.convert(
        VolumeGroupSnapshotClass,
        {"metadata": marked, "driver": "d", "deletionPolicy": "Delete", "parameters": parameters},
    )
    assert groups.defaults([cls], "d") == [cls]
    assert groups.defaults([cls], "other") == []
    assert groups.secret(cls, "content", group()) == SecretReference(name="g", namespace="ns")


def content(annotations: dict[str, str] | None = None, **status: Any) -> VolumeSnapshotContent:
    whole = {
        "metadata": {"name": "content", "annotations": annotations or {}},
        "spec": {"volumeSnapshotRef": {}, "driver": "d", "deletionPolicy": "Delete", "source": {}},
        **({"status": status} if status else {}),
    }
    return codec.convert(VolumeSnapshotContent, whole)


def test_a_member_of_a_group_has_its_handle() -> None:
    assert snapshots.is_group_member(content({snapshots.GROUP_HANDLE: "h"}))
    assert snapshots.is_group_member(content(volumeGroupSnapshotHandle="h"))
    assert not snapshots.is_group_member(content(readyToUse=True))
    assert not snapshots.is_group_member(content())


@pytest.mark.parametrize(
    ("source", "restored"),
    [
        (None, []),
        ({"kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io", "name": "s"}, ["ns/s"]),
        ({"kind": "VolumeSnapshot", "apiGroup": "example.com", "name": "s"}, []),
        ({"kind": "PersistentVolumeClaim", "name": "c"}, []),
    ],
)
def test_a_claim_is_restored_from_a_snapshot(source: dict[str, str] | None, restored: list[str]) -> None:
    spec = {} if source is None else {"dataSource": source}
    whole = {"metadata": {"name": "c", "namespace": "ns"}, "spec": spec}
    assert snapshots.restored_from(codec.convert(PersistentVolumeClaim, whole)) == restored


def test_parameters_for_the_driver_are_those_without_our_prefix() -> None:
    assert snapshots.for_driver({"a": "b", f"{PREFIX}snapshotter-secret-name": "s"}) == {"a": "b"}
    with pytest.raises(snapshots.InvalidSnapshotClass, match="unknown parameter key"):
        snapshots.for_driver({f"{PREFIX}unknown": "x"})


def test_the_default_snapshot_class_of_a_driver() -> None:
    whole = {
        "metadata": {"name": "c", "annotations": {snapshots.IS_DEFAULT: "true"}},
        "driver": "d",
        "deletionPolicy": "Delete",
    }
    cls = codec.convert(VolumeSnapshotClass, whole)
    assert snapshots.defaults([cls], "d") == [cls]
    assert snapshots.defaults([cls], "other") == []


def secret(name: str | None, namespace: str | None) -> SecretReference | None:
    keys = snapshots.SNAPSHOTTER
    given = {keys.name: name, keys.namespace: namespace}
    return snapshots.secret(keys, {k: v for k, v in given.items() if v is not None}, {"token": "Not_Valid"})


def test_a_class_names_its_secret_with_templates() -> None:
    assert secret(None, None) is None
    assert secret("s", "ns") == SecretReference(name="s", namespace="ns")
    with pytest.raises(snapshots.InvalidSnapshotClass, match="must both be set"):
        secret("s", None)
    with pytest.raises(InvalidTemplate, match="not a valid namespace name"):
        secret("s", "${token}")
    with pytest.raises(InvalidTemplate, match="not a valid secret name"):
        secret("${token}", "ns")
