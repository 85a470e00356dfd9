"""Which ReplicaSet serves the current template, and how replicas move from the old ones to it.

Rolling: the new set grows while all pods together stay below replicas + maxSurge, the old ones shrink while
the ready ones stay at or above replicas - maxUnavailable. Recreate: the new set grows only when the old pods
are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, structs

from volplane.api.apps import Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetSpec
from volplane.api.core import PodTemplateSpec
from volplane.api.meta import LabelSelector, ObjectMeta
from volplane.api.selectors import LabelMatcher
from volplane.rules.adoption import AdoptionStep, claim_objects
from volplane.rules.waits import Wait, WaitReason
from volplane.rules.workloads import (
    controller_uids,
    desired_replicas,
    fraction_of,
    owner_reference,
    template_hash,
    without_label,
)

HASH_LABEL = "pod-template-hash"
REPLICA_FAILURE, CREATE_ERROR = "ReplicaFailure", "ReplicaSetCreateError"
REVISION = "deployment.kubernetes.io/revision"


class CreateReplicaSet(Struct, frozen=True):
    set: ReplicaSet


class ScaleReplicaSet(Struct, frozen=True):
    set: ReplicaSet
    replicas: int


class SetRevision(Struct, frozen=True):
    """An older set serves the template again: it gets the newest revision number."""

    set: ReplicaSet
    revision: int


class DeleteReplicaSet(Struct, frozen=True):
    set: ReplicaSet


class SetDeploymentStatus(Struct, frozen=True):
    status: DeploymentStatus


Step = (
    AdoptionStep | CreateReplicaSet | ScaleReplicaSet | SetRevision | DeleteReplicaSet | SetDeploymentStatus
)


class DeploymentView(Struct, frozen=True):
    wanted: Deployment
    sets: Sequence[ReplicaSet]  # that it controls
    now: str
    orphans: Sequence[ReplicaSet] = ()  # of its namespace, without a controller
    failure: str = ""  # why the new set could not be created in this pass


def plan(view: DeploymentView) -> Iterator[Step | Wait]:
    wanted, now = view.wanted, view.now
    claimed = claim_objects(wanted, selector_of(wanted), view.sets, view.orphans)
    sets = claimed.objects
    if view.failure:
        status = current_status(wanted, None, sets, now, failure=view.failure)
        if status != wanted.status:
            yield SetDeploymentStatus(status)
        yield Wait(WaitReason.RETRY, message=view.failure, backoff=True)
        return
    yield from claimed.steps
    current = next((s for s in sets if serves(s, wanted)), None)
    old = [s for s in sets if s is not current]
    if not wanted.is_deleting:
        if current is None:
            yield CreateReplicaSet(new_set(wanted, old))
        else:
            newest = max((revision_of(s) for s in old), default=0)
            if revision_of(current) <= newest:
                yield SetRevision(current, newest + 1)
            yield from _move(wanted, current, old)
            yield from _history(wanted, old)
    status = current_status(wanted, current, sets, now)
    if status != wanted.status:
        yield SetDeploymentStatus(status)


def selector_of(wanted: Deployment) -> LabelMatcher:
    return LabelMatcher.of(wanted.spec.selector)


def is_same_set(held: ReplicaSet, made: ReplicaSet) -> bool:
    """Whether the set that exists is the one that was to be made: of the same owner and template."""
    same = without_label(held.spec.template, HASH_LABEL) == without_label(made.spec.template, HASH_LABEL)
    return same and controller_uids(held) == controller_uids(made)


def serves(candidate: ReplicaSet, wanted: Deployment) -> bool:
    return without_label(candidate.spec.template, HASH_LABEL) == wanted.spec.template


def revision_of(candidate: ReplicaSet) -> int:
    text = candidate.metadata.annotations.get(REVISION, "")
    return int(text) if text.isdigit() else 0


def new_set(wanted: Deployment, old: Sequence[ReplicaSet]) -> ReplicaSet:
    """The set for the current template; its first size is what the strategy allows now."""
    spec = wanted.spec
    digest = template_hash(spec.template, wanted.status.collision_count or 0)
    labels = {**spec.template.metadata.labels, HASH_LABEL: digest}
    selector = spec.selector or LabelSelector()
    revision = max((revision_of(s) for s in old), default=0) + 1
    return ReplicaSet(
        metadata=ObjectMeta(
            name=f"{wanted.name}-{digest}",
            namespace=wanted.namespace,
            labels=labels,
            annotations={**wanted.metadata.annotations, REVISION: str(revision)},
            owner_references=(owner_reference(wanted),),
        ),
        spec=ReplicaSetSpec(
            replicas=_room(wanted, old, 0),
            min_ready_seconds=spec.min_ready_seconds,
            selector=structs.replace(selector, match_labels={**selector.match_labels, HASH_LABEL: digest}),
            template=_add_labels(spec.template, labels),
        ),
    )


def _add_labels(template: PodTemplateSpec, labels: dict[str, str]) -> PodTemplateSpec:
    return structs.replace(template, metadata=structs.replace(template.metadata, labels=labels))


def _size(candidate: ReplicaSet) -> int:
    return candidate.spec.replicas or 0


def _surge(wanted: Deployment) -> tuple[int, int]:
    """maxSurge and maxUnavailable as numbers; if both are zero, one pod may be unavailable."""
    total, rolling = desired_replicas(wanted), wanted.spec.strategy.rolling_update
    surge = fraction_of(rolling.max_surge if rolling else None, total, round_up=True, default=-(-total // 4))
    missing = fraction_of(
        rolling.max_unavailable if rolling else None, total, round_up=False, default=total // 4
    )
    return surge, (missing if surge or missing else 1)


def _room(wanted: Deployment, old: Sequence[ReplicaSet], current: int) -> int:
    """How large the new set may be now."""
    total = desired_replicas(wanted)
    if wanted.spec.strategy.type == "Recreate":
        return 0 if any(s.status.replicas or _size(s) for s in old) else total
    surge, _ = _surge(wanted)
    others = sum(_size(s) for s in old)
    return min(total, max(current, total + surge - others))


def _move(wanted: Deployment, current: ReplicaSet, old: Sequence[ReplicaSet]) -> Iterator[ScaleReplicaSet]:
    total = desired_replicas(wanted)
    if wanted.spec.paused:
        return
    size = min(total, _room(wanted, old, _size(current)))
    if size != _size(current):
        yield ScaleReplicaSet(current, size)
    yield from _shrink(wanted, current, [s for s in old if _size(s)], total)


def _shrink(
    wanted: Deployment, current: ReplicaSet, old: list[ReplicaSet], total: int
) -> Iterator[ScaleReplicaSet]:
    if wanted.spec.strategy.type == "Recreate":
        yield from (ScaleReplicaSet(s, 0) for s in old)
        return
    _, missing = _surge(wanted)
    serving = current.status.available_replicas + sum(s.status.available_replicas for s in old)
    spare = serving - (total - missing)
    for candidate in sorted(old, key=revision_of):
        # Pods that are not ready are deleted first: they do not count as available.
        idle = max(_size(candidate) - candidate.status.ready_replicas, 0)
        give = idle + min(max(spare, 0), _size(candidate) - idle)
        spare -= give - idle
        if give:
            yield ScaleReplicaSet(candidate, _size(candidate) - give)


def _history(wanted: Deployment, old: Sequence[ReplicaSet]) -> Iterator[DeleteReplicaSet]:
    limit = 10 if wanted.spec.revision_history_limit is None else wanted.spec.revision_history_limit
    idle = [s for s in old if not _size(s) and not s.status.replicas and not s.is_deleting]
    yield from (DeleteReplicaSet(s) for s in sorted(idle, key=revision_of)[: max(len(idle) - limit, 0)])


def current_status(
    wanted: Deployment,
    current: ReplicaSet | None,
    sets: Sequence[ReplicaSet],
    now: str,
    *,
    failure: str = "",
) -> DeploymentStatus:
    total = sum(s.status.replicas for s in sets)
    ready = sum(s.status.ready_replicas for s in sets)
    available = sum(s.status.available_replicas for s in sets)
    updated = current.status.replicas if current else 0
    enough = available >= desired_replicas(wanted) - _surge(wanted)[1]
    done = updated == total == available == desired_replicas(wanted)
    return DeploymentStatus(
        observed_generation=wanted.metadata.generation,
        replicas=total,
        updated_replicas=updated,
        ready_replicas=ready,
        available_replicas=available,
        unavailable_replicas=max(desired_replicas(wanted) - available, 0),
        collision_count=wanted.status.collision_count,
        conditions=(
            _availability(wanted, enough, now),
            _create_error(wanted, failure, now) if failure else _progress(wanted, current, done, now),
            *_failures(current, sets),
        ),
    )


def _failures(current: ReplicaSet | None, sets: Sequence[ReplicaSet]) -> tuple[DeploymentCondition, ...]:
    """Why pods cannot be created: the condition of the current set, else of any."""
    for each in (current, *sets):
        for condition in each.status.conditions if each is not None else ():
            if condition.type == REPLICA_FAILURE:
                return (
                    DeploymentCondition(
                        type=condition.type,
                        status=condition.status,
                        reason=condition.reason,
                        message=condition.message,
                        last_update_time=condition.last_transition_time,
                        last_transition_time=condition.last_transition_time,
                    ),
                )
    return ()


def _availability(wanted: Deployment, enough: bool, now: str) -> DeploymentCondition:
    if enough:
        return _condition(
            wanted,
            "Available",
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
            now,
        )
    text = "Deployment does not have minimum availability."
    return _condition(wanted, "Available", "False", "MinimumReplicasUnavailable", text, now)


def _progress(wanted: Deployment, current: ReplicaSet | None, done: bool, now: str) -> DeploymentCondition:
    name = current.name if current else ""
    if done and current:
        text = f'ReplicaSet "{name}" has successfully progressed.'
        return _condition(wanted, "Progressing", "True", "NewReplicaSetAvailable", text, now)
    reason = "ReplicaSetUpdated" if current else "NewReplicaSetCreated"
    return _condition(wanted, "Progressing", "True", reason, f'ReplicaSet "{name}" is progressing.', now)


def _create_error(wanted: Deployment, failure: str, now: str) -> DeploymentCondition:
    return _condition(wanted, "Progressing", "False", CREATE_ERROR, failure, now)


def _condition(
    wanted: Deployment, type: str, status: str, reason: str, message: str, now: str
) -> DeploymentCondition:
    """The condition; its times change only with its content."""
    held = next((c for c in wanted.status.conditions if c.type == type), None)
    if held and (held.status, held.reason, held.message) == (status, reason, message):
        return held
    since = held.last_transition_time if held and held.status == status else now
    return DeploymentCondition(
        type=type,
        status=status,
        reason=reason,
        message=message,
        last_update_time=now,
        last_transition_time=since,
    )
