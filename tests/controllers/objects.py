"""Objects as users write them, in one line each."""

from __future__ import annotations

from typing import Any

from volplane.api import codec
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount
from volplane.api.storage import CSIDriver, StorageClass

DRIVER = "ebs.csi.aws.com"
MANAGED = "volumes.kubernetes.io/controller-managed-attach-detach"


def claim(name: str, size: str = "1Gi", cls: str | None = "", **spec: Any) -> PersistentVolumeClaim:
    metadata = {"name": name, "namespace": "default", **spec.pop("metadata", {})}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec}
    if cls is not None:
        spec["storageClassName"] = cls
    return codec.convert(PersistentVolumeClaim, {"metadata": metadata, "spec": spec})


def volume(name: str, size: str = "1Gi", cls: str = "", **spec: Any) -> PersistentVolume:
    metadata = {"name": name, **spec.pop("metadata", {})}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": size},
        "storageClassName": cls,
        "csi": {"driver": DRIVER, "volumeHandle": f"vol-{name}"},
        **spec,
    }
    return codec.convert(PersistentVolume, {"metadata": metadata, "spec": spec})


def storage_class(name: str, mode: str = "Immediate", default: bool = False, **more: Any) -> StorageClass:
    notes = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    whole = {
        "metadata": {"name": name, "annotations": notes},
        "provisioner": DRIVER,
        "volumeBindingMode": mode,
    }
    return codec.convert(StorageClass, {**whole, **more})


def pod(name: str, *claims: str, on: str = "", **spec: Any) -> Pod:
    volumes = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": c}} for i, c in enumerate(claims)]
    spec = {"containers": [{"name": "c", "image": "busybox"}], "volumes": volumes, "nodeName": on, **spec}
    return codec.convert(Pod, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})


def node(name: str, *, zone: str = "a", ready: bool = True, **more: Any) -> Node:
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
    status = {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
    }
    metadata = {"name": name, "labels": labels, "annotations": {MANAGED: "true"}}
    return codec.convert(Node, {"metadata": metadata, "spec": more, "status": status})


def driver(**spec: Any) -> CSIDriver:
    return codec.convert(CSIDriver, {"metadata": {"name": DRIVER}, "spec": spec})


def account() -> ServiceAccount:
    """Without it no pod is let in."""
    return codec.convert(ServiceAccount, {"metadata": {"name": "default", "namespace": "default"}})
