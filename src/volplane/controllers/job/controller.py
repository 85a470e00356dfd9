"""Runs the pods of Jobs to their end, and lets go of pods that no job counts any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import assert_never

from volplane.api import codec
from volplane.api.batch import Job
from volplane.api.core import Pod
from volplane.base import clock
from volplane.controllers.job.counting import FINALIZER, is_tracked
from volplane.controllers.job.plan import Create, Delete, Discard, Expire, Release, Report, plan
from volplane.loops.controller import Controller
from volplane.rules.steps import Say, Wait
from volplane.rules.workloads import owner_keys

BY_ANOTHER = "kubernetes.io/job-controller"
Key = tuple[type[Job] | type[Pod], str]  # a job, or a pod that has lost its job


def job_keys(pod: Pod) -> list[str]:
    """An index function: the job that a pod names as its controller."""
    return list(owner_keys("Job", pod))


class Jobs(Controller[Key]):
    name = "job-controller"

    def setup(self) -> None:
        self.jobs = self.watch(Job, self._changed)
        self.pods = self.watch(Pod, self._told)
        self.owned = self.pods.index("jobs", job_keys)

    def _changed(self, old: Job | None, new: Job | None) -> Iterable[Key]:
        job = new or old
        assert job is not None
        yield Job, job.key  # also when it is gone: its pods carry our finalizer

    def _told(self, old: Pod | None, new: Pod | None) -> Iterable[Key]:
        yield from ((Job, key) for key in owner_keys("Job", old, new))
        if new is not None and is_tracked(new) and not job_keys(new):
            yield Pod, new.key

    async def reconcile(self, key: Key) -> None:
        kind, name = key
        if kind is Pod:
            await self._let_go(self.pods.at(name))
            return
        job = self.jobs.at(name)
        mine = [p for p in self.owned[name] if job is not None and _is_of(p, job)]
        for pod in self.owned[name]:
            if is_tracked(pod) and pod not in mine:
                await self._release(pod)
        if job is not None and job.spec.managed_by in (None, BY_ANOTHER):
            await self._act(key, job, mine)

    async def _let_go(self, pod: Pod | None) -> None:
        if pod is not None and is_tracked(pod) and not job_keys(pod):
            await self._release(pod)

    async def _act(self, key: Key, job: Job, pods: list[Pod]) -> None:
        async with asyncio.TaskGroup() as group:
            for step in plan(job, pods, clock.wall()):
                match step:
                    case Report(status):
                        # Before any pod is let go: what is counted stands in the status first.
                        await self.client.patch(
                            Job,
                            job.name,
                            job.namespace,
                            merge={"status": codec.exactly(status)},
                            subresource="status",
                            uid=job.uid,
                            missing_ok=True,
                        )
                    case Release(pod):
                        group.create_task(self._release(pod))
                    case Create(pod):
                        group.create_task(self._create(job, pod))
                    case Delete(pod):
                        group.create_task(self._delete(job, pod))
                    case Discard(pod):
                        group.create_task(self._discard(job, pod))
                    case Expire():
                        await self.client.delete(
                            Job,
                            job.name,
                            job.namespace,
                            uid=job.uid,
                            propagation="Foreground",
                            missing_ok=True,
                        )
                    case Wait(seconds, why):
                        self.queue.later(key, seconds, why)
                    case Say(type, reason, message):
                        self.events.event(job, type, reason, message)
                    case _:
                        assert_never(step)

    async def _release(self, pod: Pod) -> None:
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}}
        await self.client.patch(Pod, pod.name, pod.namespace, strategic=patch, uid=pod.uid, missing_ok=True)

    async def _create(self, job: Job, pod: Pod) -> None:
        made = await self.client.create(pod)
        self.events.event(job, "Normal", "SuccessfulCreate", f"Created pod: {made.name}")

    async def _delete(self, job: Job, pod: Pod) -> None:
        await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, missing_ok=True)
        self.events.event(job, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.name}")

    async def _discard(self, job: Job, pod: Pod) -> None:
        if is_tracked(pod):
            await self._release(pod)
        await self._delete(job, pod)


def _is_of(pod: Pod, job: Job) -> bool:
    return any(r.controller and r.uid == job.uid for r in pod.metadata.owner_references)
