"""All pods of this node: a worker for each that the API knows, and a clean-up for what nobody knows any more.

After a restart the order matters: first the disk is read, then the pods are listed and every one of them says
that it lives, and only then may anything be taken down.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterable

from volplane.api.core import Pod
from volplane.client.client import Client
from volplane.node.containers.base import ContainerError
from volplane.node.manager import Waiting
from volplane.node.pods.adoption import read_markers
from volplane.node.pods.runtimes import parts
from volplane.node.pods.worker import FORCED_GRACE, Leave, PodWorker, Shared
from volplane.node.reconstruct import log_directories, pod_directories, remove_pod_directory

log = logging.getLogger(__name__)

AGAIN = 5.0  # seconds before a worker that broke is started anew


class Pods:
    def __init__(self, client: Client, node: str, shared: Shared) -> None:
        self.shared = shared
        self.cache = client.cache(Pod, fields=f"spec.nodeName={node}")
        self.workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._orphans: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Workers for all pods that are known, then permission to clean up what belongs to none."""
        site = self.shared.volumes.site
        self.shared.interrupted = await site.host.call(read_markers, site.paths.real(site.paths.pods))
        await self.cache.synced()
        self._end = self.cache.subscribe(self._seen)
        await self._find_orphans()
        self.shared.volumes.settle()

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """The newest pod of that name."""
        pod = self.cache.get(name, namespace)
        return self.workers.get(pod.uid) if pod is not None else None

    def _seen(self, old: Pod | None, new: Pod | None) -> None:
        if self._stopping:
            return
        if old is not None and (new is None or new.uid != old.uid):
            self._gone(old)
        if new is not None:
            worker = self.workers.get(new.uid)
            if worker is None:
                self._begin(new)
            else:
                worker.update(new)

    def _begin(self, pod: Pod) -> None:
        worker = self.workers[pod.uid] = PodWorker(self.shared, pod)
        task = asyncio.create_task(self._keep(worker), name=f"pod {pod.key}")
        self._tasks[pod.uid] = task
        task.add_done_callback(lambda _: self._over(pod))

    def _over(self, pod: Pod) -> None:
        self._tasks.pop(pod.uid, None)
        known = self.cache.get(pod.name, pod.namespace)
        # While a finalizer holds the pod, its worker stays: it knows that nothing is left to do.
        if known is None or known.uid != pod.uid:
            self.workers.pop(pod.uid, None)

    async def _keep(self, worker: PodWorker) -> None:
        while not worker.done:
            try:
                return await worker.run()
            except Exception:  # a mistake of ours must not leave the pod without anybody
                log.exception("pod %s", worker.pod.key)
            await asyncio.sleep(AGAIN)
            worker = self.workers[worker.uid] = worker.successor()

    def _gone(self, pod: Pod) -> None:
        """The API has no such pod any more: whatever is left of it here goes."""
        worker = self.workers.get(pod.uid)
        if worker is not None:
            worker.vanish()
            if pod.uid not in self._tasks:
                del self.workers[pod.uid]

    # --- what nobody knows

    async def _find_orphans(self) -> None:
        runtimes, site = self.shared.kit.runtimes, self.shared.volumes.site
        ids = [*(state.id for state in await runtimes.states()), *await runtimes.starts()]
        running = {parts(id)[0] for id in ids}
        directories = await pod_directories(site.host, site.paths)
        logs = await log_directories(site.host, site.paths)
        for uid in {*running, *directories, *logs} - self.workers.keys():
            if uid in running:
                self.shared.volumes.expect(uid)
            task = asyncio.create_task(self._clean_up(uid, logs.get(uid, "")), name=f"orphan {uid}")
            self._orphans.add(task)
            task.add_done_callback(self._orphans.discard)

    async def _clean_up(self, uid: str, logs: str) -> None:
        log.info("pod %s is no longer known and is cleaned up", uid)
        runtimes, volumes = self.shared.kit.runtimes, self.shared.volumes
        await runtimes.cancel_starts(uid)
        for state in await runtimes.of_pod(uid):
            try:
                await runtimes.stop(state.id, FORCED_GRACE)
                await runtimes.remove(state.id)
            except ContainerError as error:
                log.warning("container %s: %s", state.id, error)
        volumes.release(uid)
        await volumes.unmounted(uid)
        await self.shared.network.leave(uid)
        if left := await remove_pod_directory(volumes.site.host, volumes.site.paths, uid):
            log.warning("%s", left)
        if logs:
            await volumes.site.host.call(shutil.rmtree, logs, ignore_errors=True)

    # --- the end

    async def suspend(self, pods: Iterable[PodWorker]) -> None:
        """Stop these pods' containers and take their volumes down, without a word to the API."""
        self._stopping = True
        chosen = list(pods)
        for worker in chosen:
            worker.leave(Leave.SUSPENDED)
        tasks = [self._tasks[w.uid] for w in chosen if w.uid in self._tasks]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Let go of everything as it is; containers of their own go on running."""
        self._stopping = True
        tasks = [*self._tasks.values(), *self._orphans]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def waits(self) -> list[Waiting]:
        return [
            Waiting(f"pod/{w.pod.key}", w.waiting, w.since, 0.0) for w in self.workers.values() if w.waiting
        ]
