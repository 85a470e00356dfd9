"""A node in its own process that is killed, and another one that starts on the same directory.

API server and driver run in the test, so that they see everything and survive.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from tests.loops.inprocess import until
from tests.node.node_env import NODE, NodeEnv
from tests.support.https_apiserver import https_apiserver
from volplane.api.core import Node
from volplane.host import mounts
from volplane.node.containers import records
from volplane.node.pod_directories import pod_directories

LONG = 120.0  # seconds that a busy machine may need to start a node


class NodeProcess:
    """`volplane node` against the test's API server."""

    def __init__(self, here: NodeEnv, kubeconfig: Path) -> None:
        self._here, self._kubeconfig = here, kubeconfig
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, failpoint: str = "", **more: str) -> None:
        """`more`: flags of the node."""
        flags = {
            "kubeconfig": self._kubeconfig,
            "hostname-override": NODE,
            "root-dir": self._here.paths.root,
            "zone": "us-east-1a",
            "region": "us-east-1",
            "instance-id": "i-1",
            "port": "0",
            "volume-plugin-dir": f"{self._here.directory}/exec",
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        with Path(f"{self._here.directory}/node.log").open("ab") as log:  # noqa: ASYNC230
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "volplane", "node", *(f"--{k}={v}" for k, v in flags.items())),
                stdout=log,
                stderr=log,
                env={**os.environ, "VOLPLANE_FAILPOINT": failpoint},
            )

    async def wait_until_killed(self) -> None:
        assert self._process is not None
        async with asyncio.timeout(LONG):
            assert await self._process.wait() == -9, self.log()

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def log(self) -> str:
        return Path(f"{self._here.directory}/node.log").read_text()


@asynccontextmanager
async def node_process_env() -> AsyncIterator[tuple[NodeEnv, NodeProcess]]:
    async with AsyncExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="vp-")
        api = await stack.enter_async_context(https_apiserver())
        here = NodeEnv(api, directory, stack)
        here.timeout = LONG
        stack.push_async_callback(here.close)
        kubeconfig = api.server.write_kubeconfig(
            Path(f"{directory}/node.kubeconfig"), "test", ("system:masters",)
        )
        child = NodeProcess(here, kubeconfig)
        stack.push_async_callback(child.stop)
        await here.start_driver()
        yield here, child


async def wait_until_registered(here: NodeEnv) -> None:
    await until(lambda: here.client.find(Node, NODE), LONG)
    await here.wait_until_registered()


async def create_process_pod(here: NodeEnv) -> None:
    await here.pod(claim="data", container={"image": "busybox", "command": ["sleep", "1000"]})


async def start_with_running_pod(here: NodeEnv, child: NodeProcess) -> None:
    await child.start()
    await wait_until_registered(here)
    await here.volume()
    await create_process_pod(here)
    await here.wait_until_ready()


def pids(here: NodeEnv) -> dict[str, int]:
    """Process ids of the running containers, by container id."""
    found = records.load_all(here.paths.real(here.paths.containers))
    return {r.started.spec.id: r.started.pid for r in found if r.state().running}


async def cut_power(here: NodeEnv, child: NodeProcess) -> None:
    """Processes and mounts are gone, the disk stays."""
    await child.kill()
    for record in records.load_all(here.paths.real(here.paths.containers)):
        for pid in (record.started.shim, record.started.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for entry in mounts.read_table().under(here.paths.root):
        mounts.unmount(entry.target, detach=True)
    assert here.list_mounts() == []


async def wait_until_clean(here: NodeEnv) -> None:
    async def unused() -> bool:
        return not await here.in_use()

    await until(unused, LONG)
    assert here.list_mounts() == []

    async def clean() -> bool:
        return not await pod_directories(here.host, here.paths)

    await until(clean, LONG)
