"""(p) A thousand hollow nodes with ten volumes each: scheduling and attaching, against ten nodes.

API server with the memory store, binder, scheduler and attach/detach controller in one new process for every
size. Small functions are the provisioner and the attacher; nodes are objects only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

import uvloop

from tests.bench.report import Figure
from tests.bench.scheduler_throughput import create_nodes, create_pods, provision, wait_until_scheduled
from tests.controllers.objects import DRIVER
from tests.loops.inprocess import InProcessEnv, running, world
from volplane.api import codec
from volplane.api.storage import CSIDriver, VolumeAttachment
from volplane.base import memory
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.binder.controller import Binder
from volplane.scheduler.controller import Scheduler

FEW, EACH = 10, 10  # nodes to compare with; volumes on every node
LONGEST = 1800.0


async def measure(nodes: int, rounds: int) -> list[Figure]:
    few = [await _measure_alone(FEW) for _ in range(rounds)]
    many = [await _measure_alone(nodes)]
    name = "CPU time per pod with a claim, scheduled and attached, on"
    figures = [_figure(f"{name} {FEW} nodes", "ms", few), _figure(f"{name} {nodes} nodes", "ms", many)]
    ratio = figures[1].median / figures[0].median
    return [*figures, _figure(f"{name} {nodes} nodes, ratio", "x", [ratio])]


async def _measure_alone(nodes: int) -> float:
    command = (sys.executable, "-m", "tests.bench.hollow_nodes", str(nodes))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(LONGEST):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"the measurement with {nodes} nodes ended with exit code {process.returncode}")
    found: float = json.loads(output)
    return found


async def attach_pods(nodes: int) -> float:
    """Milliseconds of CPU time per pod until all are scheduled and their volumes attached."""
    count = nodes * EACH
    async with world() as around:
        await create_nodes(around, nodes)
        await around.client.create(codec.convert(CSIDriver, {"metadata": {"name": DRIVER}}))
        attached = asyncio.Event()
        jobs = (
            Scheduler(around.role("scheduler")).run(),
            Binder(around.role("binder")).run(),
            AttachDetach(around.role("attachdetach")).run(),
            provision(around),
            _attach(around, count, attached),
        )
        async with running(*jobs):
            begun = time.process_time()
            await create_pods(around, count)
            await wait_until_scheduled(around, count)
            await attached.wait()
            return (time.process_time() - begun) * 1000 / count


async def _attach(around: InProcessEnv, count: int, done: asyncio.Event) -> None:
    """Set every VolumeAttachment to attached, as the driver's attacher does."""
    client, waiting = around.role("attacher"), asyncio.Queue[VolumeAttachment]()

    def on_attachment(old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        if new is not None and old is None:
            waiting.put_nowait(new)

    client.cache(VolumeAttachment).subscribe(on_attachment)
    for _ in range(count):
        made = await waiting.get()
        await client.patch(
            VolumeAttachment, made.name, merge={"status": {"attached": True}}, subresource="status"
        )
    done.set()
    await asyncio.Event().wait()


def _figure(name: str, unit: str, samples: list[float]) -> Figure:
    return Figure(key="p", name=name, unit=unit, samples=tuple(samples))


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # the recorder drops events beyond its limit, and warns
    memory.tune_garbage_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(attach_pods(int(sys.argv[1])))))
