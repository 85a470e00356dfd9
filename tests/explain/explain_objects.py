"""Objects for the tests of `volplane explain`, and the result for them without an API server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from tests.controllers import objects
from volplane.api import codec, names
from volplane.api.coordination import Lease
from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.explain.cluster_state import ClusterState
from volplane.explain.resolve import ExplainTarget, explain
from volplane.explain.result import ExplainResult, ExplanationStep, StepState
from volplane.explain.wait_reports import RoleReports
from volplane.loops.wait_reports import WaitReport
from volplane.rules.waits import Wait, WaitReason

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
DRIVER = objects.DRIVER


def at(seconds_ago: float) -> str:
    return (NOW - timedelta(seconds=seconds_ago)).isoformat(timespec="seconds").replace("+00:00", "Z")


def change(obj: Any, **parts: Any) -> Any:
    """The object with some parts replaced, in their JSON form."""
    whole = codec.to_dict(obj)
    for part, value in parts.items():
        whole[part] = {**whole.get(part, {}), **value}
    return codec.convert(type(obj), whole)


def bound_pair(name: str, volume: str, **spec: Any) -> tuple[PersistentVolumeClaim, PersistentVolume]:
    """A claim and a volume that are bound to each other."""
    made = objects.claim(
        name, metadata={"uid": f"uid-{name}", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    )
    claim = change(
        made,
        spec={"volumeName": volume, **spec},
        status={"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]},
    )
    ref = {"namespace": "default", "name": name, "uid": f"uid-{name}"}
    taken = change(objects.volume(volume, claimRef=ref), status={"phase": "Bound"})
    return claim, taken


def node(name: str, *, ready: bool = True, silent: float = 60.0, **parts: Any) -> Node:
    status = parts.pop("status", {})
    condition = {
        "type": "Ready",
        "status": "True" if ready else "Unknown",
        "lastTransitionTime": at(silent),
    }
    made = change(objects.node(name), status={"conditions": [condition], **status})
    changed: Node = change(made, **parts)
    return changed


def in_use(name: str, *volumes: str, attached: bool = True, **more: Any) -> Node:
    """A node that lists volumes in volumesInUse."""
    unique = [names.csi_volume_name(DRIVER, f"vol-{volume}") for volume in volumes]
    listed = [{"name": each, "devicePath": ""} for each in unique] if attached else []
    return node(name, status={"volumesInUse": unique, "volumesAttached": listed}, **more)


def attachment(volume: str, on: str, *, attached: bool = True, **more: Any) -> VolumeAttachment:
    status = {"attached": attached, **more.pop("status", {})}
    name = names.attachment_name(f"vol-{volume}", DRIVER, on)
    metadata = {"name": name, "uid": name, "creationTimestamp": at(120), **more.pop("metadata", {})}
    spec = {"attacher": DRIVER, "nodeName": on, "source": {"persistentVolumeName": volume}}
    return codec.convert(VolumeAttachment, {"metadata": metadata, "spec": spec, "status": status})


def pod(name: str, *claims: str, on: str = "", **parts: Any) -> Pod:
    spec = parts.pop("spec", {})
    made = objects.pod(name, *claims, on=on, **spec)
    metadata = {"uid": f"uid-{name}", "creationTimestamp": at(90), **parts.pop("metadata", {})}
    changed: Pod = change(made, metadata=metadata, **parts)
    return changed


def running(name: str, *claims: str, on: str, **parts: Any) -> Pod:
    state = {"name": "c", "ready": True, "started": True, "state": {"running": {"startedAt": at(50)}}}
    status = {
        "phase": "Running",
        "containerStatuses": [state],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return pod(name, *claims, on=on, status=status, **parts)


def going(obj: Any, seconds: float, grace: int = 0) -> Any:
    return change(
        obj, metadata={"deletionTimestamp": at(seconds - grace), "deletionGracePeriodSeconds": grace}
    )


def registered_node(*on: str) -> list[CSINode]:
    spec = {"drivers": [{"name": DRIVER, "nodeID": "i-1"}]}
    return [codec.convert(CSINode, {"metadata": {"name": name}, "spec": spec}) for name in on]


def event(obj: Resource, reason: str, message: str, *, ago: float = 5, count: int = 3) -> Event:
    about = {"name": obj.name, "namespace": obj.namespace, "uid": obj.uid}
    metadata = {"name": f"{obj.name}.{reason}", "namespace": obj.namespace or "default"}
    whole = {
        "metadata": metadata,
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": "Warning",
        "count": count,
        "lastTimestamp": at(ago),
    }
    return codec.convert(Event, whole)


def lease(name: str, holder: str, *, ago: float = 2, namespace: str = "kube-system") -> Lease:
    stamp = (NOW - timedelta(seconds=ago)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = {"holderIdentity": holder, "renewTime": stamp, "leaseDurationSeconds": 15}
    return codec.convert(Lease, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def report(
    role: str, key: str, wait: Wait | str, *, since: float = 30, left: float | None = None
) -> WaitReport:
    """What a running role reports; a text is the error of a failed attempt."""
    next_try = None if left is None else NOW + timedelta(seconds=left)
    if isinstance(wait, str):
        wait = Wait(WaitReason.RETRY, message=wait)
    return WaitReport.of(role, key, wait, NOW - timedelta(seconds=since), next_try)


def cluster_of(
    *objects: Resource, roles: Sequence[WaitReport] | None = None, unread: Sequence[str] = ()
) -> ClusterState:
    """A cluster of these objects; `unread`: kinds that may not be read."""
    caches = SnapshotCaches(None)
    caches.unread = dict.fromkeys(unread, "forbidden")
    by_kind: dict[type[Resource], dict[str, Resource]] = {}
    for count, obj in enumerate(objects, 1):
        meta = structs.replace(obj.metadata, resource_version=str(count), uid=obj.uid or f"uid-{obj.name}")
        made = structs.replace(obj, metadata=meta)
        by_kind.setdefault(type(obj), {})[made.key] = made
    for kind, found in by_kind.items():
        caches.put(kind, list(found.values()))
        if kind is Event:
            caches.put(kind, list(found.values()), namespace="default")
        if kind is Lease:
            caches.put(kind, list(found.values()), namespace="kube-node-lease")
    reports = RoleReports(roles, asked=True) if roles is not None else None
    return ClusterState(caches, reports, NOW)


async def explain_first(
    subject: Resource,
    *others: Resource,
    roles: Sequence[WaitReport] | None = None,
    unread: Sequence[str] = (),
) -> ExplainResult:
    """Explain the first object, in a cluster of these objects; `unread`: kinds that may not be read."""
    state = cluster_of(subject, *others, roles=roles, unread=unread)
    first = (await state.cache(type(subject))).at(subject.key)
    assert first is not None
    target = ExplainTarget(type(subject), subject.name, subject.namespace)
    return await explain(state, target, first)


def waiting(answer: ExplainResult) -> ExplanationStep:
    """The step that waits."""
    return next(step for step in answer.steps if step.state is StepState.WAITS)
