"""A patch converts only the members that it names, with the same result and the same errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import structs

from volplane.api import codec, kinds
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod, Secret
from volplane.api.errors import Invalid
from volplane.api.storage import StorageClass
from volplane.apiserver import strategies
from volplane.apiserver.patch import JSON, MERGE, STRATEGIC, TrustedBody, read_patch
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.verbs.patch import _patch_members, _patch_whole

HEAD = {"name": "x", "uid": "1", "resourceVersion": "7", "annotations": {"a": "1"}, "finalizers": ["f/g"]}
CLAIM = {
    "metadata": HEAD,
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    "status": {"phase": "Pending"},
}
VOLUME = {
    "metadata": HEAD,
    "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}},
    "status": {"phase": "Available"},
}
POD = {"metadata": HEAD, "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"}}
CASES = [
    (PersistentVolumeClaim, CLAIM, {"metadata": {"uid": "1"}, "status": {"phase": "Bound"}}),
    (PersistentVolumeClaim, CLAIM, {"metadata": {"uid": "2", "resourceVersion": "9"}}),
    (PersistentVolumeClaim, CLAIM, {"metadata": {"uid": None}}),
    (PersistentVolumeClaim, CLAIM, {"metadata": {"annotations": {"a": None, "b": "2"}}}),
    (PersistentVolumeClaim, CLAIM, {"metadata": {"finalizers": ["h/i"]}, "spec": {"volumeName": "v"}}),
    (PersistentVolumeClaim, CLAIM, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f/g"]}}),
    (PersistentVolumeClaim, CLAIM, {"spec": {"resources": {"requests": {"storage": "1024Mi"}}}}),
    (PersistentVolumeClaim, CLAIM, {"spec": None}),
    (PersistentVolumeClaim, CLAIM, {"metadata": None}),
    (PersistentVolumeClaim, CLAIM, {"metadata": {"name": "other", "namespace": "n"}}),
    (PersistentVolumeClaim, CLAIM, {"kind": "Other", "apiVersion": "v9", "unknown": {"a": 1}}),
    (PersistentVolumeClaim, CLAIM, {}),
    (PersistentVolumeClaim, CLAIM, {"$patch": "replace", "metadata": {"name": "x"}}),
    (PersistentVolume, VOLUME, {"spec": {"hostPath": None, "csi": {"driver": "d", "volumeHandle": "h"}}}),
    (PersistentVolume, VOLUME, {"status": {"phase": "Bound", "message": None}, "spec": {"odd": 1}}),
    (Pod, POD, {"spec": {"containers": [{"name": "d", "image": "j"}]}, "metadata": {"uid": "1"}}),
    (Secret, {"metadata": HEAD, "data": {"a": "YQ==", "b": "Yg=="}}, {"data": {"a": None, "c": "Yw=="}}),
    (Secret, {"metadata": HEAD, "type": "Opaque"}, {"data": {"c": "Yw=="}, "immutable": True}),
    (StorageClass, {"metadata": HEAD, "provisioner": "p"}, {"parameters": {"a": "1"}}),
]


def entry_of(of: Any) -> ServedResource:
    kind = kinds.of(of)
    return ServedResource(kind, strategies.of(kind))


def both(of: Any, stored: Any, patch: Any, style: str, validation: str = "Warn") -> tuple[Any, Any]:
    entry, old = entry_of(of), codec.convert(of, stored)
    reading = read_patch(entry.kind, style, TrustedBody(msgspec.json.encode(patch)))
    part = _patch_members(entry, old, reading, validation, owners=False)
    return part, _patch_whole(entry, codec.to_dict(old), reading, validation)


@pytest.mark.parametrize("style", [MERGE, STRATEGIC])
@pytest.mark.parametrize(("of", "stored", "patch"), CASES)
def test_patching_members_gives_the_same_object_and_findings(
    of: Any, stored: Any, patch: Any, style: str
) -> None:
    part, whole = both(of, stored, patch, style)
    if any("$" in name for name in patch):
        assert part is None  # a directive for the whole object
    else:
        assert part == whole


def test_members_that_the_patch_does_not_name_stay_the_same_objects() -> None:
    entry, old = entry_of(PersistentVolumeClaim), codec.convert(PersistentVolumeClaim, CLAIM)
    body = TrustedBody(b'{"metadata":{"uid":"1"},"status":{"phase":"Bound"}}')
    part = _patch_members(entry, old, read_patch(entry.kind, MERGE, body), "Warn", owners=False)
    assert part is not None
    new = part[0]
    assert new.spec is old.spec
    assert new.metadata.annotations is old.metadata.annotations
    assert new.status == structs.replace(old.status, phase="Bound")


def test_a_refused_patch_shows_the_whole_object() -> None:
    patch = {"status": {"phase": 7}}
    entry, old = entry_of(PersistentVolumeClaim), codec.convert(PersistentVolumeClaim, CLAIM)
    reading = read_patch(entry.kind, MERGE, TrustedBody(msgspec.json.encode(patch)))
    assert _patch_members(entry, old, reading, "Warn", owners=False) is None
    with pytest.raises(Invalid, match="ReadWriteOnce"):
        _patch_whole(entry, codec.to_dict(old), reading, "Warn")


def test_strict_validation_refuses_a_patch_each_time_it_is_applied() -> None:
    """A new list element comes from the patch itself and is pruned of unknown fields."""
    patch = {"spec": {"containers": [{"name": "d", "image": "j", "imagee": "k"}]}}
    entry, old = entry_of(Pod), codec.convert(Pod, POD)
    reading = read_patch(entry.kind, STRATEGIC, TrustedBody(msgspec.json.encode(patch)))
    assert _patch_members(entry, old, reading, "Strict", owners=False) is None
    for _ in range(2):
        with pytest.raises(Invalid, match="imagee"):
            _patch_whole(entry, codec.to_dict(old), reading, "Strict")
    _, warnings = _patch_whole(entry, codec.to_dict(old), reading, "Warn")
    assert any("imagee" in warning for warning in warnings)


def test_operations_on_a_value_added_by_the_patch_can_be_retried() -> None:
    operations = [
        {"op": "add", "path": "/metadata/labels", "value": {"x": "1", "y": "2"}},
        {"op": "remove", "path": "/metadata/labels/y"},
    ]
    entry, old = entry_of(PersistentVolumeClaim), codec.convert(PersistentVolumeClaim, CLAIM)
    reading = read_patch(entry.kind, JSON, msgspec.json.encode(operations))
    tries = [_patch_whole(entry, codec.to_dict(old), reading, "Strict")[0].metadata.labels for _ in range(3)]
    assert tries == [{"x": "1"}] * 3
