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
from volplane.client.client import Client
from volplane.controllers.job.plan import (
    DeleteExpiredJob,
    DiscardPod,
    RemoveTrackingFinalizer,
    SetJobStatus,
    Step,
    may_adopt,
    plan,
    selector_of,
)
from volplane.controllers.job.tracking import is_tracked
from volplane.loops import adoption
from volplane.loops.controller import Controller, Fail
from volplane.loops.workload_pods import create_pod, delete_pod
from volplane.rules.adoption import AdoptObject, ReleaseObject, adopting_keys, became_orphan
from volplane.rules.steps import CommonStep
from volplane.rules.workloads import (
    CreatePod,
    DeletePod,
    controller_of,
    orphan_namespaces,
    owner_keys,
    slow_start,
)

MANAGED_BY = "kubernetes.io/job-controller"
Key = tuple[type[Job] | type[Pod], str]  # a job, or a pod that has lost its job


def job_keys(pod: Pod) -> list[str]:
    """An index function: the job that a pod names as its controller."""
    return list(owner_keys("Job", pod))


class JobView(Struct, frozen=True):
    job: Job | None  # None: it is gone, or another controller manages it
    pods: Sequence[Pod] = ()  # that it controls
    strays: Sequence[Pod] = ()  # with our finalizer, and without a job that counts them
    orphans: Sequence[Pod] = ()  # of its namespace, without a controller
    now: datetime | None = None


class Jobs(Controller[Key, JobView, Step]):
    name = "job-controller"

    def __init__(self, client: Client, *, cleaner: Client | None = None) -> None:
        """`cleaner`: deletes finished jobs."""
        super().__init__(client)
        self.cleaner = cleaner or client

    def setup(self) -> None:
        self.jobs = self.watch(Job, self.keys_of_job)
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.owned = self.pods.index("jobs", job_keys)
        self.orphans = self.pods.index("orphans", orphan_namespaces)

    def keys_of_job(self, old: Job | None, new: Job | None) -> Iterable[Key]:
        job = new or old
        assert job is not None
        yield Job, job.key  # also when it is gone: its pods carry our finalizer

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[Key]:
        yield from ((Job, key) for key in owner_keys("Job", old, new))
        if new is not None and became_orphan(old, new):
            yield from ((Job, key) for key in self._adopting_jobs(new))
        if new is not None and self._is_stray(new):
            yield Pod, new.key

    def _adopting_jobs(self, orphan: Pod) -> list[str]:
        candidates = (job for job in self.jobs.names(orphan.namespace).values() if may_adopt(job))
        return list(adopting_keys(orphan, candidates, selector_of))

    def _is_stray(self, pod: Pod) -> bool:
        """Whether a pod has our finalizer, and no job counts it or will."""
        if not is_tracked(pod) or job_keys(pod):
            return False
        return controller_of(pod) is not None or pod.is_deleting or not self._adopting_jobs(pod)

    def view(self, key: Key) -> JobView | None:
        kind, name = key
        if kind is Pod:
            pod = self.pods.at(name)
            return JobView(None, strays=[pod]) if pod is not None and self._is_stray(pod) else None
        job = self.jobs.at(name)
        pods = [p for p in self.owned[name] if job is not None and _is_of(p, job)]
        strays = [p for p in self.owned[name] if is_tracked(p) and p not in pods]
        ours = job is not None and job.spec.managed_by in (None, MANAGED_BY)
        orphans = self.orphans[job.namespace] if job is not None else ()
        return JobView(job if ours else None, pods, strays, orphans, clock.wall())

    def plan(self, view: JobView) -> Iterator[Step | CommonStep]:
        yield from (RemoveTrackingFinalizer(pod) for pod in view.strays)
        if view.job is not None:
            assert view.now is not None
            yield from plan(view.job, view.pods, view.now, view.orphans)

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterator[Sequence[Step | CommonStep]]:
        """The status before any finalizer: counts are written before pods are released."""
        first = AdoptObject, ReleaseObject, SetJobStatus
        at = max((i + 1 for i, step in enumerate(steps) if isinstance(step, first)), default=0)
        yield from ((step,) for step in steps[:at])
        yield [step for step in steps[at:] if not isinstance(step, CreatePod)]
        yield from slow_start([step for step in steps[at:] if isinstance(step, CreatePod)])

    def subject(self, view: JobView) -> Job:
        assert view.job is not None
        return view.job

    async def act(self, key: Key, view: JobView, step: Step) -> Fail | None:
        if isinstance(step, RemoveTrackingFinalizer):
            await self._remove_finalizer(step.pod)
            return None
        job = self.subject(view)
        match step:
            case AdoptObject() | ReleaseObject():
                await adoption.carry_out(self.client, job, step, finalizer=JOB_TRACKING_FINALIZER)
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
                error = await create_pod(self.client, self.events, job, pod)
                return Fail(error) if error else None
            case DeletePod(pod) | DiscardPod(pod):
                if isinstance(step, DiscardPod) and is_tracked(pod):
                    await self._remove_finalizer(pod)
                error = await delete_pod(self.client, self.events, job, pod)
                return Fail(error) if error else None
            case DeleteExpiredJob():
                await self.cleaner.delete(
                    Job, job.name, job.namespace, uid=job.uid, propagation="Foreground", missing_ok=True
                )
            case _:
                assert_never(step)
        return None

    async def _remove_finalizer(self, pod: Pod) -> None:
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [JOB_TRACKING_FINALIZER]}}
        await self.client.patch(Pod, pod.name, pod.namespace, strategic=patch, uid=pod.uid, missing_ok=True)


def _is_of(pod: Pod, job: Job) -> bool:
    return any(r.controller and r.uid == job.uid for r in pod.metadata.owner_references)
