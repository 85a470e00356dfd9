"""Which pods a set has, how many to create or delete, and what the status is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct, structs

from volplane.api.apps import ReplicaSet, ReplicaSetCondition, ReplicaSetStatus
from volplane.api.core import (
    Pod,
    PodTemplateSpec,
    ReplicationController,
    ReplicationControllerCondition,
    ReplicationControllerStatus,
)
from volplane.api.selectors import LabelMatcher
from volplane.base.units import format_time
from volplane.rules.adoption import AdoptionStep, claim_objects
from volplane.rules.waits import Wait, WaitReason
from volplane.rules.workloads import (
    CreatePod,
    DeletePod,
    availability,
    available_in,
    desired_replicas,
    is_active,
    is_ready,
    pod_of,
    sort_for_deletion,
)

BURST = 500  # upstream's limit on pods made or deleted in one pass
REPLICA_FAILURE = "ReplicaFailure"

Wanted = ReplicaSet | ReplicationController  # the older one differs in its selector, and in nothing here
Status = ReplicaSetStatus | ReplicationControllerStatus
_CONDITIONS = {
    ReplicaSet: ReplicaSetCondition,
    ReplicationController: ReplicationControllerCondition,
}


class ReplicaSetView(Struct, frozen=True):
    wanted: Wanted
    pods: Sequence[Pod]  # that it controls
    orphans: Sequence[Pod]  # of its namespace, without a controller
    now: datetime
    failure: str = ""  # why a pod could not be created or deleted in this pass


class SetReplicaSetStatus(Struct, frozen=True):
    status: Status


Step = AdoptionStep | CreatePod | DeletePod | SetReplicaSetStatus


def plan(view: ReplicaSetView) -> Iterator[Step | Wait]:
    wanted, now = view.wanted, view.now
    selector = selector_of(wanted)
    claimed = claim_objects(wanted, selector, _active(view.pods), _active(view.orphans))
    active = claimed.objects
    missing = desired_replicas(wanted) - len(active)
    if not view.failure:
        yield from claimed.steps
        if not wanted.is_deleting:
            yield from _change_number(wanted, active, missing)
    status = current_status(wanted, active, now)
    status = _set_failure(status, wanted, view.failure, missing, now)
    if status != wanted.status:
        yield SetReplicaSetStatus(status)
    yield from availability(active, wanted.spec.min_ready_seconds, now)
    if view.failure:
        yield Wait(WaitReason.RETRY, message=view.failure, backoff=True)


def _active(pods: Sequence[Pod]) -> list[Pod]:
    return [pod for pod in pods if is_active(pod)]


def _change_number(wanted: Wanted, active: Sequence[Pod], missing: int) -> Iterator[CreatePod | DeletePod]:
    if missing > 0:
        made = pod_of(template_of(wanted), wanted)
        yield from (CreatePod(made) for _ in range(min(missing, BURST)))
    for pod in sort_for_deletion(active)[: min(max(-missing, 0), BURST)]:
        yield DeletePod(pod)


def selector_of(wanted: Wanted) -> LabelMatcher:
    if isinstance(wanted, ReplicaSet):
        return LabelMatcher.of(wanted.spec.selector)
    return LabelMatcher.equal(wanted.spec.selector)


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


def _set_failure(status: Status, wanted: Wanted, failure: str, missing: int, now: datetime) -> Status:
    """Set or remove the condition ReplicaFailure. It keeps the first message until pods can be created."""
    held = any(c.type == REPLICA_FAILURE for c in status.conditions)
    if held is bool(failure):
        return status
    others = tuple(c for c in status.conditions if c.type != REPLICA_FAILURE)
    if not failure:
        return structs.replace(status, conditions=others)
    condition = _CONDITIONS[type(wanted)](
        type=REPLICA_FAILURE,
        status="True",
        reason="FailedCreate" if missing > 0 else "FailedDelete",
        message=failure,
        last_transition_time=format_time(now),
    )
    return structs.replace(status, conditions=(*others, condition))
