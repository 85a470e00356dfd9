"""How many pods of a job have to run now, and whether the job has ended.

A job ends in two writes: first the verdict (SuccessCriteriaMet or FailureTarget), after which its pods are
deleted and counted, then the end (Complete or Failed), after which none of its pods runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, structs

from volplane.api.batch import Job, JobCondition, JobStatus
from volplane.api.core import Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodTemplateSpec
from volplane.api.finalizers import JOB_TRACKING_FINALIZER
from volplane.api.selectors import LabelMatcher
from volplane.base.units import format_time
from volplane.controllers.job import completion_indexes as indexes
from volplane.controllers.job.failure_policy import (
    has_failed,
    pause,
    replaces_only_ended_pods,
    restarts,
    ruling,
)
from volplane.controllers.job.index_failures import (
    limits_each_index,
    pause_of_index,
    replacement_annotations,
)
from volplane.controllers.job.tracking import JobTally, is_indexed, is_tracked, tally
from volplane.rules.adoption import AdoptionStep, AdoptObject, claim_objects
from volplane.rules.pods import has_ended
from volplane.rules.steps import RecordEvent, normal, warning
from volplane.rules.waits import Wait, WaitReason
from volplane.rules.workloads import CreatePod, DeletePod, is_active, is_ready, pod_of, sort_for_deletion

BURST = 500  # pods created or deleted in one pass
ENDS = ("Complete", "Failed")
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


class SetJobStatus(Struct, frozen=True):
    status: JobStatus


class RemoveTrackingFinalizer(Struct, frozen=True):
    """Remove the finalizer of a pod that is counted, or that no job counts any more."""

    pod: Pod


class DiscardPod(Struct, frozen=True):
    """Delete a pod without counting it: there were too many."""

    pod: Pod


class DeleteExpiredJob(Struct, frozen=True):
    """Delete the job: its ttlSecondsAfterFinished has passed."""


Step = (
    AdoptionStep
    | SetJobStatus
    | RemoveTrackingFinalizer
    | CreatePod
    | DeletePod
    | DiscardPod
    | DeleteExpiredJob
)


def plan(
    job: Job, owned: Sequence[Pod], now: datetime, orphans: Sequence[Pod] = ()
) -> Iterator[Step | Wait | RecordEvent]:
    """Steps for a job, the pods it controls, and those that nothing controls."""
    if not may_adopt(job):
        yield from (RemoveTrackingFinalizer(p) for p in owned if is_tracked(p))
        if not job.is_deleting:
            yield from _expiry(job, now)
        return
    claimed = claim_objects(job, selector_of(job), owned, orphans)
    yield from claimed.steps
    pods = [_as_tracked(p) if AdoptObject(p) in claimed.steps else p for p in claimed.objects]
    verdict = _written_verdict(job)
    count = tally(job, pods, ending=verdict.type if verdict else "")
    active = [p for p in pods if is_active(p)]
    if verdict is None:
        verdict = _verdict(job, pods, count, len(active), now)
    status = _current_status(job, pods, count, now)
    status, over = _conclude(status, verdict, pods, now)
    events: list[RecordEvent] = []
    if not verdict:
        status, events = _suspension(job, status, now)
    if status != job.status:
        yield SetJobStatus(status)
    yield from events
    if over:
        yield over
    yield from (RemoveTrackingFinalizer(p) for p in count.done_with)
    if verdict:
        yield from (DeletePod(p) for p in active[:BURST])
    else:
        yield from _manage_pods(job, pods, active, count, now)
        yield from _deadline(job, status, now)


def selector_of(job: Job) -> LabelMatcher:
    return LabelMatcher.of(job.spec.selector)


def may_adopt(job: Job) -> bool:
    return not job.is_deleting and not is_finished(job)


def _as_tracked(pod: Pod) -> Pod:
    """An adopted pod as it will be: adoption adds the finalizer."""
    if is_tracked(pod):
        return pod
    finalizers = (*pod.metadata.finalizers, JOB_TRACKING_FINALIZER)
    return structs.replace(pod, metadata=structs.replace(pod.metadata, finalizers=finalizers))


def is_finished(job: Job) -> bool:
    return any(c.type in ENDS and c.status == "True" for c in job.status.conditions)


def is_suspended(job: Job) -> bool:
    return bool(job.spec.suspend)


# The end


def _written_verdict(job: Job) -> JobCondition | None:
    verdicts = ("SuccessCriteriaMet", "FailureTarget")
    return next((c for c in job.status.conditions if c.type in verdicts and c.status == "True"), None)


def _verdict(
    job: Job, pods: Sequence[Pod], count: JobTally, active: int, now: datetime
) -> JobCondition | None:
    def failure(reason: str, message: str) -> JobCondition:
        return _condition("FailureTarget", "True", reason, message, now)

    def success(reason: str, message: str) -> JobCondition:
        return _condition("SuccessCriteriaMet", "True", reason, message, now)

    spec, limit = job.spec, 6 if job.spec.backoff_limit is None else job.spec.backoff_limit
    for pod in pods:
        if has_failed(job, pod) and (why := ruling(job, pod).ends_job):
            return failure("PodFailurePolicy", why)
    again = restarts(job, pods)
    if count.failures > limit or (again and again >= limit):
        return failure("BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if _deadline_left(job, job.status, now) == 0:
        return failure("DeadlineExceeded", "Job was active longer than specified deadline")
    if limits_each_index(job):
        most, failed = spec.max_failed_indexes, len(count.failed_indexes)
        if most is not None and failed > most:
            message = "Job has exceeded the specified maximal number of failed indexes"
            return failure("MaxFailedIndexesExceeded", message)
        if failed and failed + len(count.completed) >= (spec.completions or 0):
            return failure("FailedIndexes", "Job has failed indexes")
    rule = _success_rule(job, count)
    if rule is not None:
        return success("SuccessPolicy", f"Matched rules at index {rule}")
    enough = 1 if spec.completions is None else spec.completions
    if count.successes >= enough and not active:
        return success("CompletionsReached", "Reached expected number of succeeded pods")
    return None


def _success_rule(job: Job, count: JobTally) -> int | None:
    if job.spec.success_policy is None or not count.completed:
        return None
    for at, rule in enumerate(job.spec.success_policy.rules):
        asked = None
        if rule.succeeded_indexes is not None:
            asked = indexes.parse(rule.succeeded_indexes, job.spec.completions or 0)
            if not asked:  # the number of completions was lowered below all of them
                continue
        have = len(count.completed if asked is None else count.completed & asked)
        enough = rule.succeeded_count if rule.succeeded_count is not None else len(asked or ())
        if have >= enough:
            return at
    return None


def _conclude(
    status: JobStatus, verdict: JobCondition | None, pods: Sequence[Pod], now: datetime
) -> tuple[JobStatus, RecordEvent | None]:
    """The status with the verdict, and with the end once no pods are left to delete or count."""
    if verdict is None:
        return status, None
    if verdict not in status.conditions:
        status = structs.replace(status, conditions=(*status.conditions, verdict))
    uncounted = status.uncounted_terminated_pods
    if uncounted and (uncounted.succeeded or uncounted.failed):
        return status, None
    if any(not has_ended(p) or is_tracked(p) for p in pods):
        return status, None
    good = verdict.type == "SuccessCriteriaMet"
    end = _condition(ENDS[0] if good else ENDS[1], "True", verdict.reason, verdict.message, now)
    status = structs.replace(
        status,
        conditions=(*status.conditions, end),
        completion_time=end.last_transition_time if good else None,
    )
    return status, normal("Completed", "Job completed") if good else warning(end.reason, end.message)


def _deadline_left(job: Job, status: JobStatus, now: datetime) -> float | None:
    limit = job.spec.active_deadline_seconds
    if limit is None or status.start_time is None or is_suspended(job):
        return None
    return max(limit - (now - datetime.fromisoformat(status.start_time)).total_seconds(), 0.0)


def _deadline(job: Job, status: JobStatus, now: datetime) -> Iterator[Wait]:
    left = _deadline_left(job, status, now)
    if left is not None:
        yield Wait(WaitReason.ACTIVE_DEADLINE, seconds=left)


def _expiry(job: Job, now: datetime) -> Iterator[DeleteExpiredJob | Wait]:
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is None:
        return
    ended = next(c for c in job.status.conditions if c.type in ENDS and c.status == "True")
    age = (now - datetime.fromisoformat(ended.last_transition_time)).total_seconds()
    yield DeleteExpiredJob() if age >= ttl else Wait(WaitReason.TTL_AFTER_FINISHED, seconds=ttl - age)


# The pods


def _manage_pods(
    job: Job, pods: Sequence[Pod], active: Sequence[Pod], count: JobTally, now: datetime
) -> Iterator[CreatePod | DiscardPod | Wait]:
    if is_suspended(job):
        yield from (DiscardPod(p) for p in active[:BURST])
        return
    wanted = _wanted_pods(job, count, len(active))
    surplus = _surplus(job, active, len(active) - wanted)
    if surplus:
        # Never both in one pass: a deleted pod may free the index of a new one.
        yield from (DiscardPod(p) for p in surplus[:BURST])
        return
    going = sum(p.is_deleting and not has_ended(p) for p in pods) if replaces_only_ended_pods(job) else 0
    missing = min(wanted - len(active) - going, BURST)
    if missing <= 0:
        return
    if limits_each_index(job):
        yield from _create_for_indexes(job, _pending(job, pods, count)[:missing], count, now)
        return
    left = pause(job, pods, now)
    if left:
        yield Wait(WaitReason.POD_FAILURE_BACKOFF, seconds=left)
        return
    if is_indexed(job):
        for index in _pending(job, pods, count)[:missing]:
            yield CreatePod(new_pod(job, index))
    else:
        yield from (CreatePod(new_pod(job)) for _ in range(missing))


def _create_for_indexes(
    job: Job, pending: Sequence[int], count: JobTally, now: datetime
) -> Iterator[CreatePod | Wait]:
    """Each index waits for its own backoff."""
    pauses = []
    for index in pending:
        failed = count.awaiting_replacement.get(index)
        left = pause_of_index(failed, now)
        if left:
            pauses.append(left)
        else:
            yield CreatePod(new_pod(job, index, replacement_annotations(job, failed)))
    if pauses:
        yield Wait(WaitReason.POD_FAILURE_BACKOFF, seconds=min(pauses))


def _wanted_pods(job: Job, count: JobTally, active: int) -> int:
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    if job.spec.completions is None:
        # A work queue: once a pod has succeeded, no new ones are created.
        return active if count.successes else parallelism
    return max(min(job.spec.completions - count.successes, parallelism), 0)


def _surplus(job: Job, active: Sequence[Pod], too_many: int) -> list[Pod]:
    going: list[Pod] = []
    if is_indexed(job):
        seen: set[int] = set()
        for pod in reversed(sort_for_deletion(active)):
            index = indexes.index_of(pod, job.spec.completions)
            if index is None or index in seen:
                going.append(pod)
            else:
                seen.add(index)
    rest = [p for p in sort_for_deletion(active) if p not in going]
    return going + rest[: max(too_many - len(going), 0)]


def _pending(job: Job, pods: Sequence[Pod], count: JobTally) -> list[int]:
    busy = {
        indexes.index_of(p, job.spec.completions)
        for p in pods
        if is_active(p) or (replaces_only_ended_pods(job) and not has_ended(p))
    }
    done = count.completed | count.failed_indexes
    return [i for i in range(job.spec.completions or 0) if i not in done and i not in busy]


def new_pod(job: Job, index: int | None = None, annotations: Mapping[str, str] | None = None) -> Pod:
    template = job.spec.template if index is None else _indexed_template(job, index, annotations or {})
    made = pod_of(template, job)
    finalizers = tuple(f for f in made.metadata.finalizers if f != JOB_TRACKING_FINALIZER)
    metadata = structs.replace(made.metadata, finalizers=(*finalizers, JOB_TRACKING_FINALIZER))
    if index is not None:
        metadata = structs.replace(metadata, generate_name=f"{job.name}-{index}-")
    return structs.replace(made, metadata=metadata)


def _indexed_template(job: Job, index: int, annotations: Mapping[str, str]) -> PodTemplateSpec:
    template, mark = job.spec.template, {indexes.ANNOTATION: str(index)}
    metadata = structs.replace(
        template.metadata,
        annotations={**template.metadata.annotations, **mark, **annotations},
        labels={**template.metadata.labels, **mark},
    )
    spec = structs.replace(
        template.spec,
        hostname=f"{job.name}-{index}",
        containers=tuple(map(_add_index_variable, template.spec.containers)),
        init_containers=tuple(map(_add_index_variable, template.spec.init_containers)),
    )
    return structs.replace(template, metadata=metadata, spec=spec)


def _add_index_variable(container: Container) -> Container:
    """The container with the variable that has its index."""
    if any(v.name == INDEX_VARIABLE for v in container.env):
        return container
    source = EnvVarSource(
        field_ref=ObjectFieldSelector(field_path=f"metadata.labels['{indexes.ANNOTATION}']")
    )
    return structs.replace(container, env=(*container.env, EnvVar(name=INDEX_VARIABLE, value_from=source)))


# Status


def _current_status(job: Job, pods: Sequence[Pod], count: JobTally, now: datetime) -> JobStatus:
    active = [p for p in pods if is_active(p)]
    start = job.status.start_time
    if start is None and not is_suspended(job):
        start = format_time(now)
    return structs.replace(
        job.status,
        start_time=start,
        active=len(active),
        ready=sum(is_ready(p) for p in active),
        terminating=sum(p.is_deleting and not has_ended(p) for p in pods),
        succeeded=count.succeeded,
        failed=count.failed,
        uncounted_terminated_pods=count.uncounted,
        completed_indexes=indexes.write(count.completed) if is_indexed(job) else "",
        failed_indexes=indexes.write(count.failed_indexes) if limits_each_index(job) else None,
    )


def _suspension(job: Job, status: JobStatus, now: datetime) -> tuple[JobStatus, list[RecordEvent]]:
    held = next((c for c in status.conditions if c.type == "Suspended"), None)
    if is_suspended(job):
        if held is not None and held.status == "True":
            return status, []
        made = _condition("Suspended", "True", "JobSuspended", "Job suspended", now)
        event = normal("Suspended", "Job suspended")
    else:
        if held is None or held.status == "False":
            return status, []
        made = _condition("Suspended", "False", "JobResumed", "Job resumed", now)
        event = normal("Resumed", "Job resumed")
        status = structs.replace(status, start_time=format_time(now))  # the deadline counts from here again
    others = tuple(c for c in status.conditions if c.type != "Suspended")
    return structs.replace(status, conditions=(*others, made)), [event]


def _condition(type: str, status: str, reason: str, message: str, now: datetime) -> JobCondition:
    moment = format_time(now)
    return JobCondition(
        type=type,
        status=status,
        last_probe_time=moment,
        last_transition_time=moment,
        reason=reason,
        message=message,
    )
