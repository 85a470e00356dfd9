"""What recording the steps of volumes costs: (a) and (c) with it and without it, in turns.

    python -m tests.bench.tracing [--rounds 12]

Two clusters run side by side, and each round uses one and then the other. CPU time of the cluster's main
thread is compared, which depends less on other load of the machine than elapsed time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Awaitable, Callable

import uvloop

from tests.bench import claims
from tests.bench.cluster_process import ClusterProcess, until
from tests.bench.objects import NAMESPACE, WAITING, claim, pod
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment

ON = "--journey-max-size=64Mi"
JOURNEYS, CLAIMS = 5, 100  # per round
WARM_UP = 2  # rounds that are not counted

Work = Callable[[ClusterProcess, int], Awaitable[object]]


async def run_journeys(running: ClusterProcess, round: int) -> None:
    """(a) A claim with its pod: create, wait until it has written, delete."""
    attachments = await running.watch(VolumeAttachment)
    volumes = await running.watch(PersistentVolume)
    for number in range(JOURNEYS):
        name = f"journey-{round}-{number}"
        written = running.pipe.line(name)
        await running.client.create(claim(name, WAITING))
        await running.client.create(pod(name, name, str(running.signals)))
        await asyncio.wait_for(written, 120)
        await running.client.delete(Pod, name, NAMESPACE)
        await until(attachments, lambda: not attachments.all(), f"the attachment of {name} is gone")
        await running.client.delete(PersistentVolumeClaim, name, NAMESPACE)
        await until(volumes, lambda: not volumes.all(), f"the volume of {name} is gone")


async def run_claims(running: ClusterProcess, round: int) -> None:
    """(c) Many claims at once."""
    await claims.create_bound(running, CLAIMS, f"many-{round}")
    await claims.delete_all(running)


async def compare(rounds: int) -> None:
    async with ClusterProcess(2) as off, ClusterProcess(2, ON) as on:
        for name, work in (("(a) claim and pod", run_journeys), ("(c) claims at once", run_claims)):
            costs = await _measure(work, off, on, rounds)
            ratios = [with_it / without for without, with_it in costs]
            without, with_it = (statistics.median(column) / 1e6 for column in zip(*costs, strict=True))
            print(
                f"{name:<20} off {without:8.1f} ms CPU, on {with_it:8.1f} ms CPU a round; median ratio "
                f"{statistics.median(ratios):.3f}, quartiles {_quartiles(ratios)}",
                flush=True,
            )


async def _measure(work: Work, off: ClusterProcess, on: ClusterProcess, rounds: int) -> list[tuple[int, int]]:
    costs = []
    for number in range(rounds + WARM_UP):
        cost = {}
        for running in (off, on) if number % 2 else (on, off):
            before, _ = running.cpu_times()
            await work(running, number)
            cost[running] = running.cpu_times()[0] - before
        if number >= WARM_UP:
            costs.append((cost[off], cost[on]))
    return costs


def _quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.3f} to {high:.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    uvloop.run(compare(parser.parse_args().rounds))
