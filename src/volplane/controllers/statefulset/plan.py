"""Which pods of a set are created, deleted or replaced next.

With OrderedReady the set does one thing at a time: a pod is created when all before it are available, and
deleted when all that stay are. With Parallel nothing waits for a sibling, except an update. Scaling comes
before updating; an update takes the highest ordinal first and stops at the partition.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from volplane.api.apps import ControllerRevision, StatefulSet, StatefulSetStatus
from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.api.meta import OwnerReference
from volplane.api.selectors import LabelMatcher
from volplane.controllers.statefulset import identity
from volplane.controllers.statefulset.revisions import (
    POD_LABEL,
    RevisionHistory,
    TemplateRevision,
    history,
    last_known,
    revisions_to_delete,
)
from volplane.rules.adoption import AdoptionStep, AdoptObject, ReleaseObject
from volplane.rules.pods import has_ended
from volplane.rules.steps import CommonStep, RecordEvent, warning
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.rules.workloads import DeletePod, availability, available_in, desired_replicas, is_ready


class StatefulSetView(Struct, frozen=True):
    """A set and the objects that its plan depends on."""

    wanted: StatefulSet
    now: datetime
    pods: Sequence[Pod] = ()  # those it controls
    revisions: Sequence[ControllerRevision] = ()
    claims: Mapping[str, PersistentVolumeClaim] = {}  # of the namespace, by name
    orphans: Sequence[Pod | ControllerRevision] = ()  # of the namespace, without a controller


class CreateRevision(Struct, frozen=True):
    revision: ControllerRevision


class SetRevisionNumber(Struct, frozen=True):
    revision: ControllerRevision
    number: int


class DeleteRevision(Struct, frozen=True):
    revision: ControllerRevision


class CreatePodWithClaims(Struct, frozen=True):
    pod: Pod
    claims: tuple[PersistentVolumeClaim, ...] = ()  # made before it


class CreateClaims(Struct, frozen=True):
    """Create claims again that were deleted while their pod is Pending."""

    pod: Pod
    claims: tuple[PersistentVolumeClaim, ...]


class SetOwnerRefs(Struct, frozen=True):
    claim: PersistentVolumeClaim
    owners: tuple[OwnerReference, ...]


class SetPodLabels(Struct, frozen=True):
    pod: Pod
    labels: Mapping[str, str]


class SetStatefulSetStatus(Struct, frozen=True):
    status: StatefulSetStatus


PodStep = CreatePodWithClaims | CreateClaims | SetOwnerRefs | SetPodLabels | DeletePod
Step = AdoptionStep | CreateRevision | SetRevisionNumber | DeleteRevision | SetStatefulSetStatus | PodStep


def plan(view: StatefulSetView) -> Iterator[Step | CommonStep]:
    wanted, pods = view.wanted, [p for p in view.pods if belongs(view.wanted, p)]
    if wanted.is_deleting:
        # Revisions and pods of a deleted set may be orphaned: the status reports what was known last.
        yield from _report(view, pods, last_known(wanted))
        return
    adopted = list(_adopt(view))
    yield from adopted
    yield from (ReleaseObject(p) for p in view.pods if p not in pods and not p.is_deleting)
    if adopted:
        return  # the next plan sees them as owned
    held = history(wanted, view.revisions)
    if held.create is not None:
        yield CreateRevision(held.create)
    if held.renumber is not None:
        yield SetRevisionNumber(*held.renumber)
    yield from (DeleteRevision(r) for r in revisions_to_delete(wanted, held, view.revisions, pods))
    yield from _report(view, pods, held)
    yield from _pod_steps(view, pods, held)
    yield from availability(pods, view.wanted.spec.min_ready_seconds, view.now)


def belongs(wanted: StatefulSet, pod: Pod) -> bool:
    return identity.parse(pod.name)[0] == wanted.name and _is_selected(wanted, pod)


def _is_selected(wanted: StatefulSet, obj: Pod | ControllerRevision) -> bool:
    return LabelMatcher.of(wanted.spec.selector).matches(obj.metadata.labels)


def _adopt(view: StatefulSetView) -> Iterator[AdoptObject]:
    for orphan in view.orphans:
        if orphan.is_deleting:
            continue
        if isinstance(orphan, Pod):
            if belongs(view.wanted, orphan):
                yield AdoptObject(orphan)
        elif _is_selected(view.wanted, orphan) and orphan.name.startswith(f"{view.wanted.name}-"):
            yield AdoptObject(orphan)


# Pods


def _pod_steps(
    view: StatefulSetView, pods: Sequence[Pod], held: RevisionHistory
) -> Iterator[PodStep | Wait | RecordEvent]:
    wanted = view.wanted
    ordinals = identity.ordinals(wanted)
    present = {identity.parse(p.name)[1]: p for p in pods}
    at_once = wanted.spec.pod_management_policy == "Parallel"
    complete = True
    for ordinal in ordinals:
        halts = yield from _plan_ordinal(view, ordinal, present.get(ordinal), held, at_once)
        complete = complete and not halts
        if halts and not at_once:
            return
    surplus = [present[o] for o in sorted(present.keys() - set(ordinals), reverse=True)]
    for pod in surplus:
        yield from _set_owners(view, pod, given_up=True)
    shrinks = yield from _plan_surplus(view, surplus, at_once)
    if complete and not shrinks and wanted.spec.update_strategy.type != "OnDelete":
        yield from _update(view, [present[o] for o in ordinals], held.update)


def _plan_ordinal(
    view: StatefulSetView, ordinal: int, pod: Pod | None, held: RevisionHistory, at_once: bool
) -> Generator[PodStep | Wait | RecordEvent, None, bool]:
    """One ordinal; returns whether those after it have to wait."""
    if pod is None:
        yield from _plan_new_pod(view, ordinal, held)
        return True
    if has_ended(pod):
        if not pod.is_deleting:
            yield DeletePod(pod)  # the next one is created when it is gone
        return True
    if pod.status.phase == "Pending" and not pod.is_deleting:
        missing = tuple(c for c in identity.claims_of(view.wanted, ordinal) if c.name not in view.claims)
        if missing:
            yield CreateClaims(pod, missing)
    if not at_once:
        wait = _wait_for_pod(view, pod)
        if wait is not None:
            yield wait
            return True
    if labels := identity.missing_labels(pod):
        yield SetPodLabels(pod, labels)
    yield from _set_owners(view, pod, given_up=False)
    return False


def _wait_for_pod(view: StatefulSetView, pod: Pod) -> Wait | None:
    """Why the pods after this one have to wait; None if they need not."""
    data = WaitData(pods=(pod.name,))
    if pod.is_deleting:
        return Wait(WaitReason.POD_TERMINATING, data)
    if pod.status.phase != "Running" or not is_ready(pod):
        return Wait(WaitReason.POD_NOT_READY, data)
    return None if _is_available(view, pod) else Wait(WaitReason.POD_NOT_AVAILABLE, data)


def _is_available(view: StatefulSetView, pod: Pod) -> bool:
    return available_in(pod, view.wanted.spec.min_ready_seconds, view.now) == 0 and not pod.is_deleting


def _plan_new_pod(
    view: StatefulSetView, ordinal: int, held: RevisionHistory
) -> Iterator[CreatePodWithClaims | SetOwnerRefs | Wait | RecordEvent]:
    wanted = view.wanted
    pod = identity.new_pod(wanted, _revision_for(wanted, ordinal, held), ordinal)
    claims = list(identity.claims_of(wanted, ordinal))
    present = [view.claims[c.name] for c in claims if c.name in view.claims]
    for claim in present:
        if identity.is_stale(claim, wanted, pod):
            yield Wait(WaitReason.CLAIM_OF_EARLIER_POD, WaitData(claim=claim.name, pods=(pod.name,)))
            return
        if claim.is_deleting:
            why = f"pvc {claim.name} is being deleted"
            yield warning(
                "FailedCreate", f"Create Pod {pod.name} in StatefulSet {wanted.name} failed error: {why}"
            )
            yield Wait(WaitReason.CLAIM_BEING_DELETED, WaitData(claim=claim.name))
            return
    yield from _set_owners(view, pod, given_up=False)
    yield CreatePodWithClaims(pod, tuple(c for c in claims if c.name not in view.claims))


def _revision_for(wanted: StatefulSet, ordinal: int, held: RevisionHistory) -> TemplateRevision:
    """Below the partition, a lost pod is created from the current revision."""
    rolling = wanted.spec.update_strategy.rolling_update
    if rolling is not None:
        keeps = rolling.partition or 0
    else:
        keeps = wanted.status.current_replicas if wanted.spec.update_strategy.type == "RollingUpdate" else 0
    return held.current if ordinal < identity.start(wanted) + keeps else held.update


def _set_owners(view: StatefulSetView, pod: Pod, *, given_up: bool) -> Iterator[SetOwnerRefs | RecordEvent]:
    _, ordinal = identity.parse(pod.name)
    for template in view.wanted.spec.volume_claim_templates:
        claim = view.claims.get(identity.claim_name(template.name, view.wanted, ordinal))
        if claim is None:
            continue
        ought = identity.owners(claim, view.wanted, pod, given_up=given_up)
        if ought is claim.metadata.owner_references:
            continue
        if identity.has_rival(claim, view.wanted, pod):
            text = (
                f"PersistentVolumeClaim {claim.name} has a conflicting OwnerReference that acts as a manging "
                "controller, the retention policy is ignored for this claim"
            )
            yield warning("ConflictingController", text)
        yield SetOwnerRefs(claim, ought)


def _plan_surplus(
    view: StatefulSetView, surplus: Sequence[Pod], at_once: bool
) -> Generator[DeletePod | Wait, None, bool]:
    """Delete pods beyond the replicas, highest first; returns whether there were any."""
    alive = [p for p in surplus if not p.is_deleting]
    if at_once:
        yield from (DeletePod(p) for p in alive)
        return bool(alive)
    if not surplus:
        return False
    highest = surplus[0]
    if highest.is_deleting:
        yield Wait(WaitReason.POD_TERMINATING, WaitData(pods=(highest.name,)))
        return True
    # An unavailable one is deleted only when every other is available: two must not be missing at once.
    unavailable = [p for p in reversed(surplus) if not _is_available(view, p)]
    if highest in unavailable and unavailable[0] is not highest:
        yield Wait(WaitReason.POD_NOT_AVAILABLE, WaitData(pods=(unavailable[0].name,)))
        return True
    yield DeletePod(highest)
    return True


def _update(
    view: StatefulSetView, pods: Sequence[Pod], target: TemplateRevision
) -> Iterator[DeletePod | Wait]:
    rolling = view.wanted.spec.update_strategy.rolling_update
    lowest = (rolling.partition or 0) if rolling else 0
    for pod in reversed(pods[lowest:]):
        if pod.metadata.labels.get(POD_LABEL) != target.name and not pod.is_deleting:
            yield DeletePod(pod)
            return
        if not _is_available(view, pod):
            yield Wait(WaitReason.POD_UPDATING, WaitData(pods=(pod.name,)))
            return


# Status


def _report(
    view: StatefulSetView, pods: Sequence[Pod], held: RevisionHistory
) -> Iterator[SetStatefulSetStatus]:
    status = current_status(view, pods, held)
    if status != view.wanted.status:
        yield SetStatefulSetStatus(status)


def current_status(view: StatefulSetView, pods: Sequence[Pod], held: RevisionHistory) -> StatefulSetStatus:
    wanted, total = view.wanted, desired_replicas(view.wanted)
    ready = [p for p in pods if p.status.phase == "Running" and is_ready(p)]
    minimum = wanted.spec.min_ready_seconds
    available = [p for p in ready if available_in(p, minimum, view.now) == 0]
    shown = [p.metadata.labels.get(POD_LABEL) for p in pods if not p.is_deleting]
    current, updated = shown.count(held.current.name), shown.count(held.update.name)
    done = updated == len(ready) == len(pods) == total
    rolls = wanted.spec.update_strategy.type == "RollingUpdate"
    return StatefulSetStatus(
        observed_generation=wanted.metadata.generation,
        replicas=len(pods),
        ready_replicas=len(ready),
        available_replicas=len(available),
        current_replicas=updated if done and rolls else current,
        updated_replicas=updated,
        current_revision=held.update.name if done and rolls else held.current.name,
        update_revision=held.update.name,
        collision_count=wanted.status.collision_count or 0,
        conditions=wanted.status.conditions,
    )
