"""A node in a process of its own that is killed, and another one that comes after it on the same directory.

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

from tests.loops.inprocess import World, until
from tests.node.nodeworld import NODE, NodeWorld
from volplane import apiserver
from volplane.api.core import Node
from volplane.client.cache import Caches
from volplane.node.reconstruct import pod_directories
from volplane.store.memory import MemoryStore


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
