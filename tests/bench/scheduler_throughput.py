"""(h) A thousand simulated nodes: how fast pods with claims get their nodes, and what each costs in memory.

API server with the memory store, binder and scheduler in one new process for every size; a small function is
the provisioner. Each pod has a WaitForFirstConsumer claim: a node is chosen, the claim gets a volume in its
zone, and then the pod is bound.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import time

import uvloop

from tests.bench.memory import resident
from tests.bench.report import Figure
from tests.controllers.objects import DRIVER, account, claim, node, pod, storage_class, volume
from tests.loops.inprocess import InProcessEnv, running, world
from tests.support.scheduler_env import ZONE, in_zone
from volplane.api import codec
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import Node, PersistentVolumeClaim, Pod
from volplane.api.storage import CSINode
from volplane.controllers.binder.controller import Binder
from volplane.scheduler.controller import Scheduler

NODES, ZONES = 1000, "abc"
AT_ONCE = 64  # users who create pods
LONGEST = 600.0


async def measure(counts: tuple[int, ...], nodes: int = NODES) -> list[Figure]:
    figures = []
    for count in counts:
        command = (sys.executable, "-m", "tests.bench.scheduler_throughput", str(nodes), str(count))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(LONGEST):
            output, _ = await process.communicate()
        seconds, grown = json.loads(output)
        name = f"{count} pods with claims on {nodes} nodes"
        figures.append(Figure(key="h", name=f"{name}, placed", unit="pods/s", samples=(count / seconds,)))
        each = grown * 1000 / count
        figures.append(Figure(key="h", name=f"{name}, memory of each", unit="kB", samples=(each,)))
    return figures


async def schedule_pods(nodes: int, count: int) -> tuple[float, float]:
    """Seconds until all pods are scheduled, and their memory in MB."""
    async with world() as around:
        await create_nodes(around, nodes)
        jobs = (
            Scheduler(around.role("scheduler")).run(),
            Binder(around.role("binder")).run(),
            provision(around),
        )
        async with running(*jobs):
            await _warm_up(around)
            before = resident(os.getpid())
            start = time.monotonic()
            await create_pods(around, count)
            await wait_until_scheduled(around, count)
            took = time.monotonic() - start
            gc.collect()
            return took, resident(os.getpid()) - before


async def create_nodes(around: InProcessEnv, nodes: int) -> None:
    await around.client.create(account())
    await around.client.create(storage_class("late", "WaitForFirstConsumer"))
    for i in range(nodes):
        name = f"node-{i:04}"
        await around.client.create(node(name, zone=ZONES[i % len(ZONES)]))
        driver = {"name": DRIVER, "nodeID": name, "topologyKeys": [ZONE], "allocatable": {"count": 28}}
        whole = {"metadata": {"name": name}, "spec": {"drivers": [driver]}}
        await around.client.create(codec.convert(CSINode, whole))


async def _warm_up(around: InProcessEnv) -> None:
    await around.client.create(claim("first", cls="late"))
    await around.client.create(pod("first", "first"))
    await wait_until_scheduled(around, 1)
    gc.collect()


async def create_pods(around: InProcessEnv, count: int) -> None:
    async def some(start: int) -> None:
        for i in range(start, count, AT_ONCE):
            await around.client.create(claim(f"c{i}", cls="late"))
            await around.client.create(pod(f"p{i}", f"c{i}"))

    async with asyncio.TaskGroup() as group:
        for start in range(AT_ONCE):
            group.create_task(some(start))


async def wait_until_scheduled(around: InProcessEnv, count: int) -> None:
    cache = around.client.cache(Pod)
    left, done = {"first"} if count == 1 else {f"p{i}" for i in range(count)}, asyncio.Event()

    def on_pod(old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name:
            left.discard(new.name)
        if not left:
            done.set()

    cache.subscribe(on_pod)
    await done.wait()


async def provision(around: InProcessEnv) -> None:
    """Create a volume in the zone of the selected node for every claim that has one."""
    client, waiting = around.role("provisioner"), asyncio.Queue[PersistentVolumeClaim]()
    nodes = client.cache(Node)
    await nodes.wait_synced()

    def on_claim(old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        before = old is not None and SELECTED_NODE_ANNOTATION in old.metadata.annotations
        if new is not None and not before and SELECTED_NODE_ANNOTATION in new.metadata.annotations:
            waiting.put_nowait(new)

    client.cache(PersistentVolumeClaim).subscribe(on_claim)
    while True:
        wanted = await waiting.get()
        chosen = nodes.get(wanted.metadata.annotations[SELECTED_NODE_ANNOTATION])
        assert chosen is not None
        reference = {"namespace": wanted.namespace, "name": wanted.name, "uid": wanted.uid}
        zone = in_zone(chosen.metadata.labels[ZONE])
        await client.create(volume(f"pvc-{wanted.uid}", cls="late", claimRef=reference, **zone))


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # the recorder drops events beyond its limit, and warns
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(schedule_pods(int(sys.argv[1]), int(sys.argv[2])))))
