"""(i) A thousand claims at once: the time, and its share in which a CreateVolume was in flight.

Measured twice: with the EBS driver, which uses CPU time of its own, and with a driver that only sleeps, on a
real socket, where the rest of the time is our overhead. The roles have the settings of `volplane up`,
including the resync period, which is much shorter in tests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from tests.bench import claims
from tests.bench.cluster_process import ClusterProcess
from tests.bench.report import Figure
from tests.contract.provisioning.claims_env import claims_env
from tests.loops.inprocess import world
from tests.support import scripted
from tests.support.scripted import Delay
from volplane.api.core import PersistentVolumeClaim
from volplane.base import memory

DRIVER_DELAY = 0.05  # seconds that the sleeping driver takes for each volume
ROUNDS = 15.0  # the binder's default resync period in seconds
WORKERS = 100  # the provisioner's default: concurrent calls of the driver


async def measure(running: ClusterProcess, count: int) -> list[Figure]:
    """Measure on the cluster."""
    await running.warm()
    begun = time.monotonic_ns()
    seconds = await claims.create_bound(running, count, "burst")
    spans = await running.spans(begun)
    calls = [(s.start / 1e9, s.end / 1e9) for s in spans if s.step == "CreateVolume"]
    await claims.delete_all(running)
    return [
        Figure(key="i", name=f"{count} claims at once until all Bound", unit="s", samples=(seconds,)),
        Figure(key="i", name="of which a CreateVolume was open", unit="s", samples=(union_length(calls),)),
    ]


async def alone(count: int) -> list[Figure]:
    """Measure with a driver that sleeps; the lower bound is the time of its answers with this concurrency."""
    driver = scripted.driver()
    driver.always("CreateVolume", Delay(DRIVER_DELAY))
    calls: list[tuple[float, float]] = []
    create = driver.create_volume

    async def create_timed(request: object) -> object:
        start = time.monotonic()
        try:
            return await create(request)
        finally:
            calls.append((start, time.monotonic()))

    type(driver).create_volume = lambda self, request: create_timed(request)
    logging.disable(logging.WARNING)  # the recorder drops events beyond its limit, and warns
    memory.tune_garbage_collector()
    async with claims_env(driver, on=world, binder={"sync_period": ROUNDS}) as s:
        await s.storage_class()
        pending = {f"burst-{i}" for i in range(count)}
        done = asyncio.Event()

        def on_change(old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
            if new is not None and new.status.phase == "Bound":
                pending.discard(new.name)
                if not pending:
                    done.set()

        s.client.cache(PersistentVolumeClaim).subscribe(on_change)
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for name in sorted(pending):
                group.create_task(s.claim(name))
        async with asyncio.timeout(300):
            await done.wait()
        seconds = time.monotonic() - begun
    floor = f"what a driver that takes {DRIVER_DELAY * 1000:.0f} ms needs for {count}"
    name = f"{count} claims at once, such a driver, until all Bound"
    return [
        Figure(key="i", name=floor, unit="s", samples=(DRIVER_DELAY * count / WORKERS,)),
        Figure(key="i", name=name, unit="s", samples=(seconds,), floor=f"{floor}"),
        Figure(key="i", name="of which such a driver was at work", unit="s", samples=(union_length(calls),)),
    ]


def union_length(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of the intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        if stop > end:
            total += stop - max(start, end)
            end = stop
    return total
