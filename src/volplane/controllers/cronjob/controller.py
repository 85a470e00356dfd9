"""Starts the jobs of CronJobs at their scheduled times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import assert_never

from msgspec import Struct

from volplane.api import codec
from volplane.api.batch import CronJob, Job
from volplane.base import clock
from volplane.controllers.cronjob.plan import CreateJob, DeleteJob, SetCronJobStatus, Step, plan
from volplane.loops.controller import Controller
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait
from volplane.rules.workloads import controller_uids, owner_keys


class CronJobView(Struct, frozen=True):
    wanted: CronJob
    jobs: Sequence[Job]  # that it controls
    now: datetime


class CronJobs(Controller[str, CronJobView, Step]):
    name = "cronjob-controller"

    def setup(self) -> None:
        self.crons = self.watch(CronJob, lambda old, new: [new.key] if new else [])
        self.jobs = self.watch(Job, lambda *jobs: owner_keys("CronJob", *jobs))
        self.owned = self.jobs.index("controller", controller_uids)

    def view(self, key: str) -> CronJobView | None:
        wanted = self.crons.at(key)
        return CronJobView(wanted, self.owned[wanted.uid], clock.wall()) if wanted is not None else None

    def plan(self, view: CronJobView) -> Iterator[Step | Wait | RecordEvent]:
        return plan(view.wanted, view.jobs, view.now)

    def subject(self, view: CronJobView) -> CronJob:
        return view.wanted

    async def act(self, key: str, view: CronJobView, step: Step) -> None:
        wanted = view.wanted
        match step:
            case SetCronJobStatus(status):
                await self.client.patch(
                    CronJob,
                    wanted.name,
                    wanted.namespace,
                    merge={"status": codec.full_merge_patch(status)},
                    subresource="status",
                    uid=wanted.uid,
                    missing_ok=True,
                )
            case CreateJob(job):
                made = await self.client.create(job, exists_ok=True)
                self.events.event(wanted, "Normal", "SuccessfulCreate", f"Created job {made.name}")
            case DeleteJob(job):
                await self.client.delete(
                    Job, job.name, job.namespace, uid=job.uid, propagation="Background", missing_ok=True
                )
                self.events.event(wanted, "Normal", "SuccessfulDelete", f"Deleted job {job.name}")
            case _:
                assert_never(step)
