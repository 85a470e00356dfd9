"""Starts the jobs of CronJobs when their time has come."""

from __future__ import annotations

from typing import assert_never

from volplane.api import codec
from volplane.api.batch import CronJob, Job
from volplane.base import clock
from volplane.controllers.cronjob.plan import Remove, Report, Start, plan
from volplane.loops.controller import Controller
from volplane.rules.steps import Say, Wait
from volplane.rules.workloads import controller_uids, owner_keys


class CronJobs(Controller[str]):
    name = "cronjob-controller"

    def setup(self) -> None:
        self.crons = self.watch(CronJob, lambda old, new: [new.key] if new else [])
        self.jobs = self.watch(Job, lambda *jobs: owner_keys("CronJob", *jobs))
        self.owned = self.jobs.index("controller", controller_uids)

    async def reconcile(self, key: str) -> None:
        wanted = self.crons.at(key)
        if wanted is None:
            return
        for step in plan(wanted, self.owned[wanted.uid], clock.wall()):
            match step:
                case Report(status):
                    await self.client.patch(
                        CronJob,
                        wanted.name,
                        wanted.namespace,
                        merge={"status": codec.exactly(status)},
                        subresource="status",
                        uid=wanted.uid,
                        missing_ok=True,
                    )
                case Start(job):
                    made = await self.client.create(job, exists_ok=True)
                    self.events.event(wanted, "Normal", "SuccessfulCreate", f"Created job {made.name}")
                case Remove(job):
                    await self.client.delete(
                        Job, job.name, job.namespace, uid=job.uid, propagation="Background", missing_ok=True
                    )
                    self.events.event(wanted, "Normal", "SuccessfulDelete", f"Deleted job {job.name}")
                case Wait(seconds, why):
                    self.queue.later(key, seconds, why)
                case Say(type, reason, message):
                    self.events.event(wanted, type, reason, message)
                case _:
                    assert_never(step)
