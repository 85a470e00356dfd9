"""Runs the pods of Jobs to completion, and removes the finalizer of pods that no job counts any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import assert_never

from msgspec import Struct

from volplane.api import codec
from volplane.api.batch import Job
from volplane.api.core import Pod
from volplane.api.finalizers import JOB_TRACKING_FINALIZER
from volplane.base import clock
from volplane.controllers.job.plan import (
    DeleteExpiredJob,
    DiscardPod,
    RemoveTrackingFinalizer,
    SetJobStatus,
    Step,
    plan,
)
from volplane.controllers.job.tracking import is_tracked
from volplane.loops.controller import Controller
from volplane.rules.steps import CommonStep
from volplane.rules.workloads import CreatePod, DeletePod, owner_keys

MANAGED_BY = "kubernetes.io/job-controller"
Key = tuple[type[Job] | type[Pod], str]  # a job, or a pod that has lost its job


def job_keys(pod: Pod) -> list[str]:
    """An index function: the job that a pod names as its controller."""
    return list(owner_keys("Job", pod))


class JobView(Struct, frozen=True):
    job: Job | None  # None: it is gone, or another controller manages it
    pods: Sequence[Pod] = ()  # that it controls
    strays: Sequence[Pod] = ()  # with our finalizer, and without a job that counts them
    now: datetime | None = None


class Jobs(Controller[Key, JobView, Step]):
    name = "job-controller"

    def setup(self) -> None:
        self.jobs = self.watch(Job, self.keys_of_job)
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.owned = self.pods.index("jobs", job_keys)

    def keys_of_job(self, old: Job | None, new: Job | None) -> Iterable[Key]:
        job = new or old
        assert job is not None
        yield Job, job.key  # also when it is gone: its pods carry our finalizer

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[Key]:
        yield from ((Job, key) for key in owner_keys("Job", old, new))
        if new is not None and is_tracked(new) and not job_keys(new):
            yield Pod, new.key

    def view(self, key: Key) -> JobView | None:
        kind, name = key
        if kind is Pod:
            pod = self.pods.at(name)
            is_stray = pod is not None and is_tracked(pod) and not job_keys(pod)
            return JobView(None, strays=[pod]) if pod is not None and is_stray else None
        job = self.jobs.at(name)
        pods = [p for p in self.owned[name] if job is not None and _is_of(p, job)]
        strays = [p for p in self.owned[name] if is_tracked(p) and p not in pods]
        ours = job is not None and job.spec.managed_by in (None, MANAGED_BY)
        return JobView(job if ours else None, pods, strays, clock.wall())

    def plan(self, view: JobView) -> Iterator[Step | CommonStep]:
        yield from (RemoveTrackingFinalizer(pod) for pod in view.strays)
        if view.job is not None:
            assert view.now is not None
            yield from plan(view.job, view.pods, view.now)

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterator[Sequence[Step | CommonStep]]:
        """The status before any finalizer: counts are written before pods are released."""
        at = next((i + 1 for i, step in enumerate(steps) if isinstance(step, SetJobStatus)), 0)
        yield from ((step,) for step in steps[:at])
        yield steps[at:]

    def subject(self, view: JobView) -> Job:
        assert view.job is not None
        return view.job

    async def act(self, key: Key, view: JobView, step: Step) -> None:
        if isinstance(step, RemoveTrackingFinalizer):
            return await self._remove_finalizer(step.pod)
        job = self.subject(view)
        match step:
            case SetJobStatus(status):
                await self.client.patch(
                    Job,
                    job.name,
                    job.namespace,
                    merge={"status": codec.full_merge_patch(status)},
                    subresource="status",
                    uid=job.uid,
                    missing_ok=True,
                )
            case CreatePod(pod):
                made = await self.client.create(pod)
                self.events.event(job, "Normal", "SuccessfulCreate", f"Created pod: {made.name}")
            case DeletePod(pod):
                await self._delete(job, pod)
            case DiscardPod(pod):
                if is_tracked(pod):
                    await self._remove_finalizer(pod)
                await self._delete(job, pod)
            case DeleteExpiredJob():
                await self.client.delete(
                    Job, job.name, job.namespace, uid=job.uid, propagation="Foreground", missing_ok=True
                )
            case _:
                assert_never(step)

    async def _remove_finalizer(self, pod: Pod) -> None:
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [JOB_TRACKING_FINALIZER]}}
        await self.client.patch(Pod, pod.name, pod.namespace, strategic=patch, uid=pod.uid, missing_ok=True)

    async def _delete(self, job: Job, pod: Pod) -> None:
        await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, missing_ok=True)
        self.events.event(job, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.name}")


def _is_of(pod: Pod, job: Job) -> bool:
    return any(r.controller and r.uid == job.uid for r in pod.metadata.owner_references)
