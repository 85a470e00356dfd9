"""Each finished pod is counted once, whatever crashes in between.

A finished pod keeps its finalizer until its uid is in the job's status. Then the finalizer is removed, and
the uid becomes a number. Indexed successes need no uid: an index cannot succeed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from volplane.api.batch import Job, UncountedTerminatedPods
from volplane.api.core import Pod
from volplane.api.finalizers import JOB_TRACKING_FINALIZER
from volplane.controllers.job import completion_indexes as indexes
from volplane.controllers.job.failure_policy import has_failed, ruling
from volplane.controllers.job.index_failures import (
    find_awaiting_replacement,
    find_failed_indexes,
    limits_each_index,
)
from volplane.rules.workloads import is_active

MOST_UNCOUNTED = 500  # so that the status stays small


class JobTally(Struct, frozen=True):
    succeeded: int
    failed: int
    uncounted: UncountedTerminatedPods
    completed: frozenset[int]  # indexes
    done_with: tuple[Pod, ...]  # their finalizer may be removed once the tally is written
    failed_indexes: frozenset[int] = frozenset()
    awaiting_replacement: Mapping[int, Pod] = {}  # index → its last failed pod, which is not counted yet
    failures_awaiting: int = 0  # how many of these count

    @property
    def successes(self) -> int:
        """Including pods whose uid is not a number yet."""
        return self.succeeded + len(self.uncounted.succeeded)

    @property
    def failures(self) -> int:
        return self.failed + len(self.uncounted.failed) + self.failures_awaiting


def is_tracked(pod: Pod) -> bool:
    return JOB_TRACKING_FINALIZER in pod.metadata.finalizers


def is_indexed(job: Job) -> bool:
    return job.spec.completion_mode == "Indexed"


def tally(job: Job, pods: Sequence[Pod], *, ending: str = "") -> JobTally:
    """`ending`: the condition that the job ends with, if it is known; then no pod is waited for."""
    status, held = job.status, job.status.uncounted_terminated_pods or UncountedTerminatedPods()
    tracked = {p.uid for p in pods if is_tracked(p)}
    good = [uid for uid in held.succeeded if uid in tracked]
    bad = [uid for uid in held.failed if uid in tracked]
    succeeded = status.succeeded + len(held.succeeded) - len(good)
    failed = status.failed + len(held.failed) - len(bad)
    completed = indexes.parse(status.completed_indexes, job.spec.completions or 0)
    failed_indexes, awaiting = _index_failures(job, pods, completed)
    kept = set() if ending else {p.uid for p in awaiting.values()}
    done_with: list[Pod] = []
    for pod in _in_order(job, pods):
        if len(good) + len(bad) >= MOST_UNCOUNTED:
            break
        if pod.status.phase == "Succeeded" and pod.uid not in bad:
            if is_indexed(job):
                index = indexes.index_of(pod, job.spec.completions)
                completed |= set() if index is None else {index}
            elif pod.uid not in good:
                good.append(pod.uid)
        elif pod.uid in kept:
            continue
        elif has_failed(job, pod) or ending == "FailureTarget":
            if pod.uid not in bad and _counts(job, pod):
                bad.append(pod.uid)
        elif not ending:
            continue
        done_with.append(pod)
    if is_indexed(job):
        succeeded = len(completed)
    uncounted = UncountedTerminatedPods(succeeded=tuple(good), failed=tuple(bad))
    return JobTally(
        succeeded,
        failed,
        uncounted,
        frozenset(completed),
        tuple(done_with),
        frozenset(failed_indexes),
        awaiting,
        sum(ruling(job, p).counts for p in awaiting.values() if p.uid in kept),
    )


def _index_failures(job: Job, pods: Sequence[Pod], completed: set[int]) -> tuple[set[int], dict[int, Pod]]:
    """The indexes that have failed for good, and the last failed pods of those that are tried again."""
    if not limits_each_index(job):
        return set(), {}
    tracked = [p for p in pods if is_tracked(p)]
    failed = find_failed_indexes(job, tracked)
    running = {indexes.index_of(p, job.spec.completions) for p in pods if is_active(p)}
    succeeded = {indexes.index_of(p, job.spec.completions) for p in tracked if p.status.phase == "Succeeded"}
    settled = {index for index in completed | failed | running | succeeded if index is not None}
    return failed, find_awaiting_replacement(job, tracked, settled)


def _in_order(job: Job, pods: Iterable[Pod]) -> list[Pod]:
    """By index, so that completed indexes appear in order; then by name."""
    return sorted(
        (p for p in pods if is_tracked(p)),
        key=lambda p: (indexes.index_of(p, job.spec.completions) or 0, p.name),
    )


def _counts(job: Job, pod: Pod) -> bool:
    if is_indexed(job) and indexes.index_of(pod, job.spec.completions) is None:
        return False
    return ruling(job, pod).counts
