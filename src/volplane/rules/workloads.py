"""What all workload controllers share: ownership of pods, availability, pods from templates."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from msgspec import Struct, structs

from volplane.api import codec, kinds
from volplane.api.apps import Deployment, ReplicaSet, StatefulSet
from volplane.api.core import Pod, PodTemplateSpec, ReplicationController
from volplane.api.meta import ObjectMeta, OwnerReference, Resource
from volplane.rules.pods import has_ended
from volplane.rules.waits import Wait, WaitReason

S = TypeVar("S")

_HASH_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class CreatePod(Struct, frozen=True):
    """A step of all workload controllers."""

    pod: Pod


class DeletePod(Struct, frozen=True):
    """A step of all workload controllers."""

    pod: Pod


def owner_reference(owner: Resource) -> OwnerReference:
    kind = kinds.of(type(owner))
    return OwnerReference(
        api_version=kind.api_version,
        kind=kind.kind,
        name=owner.name,
        uid=owner.uid,
        controller=True,
        block_owner_deletion=True,
    )


def controller_of(obj: Resource) -> OwnerReference | None:
    return next((r for r in obj.metadata.owner_references if r.controller), None)


def owner_keys(kind: str, *objects: Resource | None) -> Iterator[str]:
    """Keys function: the owners of this kind."""
    for obj in objects:
        owner = controller_of(obj) if obj else None
        if obj and owner and owner.kind == kind:
            yield f"{obj.namespace}/{owner.name}"


def controller_uids(obj: Resource) -> list[str]:
    """Index function: the uid of the controller."""
    reference = controller_of(obj)
    return [reference.uid] if reference else []


def orphan_namespaces(obj: Resource) -> list[str]:
    """Index function: the namespace of an object without a controller, which may be adopted."""
    return [] if controller_of(obj) else [obj.namespace]


def desired_replicas(wanted: Deployment | ReplicaSet | ReplicationController | StatefulSet) -> int:
    return 1 if wanted.spec.replicas is None else wanted.spec.replicas


def is_active(pod: Pod) -> bool:
    """Whether the pod counts as a replica: neither finished nor terminating."""
    return not has_ended(pod) and not pod.is_deleting


def is_ready(pod: Pod) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)


def ready_since(pod: Pod) -> str:
    """The time when the pod became Ready, as a string; "" while it is not."""
    return next(
        (c.last_transition_time for c in pod.status.conditions if c.type == "Ready" and c.status == "True"),
        "",
    )


def available_in(pod: Pod, min_ready_seconds: int, now: datetime) -> float:
    """Seconds until the pod is available: 0 if it is, infinite while it is not Ready."""
    if not is_ready(pod):
        return math.inf
    if not min_ready_seconds:
        return 0.0
    since = ready_since(pod)
    if not since:
        return math.inf
    return max(min_ready_seconds - (now - datetime.fromisoformat(since)).total_seconds(), 0.0)


def availability(pods: Iterable[Pod], min_ready_seconds: int, now: datetime) -> Iterator[Wait]:
    """Wait for minReadySeconds of ready pods: no event wakes the key then."""
    left = (available_in(p, min_ready_seconds, now) for p in pods if not p.is_deleting)
    coming = [seconds for seconds in left if seconds and math.isfinite(seconds)]
    if coming:
        yield Wait(WaitReason.MIN_READY_SECONDS, seconds=min(coming))


def template_hash(template: PodTemplateSpec, collisions: int = 0) -> str:
    """A short hash: equal templates have equal hashes."""
    digest = hashlib.sha256(codec.encode(template) + str(collisions or "").encode()).digest()
    return "".join(_HASH_ALPHABET[b % len(_HASH_ALPHABET)] for b in digest[:10])


def pod_of(
    template: PodTemplateSpec,
    owner: Resource,
    *,
    name: str = "",
    labels: Mapping[str, str] | None = None,
) -> Pod:
    """The pod that an owner creates from a template."""
    metadata = ObjectMeta(
        name=name,
        generate_name="" if name else f"{owner.name}-",
        namespace=owner.namespace,
        labels={**template.metadata.labels, **(labels or {})},
        annotations=template.metadata.annotations,
        finalizers=template.metadata.finalizers,
        owner_references=(owner_reference(owner),),
    )
    return Pod(metadata=metadata, spec=template.spec)


def without_label(template: PodTemplateSpec, label: str) -> PodTemplateSpec:
    kept = {k: v for k, v in template.metadata.labels.items() if k != label}
    return structs.replace(template, metadata=structs.replace(template.metadata, labels=kept))


def fraction_of(value: int | str | None, total: int, *, round_up: bool, default: int) -> int:
    """A percentage (`25%`) or number, as a number of the total."""
    if value is None:
        return default
    if isinstance(value, int):
        return value
    share = int(value.rstrip("%")) * total
    return -(-share // 100) if round_up else share // 100


def workload_batches(steps: Sequence[S]) -> Iterator[Sequence[S]]:
    """The steps in groups that are carried out concurrently: owners, deletions, creations, status, waits.

    Pods are created in groups of 1, 2, 4, …: if all would be refused, few attempts fail.
    """
    pods = CreatePod, DeletePod
    first = next((at for at, step in enumerate(steps) if isinstance(step, (*pods, Wait))), len(steps))
    yield steps[:first]
    yield [step for step in steps if isinstance(step, DeletePod)]
    yield from slow_start([step for step in steps if isinstance(step, CreatePod)])
    yield [step for step in steps[first:] if not isinstance(step, (*pods, Wait))]
    yield [step for step in steps if isinstance(step, Wait)]


def slow_start(steps: Sequence[S]) -> Iterator[Sequence[S]]:
    at, size = 0, 1
    while at < len(steps):
        yield steps[at : at + size]
        at, size = at + size, size * 2


def sort_for_deletion(pods: Iterable[Pod]) -> list[Pod]:
    """Pods in the order of deletion: unscheduled, pending, not ready, youngest first."""

    def cost(pod: Pod) -> tuple[bool, bool, bool, int]:
        age = -_as_number(pod.metadata.creation_timestamp)
        return bool(pod.spec.node_name), pod.status.phase == "Running", is_ready(pod), age

    return sorted(sorted(pods, key=lambda p: p.name), key=cost)


def _as_number(stamp: str) -> int:
    return int("".join(c for c in stamp if c.isdigit()) or 0)
