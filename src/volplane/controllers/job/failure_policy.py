"""When a pod of a job has failed, what its failure policy decides, and the backoff of the next pod."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct

from volplane.api.batch import Job, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule
from volplane.api.core import ContainerStatus, Pod
from volplane.base.backoff import Backoff

BACKOFF = Backoff(10.0, 600.0)


def replaces_only_ended_pods(job: Job) -> bool:
    """Whether a terminating pod is replaced only when it has ended."""
    return job.spec.pod_replacement_policy == "Failed"


def has_failed(job: Job, pod: Pod) -> bool:
    if pod.status.phase == "Failed":
        return True
    # A pod on a lost node may never report that it failed.
    return pod.is_deleting and pod.status.phase != "Succeeded" and not replaces_only_ended_pods(job)


# The failure policy


class FailureRuling(Struct, frozen=True):
    counts: bool = True
    ends_job: str = ""  # why, when the job fails with this pod
    fails_index: bool = False  # whatever its backoffLimitPerIndex is


def ruling(job: Job, pod: Pod) -> FailureRuling:
    """The first rule that matches decides; without one the failure counts."""
    rules = job.spec.pod_failure_policy.rules if job.spec.pod_failure_policy else ()
    for at, rule in enumerate(rules):
        why = _match(rule, pod)
        if not why:
            continue
        if rule.action == "FailJob":
            return FailureRuling(ends_job=f"{why} matching FailJob rule at index {at}")
        fails_index = rule.action == "FailIndex" and job.spec.backoff_limit_per_index is not None
        return FailureRuling(counts=rule.action != "Ignore", fails_index=fails_index)
    return FailureRuling()


def _match(rule: PodFailurePolicyRule, pod: Pod) -> str:
    if rule.on_exit_codes is not None:
        for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
            if _exits(rule.on_exit_codes, status):
                assert status.state.terminated is not None
                code = status.state.terminated.exit_code
                return f"Container {status.name} for pod {pod.key} failed with exit code {code}"
    for pattern in rule.on_pod_conditions:
        for condition in pod.status.conditions:
            if (condition.type, condition.status) == (pattern.type, pattern.status):
                return f"Pod {pod.key} has condition {condition.type}"
    return ""


def _exits(rule: PodFailurePolicyOnExitCodesRequirement, status: ContainerStatus) -> bool:
    ended = status.state.terminated
    if ended is None or ended.exit_code == 0 or rule.container_name not in (None, status.name):
        return False
    return (ended.exit_code in rule.values) == (rule.operator == "In")


# Backoff


def pause(job: Job, pods: Iterable[Pod], now: datetime) -> float:
    """Seconds until the next pod may start: doubled for each failure since the last success."""
    ended = sorted((finish_time(p), p.status.phase != "Succeeded") for p in pods if _has_ended(job, p))
    failures = 0
    last = now
    for moment, failed in ended:
        failures = failures + 1 if failed else 0
        last = moment
    if not failures:
        return 0.0
    whole = BACKOFF.delay(failures)
    return max(whole - (now - last).total_seconds(), 0.0)


def _has_ended(job: Job, pod: Pod) -> bool:
    if pod.status.phase == "Succeeded":
        return True
    return has_failed(job, pod) and ruling(job, pod).counts


def finish_time(pod: Pod) -> datetime:
    """When the pod ended, as precisely as its status shows."""
    ends = [
        c.state.terminated.finished_at if c.state.terminated else "" for c in pod.status.container_statuses
    ]
    if ends and all(ends):
        return max(map(datetime.fromisoformat, ends))
    for condition in pod.status.conditions:
        if condition.type == "Ready" and condition.status == "False" and condition.last_transition_time:
            return datetime.fromisoformat(condition.last_transition_time)
    if pod.metadata.deletion_timestamp:
        grace = timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
        return datetime.fromisoformat(pod.metadata.deletion_timestamp) - grace
    return datetime.fromisoformat(pod.metadata.creation_timestamp)


def restarts(job: Job, pods: Iterable[Pod]) -> int:
    """With restartPolicy OnFailure, restarts of containers count as failures."""
    if job.spec.template.spec.restart_policy != "OnFailure":
        return 0
    return sum(
        status.restart_count
        for pod in pods
        if pod.status.phase in ("Pending", "Running")
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )
