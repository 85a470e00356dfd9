"""The eviction manager: measures the node's disk, sets DiskPressure, and evicts pods one by one.

After an eviction it waits for the pod to exit before it chooses the next one, because that may free enough.
The condition stays for a while after there is space again, so that pods do not come and go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from volplane.api.core import ObjectReference, Pod
from volplane.base import clock, metrics
from volplane.host import Host, NodePaths
from volplane.loops.events import EventRecorder
from volplane.node.eviction import plan, thresholds, usage
from volplane.node.eviction.thresholds import RESOURCES, CrossedThreshold, MeasuredDisk
from volplane.node.options import NodeOptions
from volplane.node.pods.worker import PodWorker
from volplane.node.status import DISK_PRESSURE, NodeObject

log = logging.getLogger(__name__)

POD_EXIT_TIMEOUT = 30.0  # seconds to wait for an evicted pod before the next one is chosen
EMPTY_DIR_LIMIT = "emptydirfs.limit"

_evictions = metrics.counter("kubelet_evictions", "Pods that were evicted.", ("eviction_signal",))


class EvictionManager:
    def __init__(
        self,
        settings: NodeOptions,
        host: Host,
        paths: NodePaths,
        node: NodeObject,
        workers: Mapping[str, PodWorker],
        events: EventRecorder,
    ) -> None:
        self._thresholds = thresholds.parse(settings.eviction_hard)
        self._period = settings.eviction_monitoring_period
        self._transition = settings.eviction_pressure_transition_period
        self._host, self._paths, self._node, self._workers = host, paths, node, workers
        self._events = events
        self._last_crossed: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            evicted = await self._evict_one(await self.measure_disk())
            if evicted is None:
                await asyncio.sleep(self._period)
            else:
                await self._wait_for_end(evicted)

    async def measure_disk(self) -> list[CrossedThreshold]:
        """Measure the disk, set the node's condition, and return the thresholds that are crossed."""
        try:
            stats = await self._host.stats(self._paths.root)
        except OSError as error:
            log.warning("cannot measure the disk of node %s: %s", self._node.name, error)
            return []
        disk = MeasuredDisk(stats.available, stats.capacity, stats.inodes_free, stats.inodes)
        crossed = thresholds.find_crossed(self._thresholds, disk)
        now = clock.now()
        if crossed:
            self._last_crossed = now
        recently = self._last_crossed is not None and now - self._last_crossed < self._transition
        self._set_pressure(bool(crossed) or recently)
        return crossed

    def _set_pressure(self, pressure: bool) -> None:
        if pressure == self._node.has_pressure(DISK_PRESSURE):
            return
        words = ("KubeletHasDiskPressure", "kubelet has disk pressure") if pressure else ("", "")
        self._node.set_pressure(DISK_PRESSURE, *words)
        reason = "NodeHasDiskPressure" if pressure else "NodeHasNoDiskPressure"
        log.warning("node %s: %s", self._node.name, reason)
        about = ObjectReference(kind="Node", name=self._node.name, uid=self._node.uid)
        self._events.normal(about, reason, f"Node {self._node.name} status is now: {reason}")

    async def _evict_one(self, crossed: list[CrossedThreshold]) -> PodWorker | None:
        limited = [w.pod for w in self._evictable() if plan.limited_volumes(w.pod)]
        for found in await self._measure(limited) if limited else []:
            if why := plan.over_limit(found):
                return self._evict(found, why, EMPTY_DIR_LIMIT)
        if not crossed:
            return None
        worst = crossed[0]
        resource = RESOURCES[worst.threshold.measure]
        about = ObjectReference(kind="Node", name=self._node.name, uid=self._node.uid)
        self._events.warning(about, "EvictionThresholdMet", f"Attempting to reclaim {resource}")
        usages = await self._measure([w.pod for w in self._evictable()])
        for first in plan.rank(usages, worst.threshold.measure):
            return self._evict(first, plan.eviction_message(first, worst), worst.threshold.signal)
        return None

    def _evictable(self) -> list[PodWorker]:
        return [w for w in self._workers.values() if w.may_be_evicted and plan.may_be_evicted(w.pod)]

    async def _measure(self, pods: list[Pod]) -> list[plan.PodDiskUsage]:
        return await self._host.call(usage.measure, pods, self._paths)

    def _evict(self, found: plan.PodDiskUsage, why: str, signal: str) -> PodWorker | None:
        worker = self._workers.get(found.pod.uid)
        if worker is None or not worker.may_be_evicted:  # it has ended meanwhile
            return None
        log.warning("evicting pod %s: %s", found.pod.key, why)
        _evictions.labels(signal).inc()
        worker.evict(why)
        return worker

    async def _wait_for_end(self, worker: PodWorker) -> None:
        try:
            async with asyncio.timeout(POD_EXIT_TIMEOUT):
                await worker.unmounted.wait()
        except TimeoutError:
            log.warning("evicted pod %s has not exited after %g s", worker.pod.key, POD_EXIT_TIMEOUT)
