"""CronJob: situation → steps, and on the real API server in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from tests.controllers.kubelet import Kubelets
from tests.controllers.objects import account
from tests.loops.inprocess import running, world
from volplane.api import codec
from volplane.api.batch import CronJob, Job
from volplane.api.core import Event, Pod
from volplane.api.errors import Invalid
from volplane.client.client import Client
from volplane.controllers.cronjob.controller import CronJobs
from volplane.controllers.cronjob.plan import MOMENT, CreateJob, DeleteJob, SetCronJobStatus, plan
from volplane.controllers.garbage.controller import GarbageCollector
from volplane.controllers.job.controller import Jobs
from volplane.rules.pods import has_ended
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
TEMPLATE = {
    "metadata": {"labels": {"app": "tick"}},
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "a"}]}}},
}


def cron(status: dict[str, Any] | None = None, **spec: Any) -> CronJob:
    whole = {
        "metadata": {
            "name": "tick",
            "namespace": "default",
            "uid": "u",
            "creationTimestamp": "2026-01-01T11:00:00Z",
        },
        "spec": {"schedule": "*/10 * * * *", "jobTemplate": TEMPLATE, **spec},
        "status": status or {},
    }
    return codec.convert(CronJob, whole)


def job(moment: str, end: str = "", started: str = "2026-01-01T00:00:00Z") -> Job:
    conditions = [{"type": end, "status": "True"}] if end else []
    whole = {
        "metadata": {"name": f"tick-{moment}", "uid": moment, "annotations": {MOMENT: moment}},
        "status": {"conditions": conditions, "startTime": started},
    }
    return codec.convert(Job, whole)


def started_jobs(steps: list[Any]) -> list[str]:
    return [s.job.metadata.annotations[MOMENT] for s in steps if isinstance(s, CreateJob)]


@pytest.mark.parametrize(
    ("wanted", "jobs", "expected"),
    [
        pytest.param(cron(), [], ["2026-01-01T12:00:00Z"], id="the latest moment that passed, once"),
        pytest.param(cron({"lastScheduleTime": "2026-01-01T12:00:00Z"}), [], [], id="used already"),
        pytest.param(cron(), [job("2026-01-01T12:00:00Z")], [], id="its job is there, unwritten"),
        pytest.param(cron(suspend=True), [], [], id="suspended"),
        pytest.param(cron(startingDeadlineSeconds=20), [], [], id="too late"),
        pytest.param(
            cron(startingDeadlineSeconds=60), [], ["2026-01-01T12:00:00Z"], id="late, but not too late"
        ),
        pytest.param(
            cron(concurrencyPolicy="Forbid"), [job("2026-01-01T11:50:00Z")], [], id="the last one still runs"
        ),
        pytest.param(
            cron(concurrencyPolicy="Forbid"),
            [job("2026-01-01T11:50:00Z", "Complete")],
            ["2026-01-01T12:00:00Z"],
            id="the last one is done",
        ),
        pytest.param(
            cron(concurrencyPolicy="Allow"),
            [job("2026-01-01T11:50:00Z")],
            ["2026-01-01T12:00:00Z"],
            id="both at the same time",
        ),
    ],
)
def test_what_starts(wanted: CronJob, jobs: list[Job], expected: list[str]) -> None:
    assert started_jobs(list(plan(wanted, jobs, NOW))) == expected


def test_replacing_removes_what_runs() -> None:
    before = job("2026-01-01T11:50:00Z")
    steps = list(plan(cron(concurrencyPolicy="Replace"), [before], NOW))
    assert [s.job for s in steps if isinstance(s, DeleteJob)] == [before]
    assert started_jobs(steps) == ["2026-01-01T12:00:00Z"]


def test_a_job_is_named_after_its_moment_and_looks_like_the_template() -> None:
    (start,) = [s for s in plan(cron(), [], NOW) if isinstance(s, CreateJob)]
    assert start.job.name == f"tick-{int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()) // 60}"
    assert start.job.metadata.labels == {"app": "tick"}
    assert [r.kind for r in start.job.metadata.owner_references] == ["CronJob"]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        pytest.param(cron(schedule="soon"), "UnparseableSchedule", id="no schedule"),
        pytest.param(cron(timeZone="Mars/Olympus"), "UnknownTimeZone", id="no time zone"),
    ],
)
def test_what_cannot_be_read_is_an_event(wanted: CronJob, reason: str) -> None:
    assert [s.reason for s in plan(wanted, [], NOW) if isinstance(s, RecordEvent)] == [reason]


def test_nothing_starts_while_it_is_deleted_or_when_no_moment_comes() -> None:
    wanted = cron()
    going = structs.replace(wanted, metadata=structs.replace(wanted.metadata, deletion_timestamp="now"))
    assert list(plan(going, [], NOW)) == []
    assert list(plan(cron(schedule="0 0 31 2 *"), [], NOW)) == []


def test_it_looks_again_at_the_next_moment() -> None:
    assert [s.seconds for s in plan(cron(), [], NOW) if isinstance(s, Wait)] == [570.0]


def test_history_is_bounded() -> None:
    done = [job(f"2026-01-01T0{n}:00:00Z", "Complete", f"2026-01-01T0{n}:00:00Z") for n in range(3)]
    failed = [job(f"2026-01-01T0{n}:30:00Z", "Failed", f"2026-01-01T0{n}:30:00Z") for n in range(2)]
    wanted = cron(
        {"lastScheduleTime": "2026-01-01T12:00:00Z"},
        successfulJobsHistoryLimit=1,
        failedJobsHistoryLimit=1,
    )
    steps = list(plan(wanted, [*done, *failed], NOW))
    assert [s.job for s in steps if isinstance(s, DeleteJob)] == [done[0], done[1], failed[0]]


def test_too_many_missed_moments_are_told() -> None:
    wanted = cron(schedule="* * * * *")
    late = datetime(2026, 1, 2, tzinfo=UTC)
    steps = list(plan(wanted, [], late))
    assert [s.reason for s in steps if isinstance(s, RecordEvent)] == ["TooManyMissedTimes"]
    assert started_jobs(steps) == ["2026-01-02T00:00:00Z"]


def test_the_status_shows_what_runs() -> None:
    (report,) = [
        s for s in plan(cron(), [job("2026-01-01T12:00:00Z")], NOW) if isinstance(s, SetCronJobStatus)
    ]
    assert report.status.last_schedule_time == "2026-01-01T12:00:00Z"
    (active,) = report.status.active
    assert (active.kind, active.api_version, active.uid) == ("Job", "batch/v1", "2026-01-01T12:00:00Z")


# On the server


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Client, Kubelets]]:
    async with world() as around:
        await around.client.create(account())
        kubelets = Kubelets(around.role("kubelets"))
        rooms = (CronJobs, Jobs, GarbageCollector)
        async with running(kubelets.run(), *(room(around.role("kcm")).run() for room in rooms)):
            yield around.client, kubelets


async def finish(client: Client, kubelets: Kubelets) -> None:
    for pod in await client.list(Pod, "default"):
        if not has_ended(pod):
            await kubelets.show(pod, phase="Succeeded")


@pytest.mark.virtual
async def test_jobs_start_by_the_clock() -> None:
    async with cluster() as (client, kubelets):
        await client.create(cron(successfulJobsHistoryLimit=2))
        for _ in range(4):
            await asyncio.sleep(601)
            await finish(client, kubelets)
        await asyncio.sleep(5)
        jobs = await client.list(Job, "default")
        assert len(jobs) == 2
        held = await client.get(CronJob, "tick", "default")
        assert held.status.active == ()
        assert held.status.last_successful_time
        assert held.status.last_schedule_time == "2026-01-01T00:40:00Z"
        messages = [e.message for e in await client.list(Event, "default") if e.reason == "SuccessfulCreate"]
        assert sum(m.startswith("Created job tick-") for m in messages) == 4
        await client.delete(CronJob, "tick", "default")
        await asyncio.sleep(5)
        assert await client.list(Job, "default") == []


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"schedule": ""}, "spec.schedule: Required value", id="none"),
        pytest.param({"schedule": "hourly"}, "expected exactly 5 fields, found 1: [hourly]", id="schedule"),
        pytest.param({"timeZone": "Mars/Base"}, "unknown time zone Mars/Base", id="zone"),
        pytest.param({"schedule": "TZ=UTC * * * * *"}, "use timeZone field instead", id="zone in schedule"),
        pytest.param(
            {"concurrencyPolicy": "Maybe"}, 'supported values: "Allow", "Forbid", "Replace"', id="policy"
        ),
    ],
)
async def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    async with world() as around:
        with pytest.raises(Invalid) as refused:
            await around.client.create(cron(**change))
        assert message in str(refused.value)
