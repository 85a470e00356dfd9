"""Names, secrets and parameters of snapshot classes, and what a content belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.annotations import GROUP_SNAPSHOT_HANDLE_ANNOTATION
from volplane.api.core import PersistentVolumeClaim, SecretReference
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshot,
    VolumeSnapshotContent,
)
from volplane.rules import groups, snapshots
from volplane.rules.snapshots import InvalidSnapshotClass
from volplane.rules.templates import InvalidTemplate, resolve

NAME, NAMESPACE = snapshots.SNAPSHOTTER.name, snapshots.SNAPSHOTTER.namespace
TOKENS = {"volumesnapshot.namespace": "apps", "volumesnapshotcontent.name": "content"}


def test_templates_are_resolved_by_their_tokens() -> None:
    assert resolve("a-${x}-$y", {"x": "1", "y": "2"}) == "a-1-2"
    with pytest.raises(InvalidTemplate, match=r'invalid tokens in "\$\{z\}": z'):
        resolve("${z}", {"x": "1"})


def test_a_class_names_a_secret_by_both_parameters() -> None:
    assert snapshots.secret(snapshots.SNAPSHOTTER, {}, TOKENS) is None
    parameters = {NAME: "key-${volumesnapshot.name}", NAMESPACE: "${volumesnapshot.namespace}"}
    found = snapshots.secret(snapshots.SNAPSHOTTER, parameters, TOKENS, own={"volumesnapshot.name": "s"})
    assert found == SecretReference(name="key-s", namespace="apps")


@pytest.mark.parametrize(
    ("parameters", "error", "why"),
    [
        ({NAME: "key"}, InvalidSnapshotClass, "must both be set"),
        ({NAME: "key", NAMESPACE: "Not_Valid"}, InvalidTemplate, "not a valid namespace name"),
        ({NAME: "Not_Valid", NAMESPACE: "apps"}, InvalidTemplate, "not a valid secret name"),
    ],
)
def test_secrets_that_cannot_be_named(parameters: dict[str, str], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        snapshots.secret(snapshots.SNAPSHOTTER, parameters, TOKENS)


def test_the_driver_gets_the_parameters_that_are_not_ours() -> None:
    assert snapshots.for_driver({"type": "fast", NAME: "key"}) == {"type": "fast"}
    with pytest.raises(InvalidSnapshotClass, match="unknown parameter key"):
        snapshots.for_driver({"csi.storage.k8s.io/unknown": "x"})


def test_names_and_times() -> None:
    assert snapshots.snapshot_name_for_driver("snapshot", -1, "12-34") == "snapshot-12-34"
    assert snapshots.snapshot_name_for_driver("snapshot", 3, "12-34") == "snapshot-123"
    assert snapshots.stamp(1_700_000_000_500_000_000) == "2023-11-14T22:13:20Z"


def test_a_claim_that_is_restored_from_a_snapshot_is_found_by_it() -> None:
    def claim(**source: str) -> PersistentVolumeClaim:
        return codec.convert(
            PersistentVolumeClaim, {"metadata": {"namespace": "apps"}, "spec": {"dataSource": source}}
        )

    restored = claim(kind="VolumeSnapshot", name="s", apiGroup=snapshots.GROUP)
    assert snapshots.restored_from(restored) == ["apps/s"]
    assert snapshots.restored_from(claim(kind="PersistentVolumeClaim", name="c")) == []
    assert snapshots.restored_from(PersistentVolumeClaim()) == []


# --- what belongs to what


def snapshot(**more: Any) -> VolumeSnapshot:
    whole = {"metadata": {"name": "s", "namespace": "apps", "uid": "u"}, **more}
    return codec.convert(VolumeSnapshot, whole)


def content(uid: str = "u", **more: Any) -> VolumeSnapshotContent:
    ref = {"namespace": "apps", "name": "s", "uid": uid}
    return codec.convert(VolumeSnapshotContent, {"spec": {"volumeSnapshotRef": ref}, **more})


def test_the_content_of_a_snapshot() -> None:
    assert snapshots.named_content(snapshot()) == "snapcontent-u"
    given = snapshot(spec={"source": {"volumeSnapshotContentName": "given"}})
    assert snapshots.named_content(given) == "given"
    bound = snapshot(status={"boundVolumeSnapshotContentName": "bound"})
    assert snapshots.named_content(bound) == "bound"
    assert snapshots.snapshot_key(content()) == "apps/s"
    assert [snapshots.is_for(content(uid), snapshot()) for uid in ("u", "", "other")] == [True, True, False]
    assert not snapshots.is_bound_to(content(""), snapshot())


def test_members_of_groups() -> None:
    assert not snapshots.is_group_member(content())
    assert snapshots.is_group_member(
        content(metadata={"annotations": {GROUP_SNAPSHOT_HANDLE_ANNOTATION: "g"}})
    )
    assert snapshots.is_group_member(content(status={"volumeGroupSnapshotHandle": "g"}))


def group(**more: Any) -> VolumeGroupSnapshot:
    whole = {"metadata": {"name": "g", "namespace": "apps", "uid": "u"}, **more}
    return codec.convert(VolumeGroupSnapshot, whole)


def group_content(uid: str = "u") -> VolumeGroupSnapshotContent:
    ref = {"namespace": "apps", "name": "g", "uid": uid}
    return codec.convert(VolumeGroupSnapshotContent, {"spec": {"volumeGroupSnapshotRef": ref}})


def test_the_content_of_a_group() -> None:
    assert snapshots.named_content(group()) == "groupsnapcontent-u"
    given = group(spec={"source": {"volumeGroupSnapshotContentName": "given"}})
    assert snapshots.named_content(given) == "given"
    bound = group(status={"boundVolumeGroupSnapshotContentName": "bound", "readyToUse": True})
    assert snapshots.named_content(bound) == "bound"
    assert snapshots.is_ready(bound)
    assert not snapshots.is_ready(group())
    assert snapshots.snapshot_key(group_content()) == "apps/g"
    assert [snapshots.is_for(group_content(uid), group()) for uid in ("u", "", "other")] == [
        True,
        True,
        False,
    ]
    assert not snapshots.is_bound_to(group_content(""), group())


def test_default_classes_of_groups() -> None:
    default = codec.convert(
        VolumeGroupSnapshotClass,
        {"metadata": {"name": "fast", "annotations": {groups.IS_DEFAULT: "true"}}, "driver": "d"},
    )
    assert snapshots.defaults([default], "d") == [default]
    assert snapshots.defaults([default], "other") == []


def test_a_content_carries_its_secret_in_annotations() -> None:
    kind = snapshots.SNAPSHOT
    assert snapshots.secret_annotations(kind, None) == {}
    reference = SecretReference(name="key", namespace="apps")
    annotations = snapshots.secret_annotations(kind, reference)
    assert snapshots.annotated_secret(content(metadata={"annotations": annotations})) == reference
    assert snapshots.annotated_secret(content()) is None
