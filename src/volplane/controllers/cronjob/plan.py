"""Which job is due, which old ones are deleted, and when to plan again.

A missed start is made up for once, with the latest scheduled time, unless the deadline has passed. A job's
name contains its scheduled time, so that one time never starts two jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from msgspec import Struct, structs

from volplane.api import kinds
from volplane.api.batch import CronJob, CronJobStatus, Job
from volplane.api.core import ObjectReference
from volplane.api.meta import ObjectMeta
from volplane.rules.cron import InvalidSchedule, Schedule, parse, zone
from volplane.rules.steps import RecordEvent, normal, warning
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.rules.workloads import owner_reference

MOMENT = "batch.kubernetes.io/cronjob-scheduled-timestamp"
TOO_MANY = 100
_WORDS = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"


class CreateJob(Struct, frozen=True):
    job: Job


class DeleteJob(Struct, frozen=True):
    job: Job


class SetCronJobStatus(Struct, frozen=True):
    status: CronJobStatus


Step = CreateJob | DeleteJob | SetCronJobStatus


def plan(wanted: CronJob, jobs: Sequence[Job], now: datetime) -> Iterator[Step | Wait | RecordEvent]:
    """Steps for a cron job and the jobs it controls."""
    status = current_status(wanted, jobs)
    if status != wanted.status:
        yield SetCronJobStatus(status)
    if wanted.is_deleting:
        return
    yield from _history(wanted, jobs)
    if wanted.spec.suspend:
        return
    try:
        schedule, where = parse(wanted.spec.schedule), zone(wanted.spec.time_zone)
    except InvalidSchedule as error:
        yield warning("UnparseableSchedule", f'unparseable schedule "{wanted.spec.schedule}" : {error}')
        return
    except (KeyError, ValueError, OSError):
        text = f'invalid timeZone: "{wanted.spec.time_zone}"'
        yield warning("UnknownTimeZone", text)
        return
    due = schedule.latest(_since(wanted, status, now), now, where)
    if due is not None:
        if _count_missed(schedule, _since(wanted, status, now), now, where) > TOO_MANY:
            yield warning("TooManyMissedTimes", _WORDS)
        yield from _start(wanted, jobs, due)
    coming = schedule.after(now, where)
    if coming is not None:
        yield Wait(WaitReason.NEXT_RUN, WaitData(names=(_stamp(coming),)), (coming - now).total_seconds())


def _since(wanted: CronJob, status: CronJobStatus, now: datetime) -> datetime:
    """Scheduled times after this one may still be started."""
    since = datetime.fromisoformat(status.last_schedule_time or wanted.metadata.creation_timestamp)
    limit = wanted.spec.starting_deadline_seconds
    return since if limit is None else max(since, now - timedelta(seconds=limit))


def _count_missed(schedule: Schedule, since: datetime, now: datetime, where: tzinfo) -> int:
    """The number of missed times; counting stops when there are too many."""
    count, moment = 0, schedule.after(since, where)
    while moment is not None and moment <= now and count <= TOO_MANY:
        count, moment = count + 1, schedule.after(moment, where)
    return count


def _start(
    wanted: CronJob, jobs: Sequence[Job], due: datetime
) -> Iterator[CreateJob | DeleteJob | RecordEvent]:
    active = [j for j in jobs if not _end(j)]
    if wanted.spec.concurrency_policy == "Forbid" and active:
        text = "Not starting job because prior execution is running and concurrency policy is Forbid"
        yield normal("JobAlreadyActive", text)
        return
    if wanted.spec.concurrency_policy == "Replace":
        yield from (DeleteJob(job) for job in active)
    yield CreateJob(new_job(wanted, due))


def new_job(wanted: CronJob, due: datetime) -> Job:
    template = wanted.spec.job_template
    metadata = ObjectMeta(
        name=f"{wanted.name}-{int(due.timestamp()) // 60}",
        namespace=wanted.namespace,
        labels=template.metadata.labels,
        annotations={**template.metadata.annotations, MOMENT: _stamp(due)},
        owner_references=(owner_reference(wanted),),
    )
    return Job(metadata=metadata, spec=template.spec)


def _end(job: Job) -> str:
    ends = (c.type for c in job.status.conditions if c.type in ("Complete", "Failed") and c.status == "True")
    return next(ends, "")


def _history(wanted: CronJob, jobs: Sequence[Job]) -> Iterator[DeleteJob]:
    for word, limit in (
        ("Complete", wanted.spec.successful_jobs_history_limit),
        ("Failed", wanted.spec.failed_jobs_history_limit),
    ):
        ended = sorted(
            (j for j in jobs if _end(j) == word), key=lambda j: (j.status.start_time or "", j.name)
        )
        if limit is not None:
            yield from (DeleteJob(j) for j in ended[: max(len(ended) - limit, 0)] if not j.is_deleting)


def current_status(wanted: CronJob, jobs: Sequence[Job]) -> CronJobStatus:
    """The status by the jobs that exist, including jobs whose start was not written before a crash."""
    kind = kinds.of(Job)
    active = tuple(
        ObjectReference(
            kind=kind.kind,
            namespace=job.namespace,
            name=job.name,
            uid=job.uid,
            api_version=kind.api_version,
            resource_version=next(
                (a.resource_version for a in wanted.status.active if a.uid == job.uid),
                job.metadata.resource_version,
            ),
        )
        for job in sorted(jobs, key=lambda j: j.name)
        if not _end(job) and not job.is_deleting
    )
    moments = [wanted.status.last_schedule_time, *(j.metadata.annotations.get(MOMENT) for j in jobs)]
    successes = [wanted.status.last_successful_time, *(j.status.completion_time for j in jobs)]
    return structs.replace(
        wanted.status,
        active=active,
        last_schedule_time=max((m for m in moments if m), default=None),
        last_successful_time=max((m for m in successes if m), default=None),
    )


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
