"""(e) From the command to the first Bound claim, in a new directory each time."""

from __future__ import annotations

import time

from tests.bench.claims import is_bound
from tests.bench.cluster_process import ClusterProcess, until
from tests.bench.objects import IMMEDIATE, claim
from tests.bench.report import Figure
from volplane.api.core import PersistentVolumeClaim


async def _bind_first_claim(running: ClusterProcess) -> None:
    claims = await running.watch(PersistentVolumeClaim)
    await running.client.create(claim("first", IMMEDIATE))
    await until(claims, lambda: is_bound(claims, "first"), "the first claim is Bound")


async def measure(nodes: int, times: int) -> list[Figure]:
    samples, ready, cpu = [], [], []
    for _ in range(times):
        running = ClusterProcess(nodes)
        start = time.monotonic_ns()
        async with running:
            ready.append((time.monotonic_ns() - start) / 1e9)
            await _bind_first_claim(running)
            samples.append((time.monotonic_ns() - start) / 1e9)
            cpu.append(running.cpu_seconds())
    return [
        Figure(
            key="e",
            name="start-up until a claim is Bound",
            unit="s",
            samples=tuple(samples),
            aim=1.0,
            upstream=9.5,
        ),
        Figure(key="e", name=f"start-up until ready, {nodes} nodes", unit="s", samples=tuple(ready)),
        Figure(key="e", name="CPU time until a claim is Bound", unit="s", samples=tuple(cpu)),
    ]
