"""How many pods to make or give up, and what the status says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct, structs

from volplane.api.apps import ReplicaSet, ReplicaSetStatus
from volplane.api.core import Pod, PodTemplateSpec, ReplicationController, ReplicationControllerStatus
from volplane.rules.steps import Wait
from volplane.rules.workloads import availability, available_in, first_to_go, is_active, is_ready

BURST = 500  # upstream's limit on pods made or deleted in one pass


Wanted = ReplicaSet | ReplicationController  # the older one differs in its selector, and in nothing here
Status = ReplicaSetStatus | ReplicationControllerStatus


class Create(Struct, frozen=True):
    count: int


class Delete(Struct, frozen=True):
    pod: Pod


class Report(Struct, frozen=True):
    status: Status


def plan(wanted: Wanted, pods: Sequence[Pod], now: datetime) -> Iterator[Create | Delete | Report | Wait]:
    """Steps for a set and the pods it controls."""
    active = [p for p in pods if is_active(p)]
    missing = desired(wanted) - len(active)
    if not wanted.is_deleting:
        if missing > 0:
            yield Create(min(missing, BURST))
        for pod in first_to_go(active)[: min(max(-missing, 0), BURST)]:
            yield Delete(pod)
    status = observed(wanted, active, now)
    if status != wanted.status:
        yield Report(status)
    yield from availability(active, wanted.spec.min_ready_seconds, now)


def desired(wanted: Wanted) -> int:
    return 1 if wanted.spec.replicas is None else wanted.spec.replicas


def template_of(wanted: Wanted) -> PodTemplateSpec:
    return wanted.spec.template or PodTemplateSpec()


def observed(wanted: Wanted, active: Sequence[Pod], now: datetime) -> Status:
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
