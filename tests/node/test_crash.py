"""A node in a process of its own, killed at a call, before it and after it; the next one finishes the work.

API server and driver live in the test, so that they see everything and survive.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.loops.inprocess import World, until
from tests.node.nodeworld import NODE, NodeWorld, unique
from volplane import apiserver
from volplane.api.core import Node, Pod
from volplane.client.cache import Caches
from volplane.node.reconstruct import pod_directories
from volplane.store.memory import MemoryStore

pytestmark = [pytest.mark.root, pytest.mark.slow]

UP = [f"rpc:Node{call}Volume:{when}" for call in ("Stage", "Publish") for when in ("before", "after")]
DOWN = [f"rpc:Node{call}Volume:{when}" for call in ("Unpublish", "Unstage") for when in ("before", "after")]


class Child:
    """`volplane node` against the test's API server."""

    def __init__(self, here: NodeWorld, kubeconfig: Path) -> None:
        self._here, self._kubeconfig = here, kubeconfig
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, failpoint: str = "") -> None:
        flags = {
            "kubeconfig": self._kubeconfig,
            "hostname-override": NODE,
            "root-dir": self._here.paths.root,
            "zone": "us-east-1a",
            "region": "us-east-1",
            "instance-id": "i-1",
        }
        with Path(f"{self._here.directory}/node.log").open("ab") as log:  # noqa: ASYNC230
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "volplane", "node", *(f"--{k}={v}" for k, v in flags.items())),
                stdout=log,
                stderr=log,
                env={**os.environ, "VOLPLANE_FAILPOINT": failpoint},
            )

    async def died(self) -> None:
        assert self._process is not None
        async with asyncio.timeout(30):
            assert await self._process.wait() == -9, self.log()

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    def log(self) -> str:
        return Path(f"{self._here.directory}/node.log").read_text()


@asynccontextmanager
async def crash_world() -> AsyncIterator[tuple[NodeWorld, Child]]:
    async with AsyncExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="vp-")
        store = MemoryStore()
        stack.push_async_callback(store.close)
        server = await apiserver.run(apiserver.Settings(data_dir=f"{directory}/api"), store)
        stack.push_async_callback(server.close)
        caches = await stack.enter_async_context(Caches(server.local()))
        here = NodeWorld(World(server.core, caches), directory, stack)
        stack.push_async_callback(here.close)
        kubeconfig = server.write_kubeconfig(
            Path(f"{directory}/node.kubeconfig"), "test", ("system:masters",)
        )
        child = Child(here, kubeconfig)
        stack.push_async_callback(child.stop)
        await here.start_driver()
        yield here, child


async def is_there(here: NodeWorld) -> None:
    await until(lambda: here.client.find(Node, NODE))
    await here.registered()


async def process_pod(here: NodeWorld) -> None:
    await here.pod(claim="data", container={"image": "busybox", "command": ["sleep", "1000"]})


async def everything_is_given_back(here: NodeWorld) -> None:
    async def unused() -> bool:
        return not await here.in_use()

    await until(unused)
    assert here.mounted() == []

    async def clean() -> bool:
        return not await pod_directories(here.host, here.paths)

    await until(clean)


@pytest.mark.parametrize("point", UP)
async def test_killed_while_mounting(point: str) -> None:
    async with crash_world() as (here, child):
        await child.start(point)
        await is_there(here)
        await here.volume()
        await process_pod(here)
        await child.died()
        await child.start()
        await here.until_ready()
        assert len(here.mounted()) == 2
        assert await here.in_use() == [unique()]
        await here.delete()
        await here.until_phase("gone")
        await everything_is_given_back(here)


@pytest.mark.parametrize("point", UP)
async def test_killed_while_mounting_for_a_pod_that_is_gone_afterwards(point: str) -> None:
    async with crash_world() as (here, child):
        await child.start(point)
        await is_there(here)
        await here.volume()
        await process_pod(here)
        await child.died()
        await here.delete(grace=0)
        await child.start()
        await everything_is_given_back(here)


@pytest.mark.parametrize("point", DOWN)
async def test_killed_while_unmounting(point: str) -> None:
    async with crash_world() as (here, child):
        await child.start(point)
        await is_there(here)
        await here.volume()
        await process_pod(here)
        await here.until_ready()
        await here.delete()
        await child.died()
        assert await here.in_use() == [unique()]
        await child.start()
        await here.until_phase("gone")
        await everything_is_given_back(here)


async def test_a_container_outlives_its_node_and_belongs_to_the_next_one() -> None:
    async with crash_world() as (here, child):
        await child.start()
        await is_there(here)
        await here.volume()
        await process_pod(here)
        before = await here.until_ready()
        mounted = here.mounted()
        await child.kill()
        here.disks.calls.clear()
        await child.start()

        async def again() -> bool:
            return here.disks.counted() == {"stage": 1, "publish": 1}

        await until(again)
        assert here.mounted() == mounted
        after = await here.client.get(Pod, "app", "default")
        assert after.status.container_statuses == before.status.container_statuses
        await here.delete()
        await here.until_phase("gone")
        await everything_is_given_back(here)
