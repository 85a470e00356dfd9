"""A process runtime with a directory of its own; a test fails if it leaves a container."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from volplane.host import Host, mounts
from volplane.node.containers.base import ContainerSpec
from volplane.node.containers.process import ProcessRuntime


class RuntimeEnv:
    """A node's directory with its runtime's files, and helpers to read containers' logs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.containers = path / "containers"
        self.containers.mkdir()

    @asynccontextmanager
    async def runtime(self) -> AsyncIterator[ProcessRuntime]:
        host = Host(threads=4)
        runtime = ProcessRuntime(str(self.containers), host, cover=[str(self.path)])
        try:
            yield runtime
        finally:
            await runtime.close()
            await host.close()

    @asynccontextmanager
    async def temporary_runtime(self) -> AsyncIterator[ProcessRuntime]:
        """A runtime whose containers are all removed at the end."""
        async with self.runtime() as runtime:
            try:
                yield runtime
            finally:
                for state in await runtime.states():
                    await runtime.remove(state.id)

    def spec(self, *command: str, id: str = "one", **more: Any) -> ContainerSpec:
        return ContainerSpec(
            id=id, name=id, command=command, log_path=str(self.path / "logs" / id / "0.log"), **more
        )

    def shell(self, script: str, **more: Any) -> ContainerSpec:
        return self.spec("sh", "-c", script, **more)

    def log(self, id: str = "one") -> list[tuple[str, str]]:
        """(stream, text) of each line."""
        lines = (self.path / "logs" / id / "0.log").read_text(errors="replace").splitlines()
        return [(line.split(" ", 3)[1], line.split(" ", 3)[3]) for line in lines]

    async def wait_for_output(self, text: str, id: str = "one") -> str:
        """Wait for a line of the log that starts with `text`, and return it."""
        async with asyncio.timeout(20):
            while True:
                with suppress(FileNotFoundError):
                    if found := [line for line in self.output(id) if line.startswith(text)]:
                        return found[0]
                await asyncio.sleep(0.01)

    async def run_in(self, runtime: ProcessRuntime, id: str, *command: str) -> tuple[int, str]:
        """Run a command in a container; return its exit code and output."""
        running = await runtime.exec(id, command)
        text = b""
        while data := await running.stdout.read():
            text += data
        code = await running.wait()
        await running.close()
        return code, text.decode()

    def output(self, id: str = "one") -> list[str]:
        return [text for stream, text in self.log(id) if stream == "stdout"]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RuntimeEnv]:
    room = RuntimeEnv(tmp_path)
    yield room
    assert [p.name for p in room.containers.iterdir() if p.name != "launcher.log"] == []
    for entry in mounts.read_table().under(str(tmp_path)):
        mounts.unmount(entry.target, detach=True)
