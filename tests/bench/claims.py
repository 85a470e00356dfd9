"""(b) One Immediate claim until it is Bound; (c) two hundred at once."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from tests.bench.cluster_process import ClusterProcess, until
from tests.bench.objects import IMMEDIATE, NAMESPACE, claim
from tests.bench.report import Figure
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.client.cache import Cache

WARM_UP = 3


async def one_by_one(running: ClusterProcess, times: int) -> list[Figure]:
    await _one_by_one(running, WARM_UP, "warm")
    samples = await _one_by_one(running, times, "single")
    await delete_all(running)
    return [
        Figure(
            key="b",
            name="Immediate claim until Bound",
            unit="ms",
            samples=samples,
            aim=10,
            upstream=42,
            floor="floor: create alone",
        )
    ]


async def _one_by_one(running: ClusterProcess, times: int, word: str) -> tuple[float, ...]:
    claims = await running.watch(PersistentVolumeClaim)
    samples = []
    for number in range(times):
        name = f"{word}-{number}"
        start = time.monotonic_ns()
        await running.client.create(claim(name, IMMEDIATE))
        await until(claims, partial(is_bound, claims, name), f"{name} is Bound")
        samples.append((time.monotonic_ns() - start) / 1e6)
        await asyncio.sleep(0.02)  # background writes must not count for the next claim
    return tuple(samples)


async def at_once(running: ClusterProcess, count: int, rounds: int) -> list[Figure]:
    await running.warm()
    samples = []
    for number in range(rounds):
        samples.append(await create_bound(running, count, f"many-{number}"))
        await delete_all(running)
    name = f"{count} Immediate claims at once until all Bound"
    aim, upstream = (1.0, 49.0) if count == 200 else (None, None)
    return [Figure(key="c", name=name, unit="s", samples=tuple(samples), aim=aim, upstream=upstream)]


async def create_bound(
    running: ClusterProcess, count: int, word: str, storage_class: str = IMMEDIATE
) -> float:
    """Seconds until all of them are Bound."""
    claims = await running.watch(PersistentVolumeClaim)
    names = [f"{word}-{number}" for number in range(count)]
    pending = set(names)

    def all_bound() -> bool:
        pending.difference_update([n for n in pending if is_bound(claims, n)])
        return not pending

    start = time.monotonic_ns()
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(running.client.create(claim(name, storage_class)))
    await until(claims, all_bound, f"{count} claims are Bound")
    return (time.monotonic_ns() - start) / 1e9


async def delete_all(running: ClusterProcess) -> None:
    """Delete all claims, and wait until their volumes are gone."""
    claims, volumes = await running.watch(PersistentVolumeClaim), await running.watch(PersistentVolume)
    async with asyncio.TaskGroup() as group:
        for each in claims.all():
            group.create_task(running.client.delete(PersistentVolumeClaim, each.name, each.namespace))
    await until(claims, lambda: not claims.all(), "no claim is left")
    await until(volumes, lambda: not volumes.all(), "no volume is left")


def is_bound(claims: Cache[PersistentVolumeClaim], name: str) -> bool:
    found = claims.get(name, NAMESPACE)
    return found is not None and found.status.phase == "Bound"
