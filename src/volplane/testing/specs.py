"""Manifests of the objects that cases create."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import structs

from volplane.api.labels import HOSTNAME_LABEL
from volplane.api.meta import Resource
from volplane.api.snapshot import VolumeGroupSnapshotClass, VolumeSnapshotClass
from volplane.api.storage import StorageClass, VolumeAttributesClass
from volplane.cluster.apply import parse_object

CLASS = "volplane-test"
RESULTS = "/results"
DATA = "/data"
Manifest = dict[str, Any]
_SECRETS = (
    "provisioner",
    "controller-publish",
    "node-stage",
    "node-publish",
    "controller-expand",
    "controller-modify",
    "node-expand",
)


def classes(
    own: Iterable[Resource],
    driver: str,
    *,
    namespace: str,
    parameters: Mapping[str, str],
    mutable: Mapping[str, str],
    secrets: Mapping[str, str],
) -> Iterator[Resource]:
    """Copies of the driver's first class of each kind, under our name, with parameters and secrets."""
    known = list(own)
    more, snapshots, groups = dict(parameters), dict[str, str](), dict[str, str]()
    if secrets:
        meta = {"name": CLASS, "namespace": namespace}
        yield parse_object(
            {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": dict(secrets)}
        )
        for part, value in meta.items():
            more |= {f"csi.storage.k8s.io/{call}-secret-{part}": value for call in _SECRETS}
            snapshots[f"csi.storage.k8s.io/snapshotter-secret-{part}"] = value
            groups[f"csi.storage.k8s.io/group-snapshotter-secret-{part}"] = value
    if mutable:
        attributes = VolumeAttributesClass(driver_name=driver, parameters=mutable)
        yield structs.replace(attributes, metadata=structs.replace(attributes.metadata, name=CLASS))
    kinds = ((StorageClass, more), (VolumeSnapshotClass, snapshots), (VolumeGroupSnapshotClass, groups))
    for kind, given in kinds:
        for one in [obj for obj in known if isinstance(obj, kind)][:1]:
            named = structs.replace(one.metadata, name=CLASS, annotations={})
            yield structs.replace(one, metadata=named, parameters={**one.parameters, **given})


def claim(
    name: str,
    *,
    block: bool,
    mode: str,
    source: Mapping[str, str] | None,
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    spec: Manifest = {
        "accessModes": [mode],
        "storageClassName": CLASS,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if block:
        spec["volumeMode"] = "Block"
    if source:
        spec["dataSource"] = dict(source)
    meta = {"name": name, "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def given_volume_and_claim(
    name: str, claim: str, *, driver: str, handle: str, context: Mapping[str, str], mode: str
) -> Iterator[Manifest]:
    """A PersistentVolume for a volume that exists, and the claim that is bound to it."""
    common = {"accessModes": [mode], "storageClassName": "", "volumeMode": "Filesystem"}
    source = {"driver": driver, "volumeHandle": handle, "volumeAttributes": dict(context)}
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **common,
            "capacity": {"storage": "1Gi"},
            "csi": source,
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"name": claim, "namespace": "default"},
        },
    }
    size = {"requests": {"storage": "1Gi"}}
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim},
        "spec": {**common, "volumeName": name, "resources": size},
    }


def snapshot(name: str, claim: str) -> Manifest:
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {"source": {"persistentVolumeClaimName": claim}, "volumeSnapshotClassName": CLASS},
    }


def group(name: str, labels: Mapping[str, str]) -> Manifest:
    """A group snapshot of the claims with these labels."""
    source = {"selector": {"matchLabels": dict(labels)}}
    return {
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2",
        "kind": "VolumeGroupSnapshot",
        "metadata": {"name": name},
        "spec": {"source": source, "volumeGroupSnapshotClassName": CLASS},
    }


def pod(
    name: str,
    script: str,
    *,
    volume: Mapping[str, Any],
    results: str,
    first: str = "",
    node: str = "",
    block: bool = False,
    readonly: bool = False,
    sub_path: str = "",
    **more: Any,
) -> Manifest:
    """A pod that runs `first` in an init container, then `script`, with the volume at /data or /dev/data."""
    places: Manifest = {"volumeMounts": [{"name": "results", "mountPath": RESULTS}]}
    if block:
        places["volumeDevices"] = [{"name": "data", "devicePath": "/dev/data"}]
    else:
        mount = {"name": "data", "mountPath": DATA, "readOnly": readonly}
        places["volumeMounts"].append({**mount, **({"subPath": sub_path} if sub_path else {})})
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        **({"initContainers": [_container("first", first, places)]} if first else {}),
        "containers": [_container("main", script, places)],
        "volumes": [{"name": "data", **volume}, {"name": "results", "hostPath": {"path": results}}],
        **({"nodeSelector": {HOSTNAME_LABEL: node}} if node else {}),
        **more,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _container(name: str, script: str, places: Manifest) -> Manifest:
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script], **places}
