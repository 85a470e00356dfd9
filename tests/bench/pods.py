"""(d) Fifty claims and pods at once until all pods are Running."""

from __future__ import annotations

import asyncio
import time

from tests.bench import stages
from tests.bench.claims import delete_all
from tests.bench.cluster_process import ClusterProcess, until
from tests.bench.objects import NAMESPACE, WAITING, claim, pod
from tests.bench.report import Figure
from volplane.api.core import Pod
from volplane.api.storage import VolumeAttachment


async def measure(running: ClusterProcess, count: int, rounds: int) -> list[Figure]:
    await running.warm()
    samples, ends, shares = [], [], []
    for number in range(rounds):
        start = time.monotonic_ns()
        samples.append(await _create_running(running, count, f"crowd-{number}"))
        end = time.monotonic_ns()
        shares.append(stages.shares(await running.spans(start), start, end))
        ends.append(await _delete(running))
        await delete_all(running)
    full = count == 50
    return [
        Figure(
            key="d",
            name=f"{count} claims and pods at once until all Running",
            unit="s",
            samples=tuple(samples),
            aim=2.5 if full else None,
            upstream=33.0 if full else None,
            shares=stages.columns(shares),
        ),
        Figure(key="d", name=f"{count} pods deleted until detached", unit="s", samples=tuple(ends)),
    ]


async def _create_running(running: ClusterProcess, count: int, word: str) -> float:
    pods = await running.watch(Pod)
    pending = {f"{word}-{number}" for number in range(count)}

    async def both(name: str) -> None:
        await running.client.create(claim(name, WAITING))
        await running.client.create(pod(name, name, str(running.signals)))

    def all_run() -> bool:
        found = {n: pods.get(n, NAMESPACE) for n in pending}
        pending.difference_update([n for n, p in found.items() if p and p.status.phase == "Running"])
        return not pending

    start = time.monotonic_ns()
    async with asyncio.TaskGroup() as group:
        for name in sorted(pending):
            group.create_task(both(name))
    await until(pods, all_run, f"{count} pods run")
    return (time.monotonic_ns() - start) / 1e9


async def _delete(running: ClusterProcess) -> float:
    pods, attachments = await running.watch(Pod), await running.watch(VolumeAttachment)
    start = time.monotonic_ns()
    async with asyncio.TaskGroup() as group:
        for each in pods.namespace(NAMESPACE):
            group.create_task(running.client.delete(Pod, each.name, each.namespace))
    await until(attachments, lambda: not attachments.all(), "no attachment is left")
    took = (time.monotonic_ns() - start) / 1e9
    await until(pods, lambda: not pods.namespace(NAMESPACE), "no pod is left")
    return took
