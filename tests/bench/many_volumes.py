"""(o) Ten thousand volumes in one cluster: the cost of a claim, the memory of each volume, a restart."""

from __future__ import annotations

import asyncio
import time

from tests.bench import claims
from tests.bench.cluster_process import ClusterProcess, until
from tests.bench.memory import SETTLE, resident
from tests.bench.objects import NAMESPACE
from tests.bench.report import Figure
from volplane.api.core import PersistentVolumeClaim

FEW = 100  # volumes before the first measurement, and claims of each measurement
AT_ONCE = 200  # claims created at once to fill the cluster


async def measure(nodes: int, volumes: int) -> list[Figure]:
    async with ClusterProcess(nodes) as running:
        await running.warm()
        await claims.create_bound(running, FEW, "few")
        first = await _cost_per_claim(running, "first")
        await asyncio.sleep(SETTLE)
        before = resident(running.process.pid)
        for number in range(FEW, volumes, AT_ONCE):
            await claims.create_bound(running, min(AT_ONCE, volumes - number), f"held-{number}")
        last = await _cost_per_claim(running, "last")
        await asyncio.sleep(SETTLE)
        each = (resident(running.process.pid) - before) * 1000 / (volumes - FEW)
        await running.client.close()
        await running.transport.close()
        await running.stop()
        begun = time.monotonic()
        await running.start()
        restart = time.monotonic() - begun
    cost = "CPU time per claim, create and delete, with"
    return [
        _figure(f"{cost} {FEW} volumes", "ms", first),
        _figure(f"{cost} {volumes} volumes", "ms", last),
        _figure(f"{cost} {volumes} volumes, ratio", "x", last / first),
        _figure(f"resident memory of each of {volumes} volumes", "kB", each),
        _figure(f"restart with {volumes} volumes until ready", "s", restart),
    ]


async def _cost_per_claim(running: ClusterProcess, word: str) -> float:
    """Milliseconds of CPU time of the cluster's process; the claims are deleted again."""
    before = running.cpu_seconds(children=False)
    await claims.create_bound(running, FEW, word)
    cache = await running.watch(PersistentVolumeClaim)
    names = [f"{word}-{number}" for number in range(FEW)]
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(running.client.delete(PersistentVolumeClaim, name, NAMESPACE))
    await until(cache, lambda: not any(cache.get(name, NAMESPACE) for name in names), "they are deleted")
    await asyncio.sleep(SETTLE)  # their volumes are deleted after them
    return (running.cpu_seconds(children=False) - before) * 1000 / FEW


def _figure(name: str, unit: str, value: float) -> Figure:
    return Figure(key="o", name=name, unit=unit, samples=(value,))
