"""The pods of this node: a worker for each pod in the API, and a clean-up of pods that no longer exist.

After a restart the order matters: first the disk is read, then the pods are listed and each worker claims its
volumes, and only then may anything be unmounted.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterable

from volplane.api.core import Pod
from volplane.base.tasks import KeyedTasks, TaskSet, cancel_and_wait
from volplane.client.client import Client
from volplane.node.containers.base import ContainerError
from volplane.node.pod_directories import log_directories, pod_directories, remove_pod_directory
from volplane.node.pods.restart_recovery import read_markers
from volplane.node.pods.runtimes import parse_container_id
from volplane.node.pods.worker import FORCED_GRACE, PodDeps, PodWorker
from volplane.rules.waits import Wait

log = logging.getLogger(__name__)

RESTART_DELAY = 5.0  # seconds before a worker that failed is replaced


class PodManager:
    def __init__(self, client: Client, node: str, shared: PodDeps) -> None:
        self.deps = shared
        self.cache = client.cache(Pod, fields=f"spec.nodeName={node}")
        self.workers: dict[str, PodWorker] = {}
        self._tasks: KeyedTasks[str, None] = KeyedTasks()
        self._orphans = TaskSet()
        self._stopping = False

    async def start(self) -> None:
        """Start workers for all known pods, then allow the clean-up of what belongs to none."""
        site = self.deps.volumes.context
        self.deps.interrupted = await site.host.call(read_markers, site.paths.real(site.paths.pods))
        await self.cache.wait_synced()
        self._end = self.cache.subscribe(self._handle_change)
        await self._find_orphans()
        self.deps.volumes.allow_unmounts()

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """The newest pod of that name."""
        pod = self.cache.get(name, namespace)
        return self.workers.get(pod.uid) if pod is not None else None

    def _handle_change(self, old: Pod | None, new: Pod | None) -> None:
        if self._stopping:
            return
        if old is not None and (new is None or new.uid != old.uid):
            self._handle_removal(old)
        if new is not None:
            worker = self.workers.get(new.uid)
            if worker is None:
                self._start_worker(new)
            else:
                worker.update(new)

    def _start_worker(self, pod: Pod) -> None:
        worker = self.workers[pod.uid] = PodWorker(self.deps, pod)
        task = self._tasks.start(pod.uid, self._supervise(worker), f"pod {pod.key}")
        task.add_done_callback(lambda _: self._handle_worker_end(pod))

    def _handle_worker_end(self, pod: Pod) -> None:
        known = self.cache.get(pod.name, pod.namespace)
        # While a finalizer keeps the pod, its worker stays: it records that nothing is left to do.
        if known is None or known.uid != pod.uid:
            self.workers.pop(pod.uid, None)

    async def _supervise(self, worker: PodWorker) -> None:
        while not worker.done:
            try:
                return await worker.run()
            except Exception:  # an unexpected error must not leave the pod without a worker
                log.exception("pod %s", worker.pod.key)
            await asyncio.sleep(RESTART_DELAY)
            worker = self.workers[worker.uid] = worker.create_replacement()

    def _handle_removal(self, pod: Pod) -> None:
        """The pod is gone from the API: remove what is left of it here."""
        worker = self.workers.get(pod.uid)
        if worker is not None:
            worker.force_delete()
            if pod.uid not in self._tasks:
                del self.workers[pod.uid]

    # --- orphans

    async def _find_orphans(self) -> None:
        runtimes, site = self.deps.containers.runtimes, self.deps.volumes.context
        ids = [*(state.id for state in await runtimes.states()), *await runtimes.unfinished_starts()]
        running = {parse_container_id(id)[0] for id in ids}
        directories = await pod_directories(site.host, site.paths)
        logs = await log_directories(site.host, site.paths)
        joined = await self.deps.network.list_pods()
        for uid in {*running, *directories, *logs, *joined} - self.workers.keys():
            if uid in running:
                self.deps.volumes.expect_pod(uid)
            self._orphans.start(self._clean_up(uid, logs.get(uid, "")), f"orphan {uid}")

    async def _clean_up(self, uid: str, logs: str) -> None:
        log.info("pod %s no longer exists: cleaning up", uid)
        runtimes, volumes = self.deps.containers.runtimes, self.deps.volumes
        await runtimes.cancel_starts(uid)
        for state in await runtimes.states_of_pod(uid):
            try:
                await runtimes.stop(state.id, FORCED_GRACE)
                await runtimes.remove(state.id)
            except ContainerError as error:
                log.warning("container %s: %s", state.id, error)
        await self.deps.network.leave(uid)
        volumes.release_pod(uid)
        await volumes.wait_for_unmount(uid)
        if left := await remove_pod_directory(volumes.context.host, volumes.context.paths, uid):
            log.warning("%s", left)
        if logs:
            await volumes.context.host.call(shutil.rmtree, logs, ignore_errors=True)

    # --- stopping

    async def suspend(self, pods: Iterable[PodWorker], longest_grace: float) -> None:
        """Stop these pods' containers and unmount their volumes, without changing the API objects.

        Containers are killed after `longest_grace` seconds, if their own grace period is not shorter.
        """
        self._stopping = True
        chosen = list(pods)
        for worker in chosen:
            worker.request_suspend(longest_grace)
        if tasks := [task for worker in chosen if (task := self._tasks.get(worker.uid)) is not None]:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """End all workers; process containers go on running."""
        self._stopping = True
        await cancel_and_wait(*self._tasks.values(), *self._orphans)

    def list_waits(self) -> list[tuple[str, Wait, float]]:
        """(pod, what it waits for, since when on the loop's clock)"""
        return [(f"pod/{w.pod.key}", w.waiting, w.since) for w in self.workers.values() if w.waiting]
