"""The form of an object in which another cluster can create it.

A claim and its volume, and a snapshot and its content, refer to each other by UID. Another server gives them
other UIDs, so they are written as if a person had bound them: by name. Nothing is provisioned, no snapshot is
taken, and no volume is released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volplane.api.finalizers import PROVISIONING_INTENT_FINALIZER

Json = dict[str, Any]

_SERVER_FIELDS = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
_DECISIONS = (  # annotations of the binder, the scheduler and the provisioner
    PROVISIONING_INTENT_FINALIZER,
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "volume.kubernetes.io/selected-node",
)
_SNAPSHOT_GROUP = "snapshot.storage.k8s.io"


def make_portable(obj: Json) -> Json:
    """A copy without what only its server knows: status, UIDs, addresses, node."""
    metadata = {k: v for k, v in obj["metadata"].items() if k not in _SERVER_FIELDS}
    made = {**{k: v for k, v in obj.items() if k != "status"}, "metadata": metadata}
    group = made["apiVersion"].rpartition("/")[0]
    change = _CHANGES.get((group, made["kind"]))
    return change(made, obj.get("status") or {}) if change is not None else made


def _with_spec(obj: Json, **changes: Any) -> Json:
    """None removes a field."""
    spec = {**obj.get("spec", {}), **changes}
    return {**obj, "spec": {name: value for name, value in spec.items() if value is not None}}


def _without(values: Json, *names: str) -> Json:
    return {name: value for name, value in values.items() if name not in names}


def _volume(obj: Json, status: Json) -> Json:
    claim = obj["spec"].get("claimRef")
    if claim is None:
        return obj
    return _with_spec(obj, claimRef=_without(claim, "uid", "resourceVersion"))


def _claim(obj: Json, status: Json) -> Json:
    metadata = obj["metadata"]
    annotations = _without(metadata.get("annotations") or {}, *_DECISIONS)
    finalizers = [f for f in metadata.get("finalizers") or () if f != PROVISIONING_INTENT_FINALIZER]
    return {**obj, "metadata": {**metadata, "annotations": annotations, "finalizers": finalizers}}


def _snapshot_content(obj: Json, status: Json) -> Json:
    reference = _without(obj["spec"]["volumeSnapshotRef"], "uid", "resourceVersion")
    handle = status.get("snapshotHandle") or obj["spec"]["source"].get("snapshotHandle")
    source = {"snapshotHandle": handle} if handle else obj["spec"]["source"]
    return _with_spec(obj, volumeSnapshotRef=reference, source=source)


def _snapshot(obj: Json, status: Json) -> Json:
    content = status.get("boundVolumeSnapshotContentName")
    if not content or not status.get("readyToUse"):
        return obj
    return _with_spec(obj, source={"volumeSnapshotContentName": content})


def _service(obj: Json, status: Json) -> Json:
    headless = obj["spec"].get("clusterIP") == "None"
    addresses = {} if headless else {"clusterIP": None, "clusterIPs": None}
    return _with_spec(obj, healthCheckNodePort=None, **addresses)


def _pod(obj: Json, status: Json) -> Json:
    return _with_spec(obj, nodeName=None, ephemeralContainers=None)


def _job(obj: Json, status: Json) -> Json:
    """The server makes the selector, and the labels that it matches, from the UID."""
    if obj["spec"].get("manualSelector"):
        return obj
    template = obj["spec"]["template"]
    metadata = template.get("metadata") or {}
    own = ("controller-uid", "batch.kubernetes.io/controller-uid")
    labels = _without(metadata.get("labels") or {}, *own)
    made = _with_spec(obj, selector=None, template={**template, "metadata": {**metadata, "labels": labels}})
    kept = _without(obj["metadata"].get("labels") or {}, *own)
    return {**made, "metadata": {**obj["metadata"], "labels": kept}}


_CHANGES: dict[tuple[str, str], Callable[[Json, Json], Json]] = {
    ("", "PersistentVolume"): _volume,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "Pod"): _pod,
    ("", "Service"): _service,
    ("batch", "Job"): _job,
    (_SNAPSHOT_GROUP, "VolumeSnapshot"): _snapshot,
    (_SNAPSHOT_GROUP, "VolumeSnapshotContent"): _snapshot_content,
}
