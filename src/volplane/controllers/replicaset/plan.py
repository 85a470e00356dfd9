"""How many pods to create or delete, and what the status is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct, structs

from volplane.api.apps import ReplicaSet, ReplicaSetStatus
from volplane.api.core import Pod, PodTemplateSpec, ReplicationController, ReplicationControllerStatus
from volplane.rules.waits import Wait
from volplane.rules.workloads import (
    CreatePod,
    DeletePod,
    availability,
    available_in,
    first_to_go,
    is_active,
    is_ready,
    pod_of,
)

BURST = 500  # upstream's limit on pods made or deleted in one pass


Wanted = ReplicaSet | ReplicationController  # the older one differs in its selector, and in nothing here
Status = ReplicaSetStatus | ReplicationControllerStatus


class SetReplicaSetStatus(Struct, frozen=True):
    status: Status


Step = CreatePod | DeletePod | SetReplicaSetStatus


def plan(wanted: Wanted, pods: Sequence[Pod], now: datetime) -> Iterator[Step | Wait]:
    """Steps for a set and the pods it controls."""
    active = [p for p in pods if is_active(p)]
    missing = desired_replicas(wanted) - len(active)
    if not wanted.is_deleting:
        if missing > 0:
            made = pod_of(template_of(wanted), wanted)
            yield from (CreatePod(made) for _ in range(min(missing, BURST)))
        for pod in first_to_go(active)[: min(max(-missing, 0), BURST)]:
            yield DeletePod(pod)
    status = current_status(wanted, active, now)
    if status != wanted.status:
        yield SetReplicaSetStatus(status)
    yield from availability(active, wanted.spec.min_ready_seconds, now)


def desired_replicas(wanted: Wanted) -> int:
    return 1 if wanted.spec.replicas is None else wanted.spec.replicas


def template_of(wanted: Wanted) -> PodTemplateSpec:
    return wanted.spec.template or PodTemplateSpec()


def current_status(wanted: Wanted, active: Sequence[Pod], now: datetime) -> Status:
    enough = wanted.spec.min_ready_seconds
    labels = template_of(wanted).metadata.labels.items()
    return structs.replace(
        wanted.status,
        replicas=len(active),
        fully_labeled_replicas=sum(labels <= p.metadata.labels.items() for p in active),
        ready_replicas=sum(is_ready(p) for p in active),
        available_replicas=sum(available_in(p, enough, now) == 0 for p in active),
        observed_generation=wanted.metadata.generation,
    )
