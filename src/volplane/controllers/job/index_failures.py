"""Failures per index: with backoffLimitPerIndex each index of a job fails on its own.

The pods of an index carry in an annotation how often it has failed before. The last failed pod of an index
therefore keeps its finalizer until its replacement exists, which then carries the number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from volplane.api.batch import Job
from volplane.api.core import Pod
from volplane.controllers.job import completion_indexes as indexes
from volplane.controllers.job.failure_policy import BACKOFF, finish_time, has_failed, ruling

FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"
IGNORED_COUNT = "batch.kubernetes.io/job-index-ignored-failure-count"


def limits_each_index(job: Job) -> bool:
    return job.spec.backoff_limit_per_index is not None and job.spec.completion_mode == "Indexed"


def find_failed_indexes(job: Job, tracked: Iterable[Pod]) -> set[int]:
    """`tracked`: the pods that are not counted yet."""
    found = indexes.parse(job.status.failed_indexes or "", job.spec.completions or 0)
    return found | {index for index, pod in _failures(job, tracked) if _fails_index(job, pod)}


def _failures(job: Job, tracked: Iterable[Pod]) -> Iterator[tuple[int, Pod]]:
    for pod in tracked:
        index = indexes.index_of(pod, job.spec.completions)
        if index is not None and has_failed(job, pod):
            yield index, pod


def _fails_index(job: Job, pod: Pod) -> bool:
    decided = ruling(job, pod)
    if decided.fails_index:
        return True
    return decided.counts and _read_count(pod, FAILURE_COUNT) >= (job.spec.backoff_limit_per_index or 0)


def find_awaiting_replacement(job: Job, tracked: Iterable[Pod], settled: set[int]) -> dict[int, Pod]:
    """The last failed pod of each index; `settled`: indexes that have succeeded, failed, or run again."""
    last: dict[int, Pod] = {}
    for index, pod in _failures(job, tracked):
        if index in settled:
            continue
        held = last.get(index)
        if held is None or (
            _failures_until(held) <= _failures_until(pod) and finish_time(held) <= finish_time(pod)
        ):
            last[index] = pod
    return last


def pause_of_index(failed: Pod | None, now: datetime) -> float:
    """Seconds until the replacement of an index may start."""
    if failed is None:
        return 0.0
    whole = BACKOFF.delay(_failures_until(failed) + 1)
    return max(whole - (now - finish_time(failed)).total_seconds(), 0.0)


def replacement_annotations(job: Job, failed: Pod | None) -> Mapping[str, str]:
    """What the next pod of an index carries."""
    if failed is None:
        return {FAILURE_COUNT: "0"}
    counts = ruling(job, failed).counts
    ignored = _read_count(failed, IGNORED_COUNT) + (not counts)
    made = {FAILURE_COUNT: str(_read_count(failed, FAILURE_COUNT) + counts)}
    return {**made, IGNORED_COUNT: str(ignored)} if ignored else made


def _failures_until(pod: Pod) -> int:
    return _read_count(pod, FAILURE_COUNT) + _read_count(pod, IGNORED_COUNT)


def _read_count(pod: Pod, annotation: str) -> int:
    text = pod.metadata.annotations.get(annotation, "")
    return int(text) if text.isdigit() else 0
