"""(i) A thousand claims at once: how long, and how much of it somebody was waiting for the driver.

The share is of the time in which at least one CreateVolume was open: what is left of the rest is ours. Twice:
with the cluster's own driver, whose answers cost CPU that we would need too, and with one that only takes
its time, a real socket between, where the share shows whether anything of ours is in the way. There the roles
run with the settings that `volplane up` gives them, the rounds over everything included, which tests have
much more often.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from tests.bench import claims
from tests.bench.cluster_process import ClusterProcess
from tests.bench.report import Figure
from tests.contract.provisioning.stage import stage
from tests.loops.inprocess import world
from tests.support import scripted
from tests.support.scripted import Delay
from volplane.api.core import PersistentVolumeClaim
from volplane.base import memory

DRIVER_DELAY = 0.05  # seconds that the scripted driver takes for each volume
ROUNDS = 15.0  # seconds between the binder's rounds over everything, its default
WORKERS = 100  # the provisioner's default, and so the most that the driver works on at a time


async def measure(running: ClusterProcess, count: int) -> list[Figure]:
    """On the cluster."""
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
    """Beside a driver that sleeps: the floor is what its answers take with this many at a time."""
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
    logging.disable(logging.WARNING)  # more events than are kept at a time; nobody reads them here
    memory.tune_garbage_collector()
    async with stage(driver, on=world, binder={"sync_period": ROUNDS}) as s:
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
    """The length of their union."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        if stop > end:
            total += stop - max(start, end)
            end = stop
    return total
