"""The cluster to measure: `volplane up` as a process, and a client over HTTPS.

VOLPLANE_BENCH_COMMAND is the command of another `volplane` to measure, such as that of an older commit.

Nothing here polls: the process prints when it is ready, objects are watched, and a container writes to a
named pipe when it has written its data.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from tests.support.up import Up
from volplane.api.meta import Resource
from volplane.base.trace import Span
from volplane.client import kubeconfig
from volplane.client.cache import Cache
from volplane.client.client import Client
from volplane.client.https import HttpsTransport

COMMAND = shlex.split(os.environ.get("VOLPLANE_BENCH_COMMAND", "")) or [
    str(Path(sys.executable).parent / "volplane")
]
PATIENCE = 120.0  # seconds for anything that is measured
SIGNAL = "written"

T = TypeVar("T", bound=Resource)


class ClusterProcess:
    """`async with ClusterProcess(nodes) as running:` one cluster in its own directory, removed afterwards."""

    client: Client
    transport: HttpsTransport
    process: asyncio.subprocess.Process

    def __init__(self, nodes: int, *options: str) -> None:
        """`options`: further ones of `volplane up`."""
        self.nodes, self.options = nodes, options
        self.directory = Path(tempfile.mkdtemp(prefix="vp-bench-"))
        # Beside the data directory: that one is hidden from containers.
        self.signals = Path(tempfile.mkdtemp(prefix="vp-signal-"))
        self.pipe = Pipe(self.signals / SIGNAL)
        self._drain: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def start(self) -> None:
        with (self.directory / "up.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *COMMAND,
                "up",
                "--data-dir",
                str(self.directory),
                "--nodes",
                str(self.nodes),
                *self.options,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        async with asyncio.timeout(PATIENCE):
            await self._until_ready()
        self._drain = asyncio.create_task(self._read_on())
        self.transport = kubeconfig.load(self.directory / "kubeconfig", agent="bench")
        self.client = Client(self.transport, component="bench")

    async def _until_ready(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line.startswith(b"ready in"):
                return
        raise RuntimeError(f"volplane up ended:\n{(self.directory / 'up.log').read_text()[-4000:]}")

    async def _read_on(self) -> None:
        assert self.process.stdout is not None
        while await self.process.stdout.read(65536):
            pass

    async def __aexit__(self, *_: object) -> None:
        if hasattr(self, "client"):
            await self.client.close()
            await self.transport.close()
        if hasattr(self, "process"):
            await self.stop()
        self.pipe.close()
        left = Up(directory=self.directory).leftovers()
        if left:
            raise RuntimeError(f"{self.directory} is not clean: {left}")
        shutil.rmtree(self.directory)
        shutil.rmtree(self.signals)

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            await self.process.wait()
        if self._drain is not None:
            await self._drain

    # --- for measurements

    def cpu_times(self) -> tuple[int, int]:
        """Nanoseconds that the cluster's main thread has run, and has waited for a CPU."""
        run, delayed, _ = Path(f"/proc/{self.process.pid}/schedstat").read_text().split()
        return int(run), int(delayed)

    def cpu_seconds(self, *, children: bool = True) -> float:
        """CPU time of all threads of the cluster so far, and of the processes that it has started."""
        own = _own_cpu_seconds(self.process.pid)
        if not children:
            return own
        below = descendants(self.process.pid)
        ended = sum(map(_ended_cpu_seconds, [self.process.pid, *below]))
        return own + ended + sum(map(_own_cpu_seconds, below))

    async def watch(self, type: type[T]) -> Cache[T]:
        """A cache of all objects of a kind."""
        cache = self.client.cache(type)
        await cache.wait_synced()
        return cache

    async def warm(self, connections: int = 64) -> None:
        """Open the connections for concurrent requests in advance, as in a running client."""
        await asyncio.gather(*(self.get("/version") for _ in range(connections)))

    async def get(self, path: str) -> bytes:
        return await self.transport._request("GET", path)

    async def spans(self, since: int) -> list[Span]:
        """The trace of the process since that time, on the machine's monotonic clock."""
        found = msgspec.json.decode(await self.get(f"/debug/trace?since={since}"), type=list[dict[str, Any]])
        return [Span(**fields) for fields in found]


def _own_cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the kernel's number of the clock of that process
    except OSError:  # ended meanwhile
        return 0.0


def _ended_cpu_seconds(pid: int) -> float:
    """CPU time of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:  # ended meanwhile
        return 0.0
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # ended meanwhile
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


async def until(cache: Cache[Any], test: Callable[[], bool], what: str) -> None:
    """Wait until the test is true; it is checked on every change of the cache."""
    changed = asyncio.Event()
    end = cache.subscribe(lambda old, new: changed.set())
    try:
        async with asyncio.timeout(PATIENCE):
            while not test():
                changed.clear()
                await changed.wait()
    except TimeoutError as error:
        raise TimeoutError(f"not within {PATIENCE:g} s: {what}") from error
    finally:
        end()


class Pipe:
    """Lines from containers through a named pipe; writes of a line are atomic."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path, 0o666)
        # Open for writing, too, so that it does not end when a writer closes it.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._rest = b""
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def line(self, text: str) -> asyncio.Future[None]:
        """A future that is done when that line has arrived."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[text] = future
        return future

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._descriptor, 65536)).split(b"\n")
        for line in lines:
            future = self._waiting.pop(line.decode(), None)
            if future is not None and not future.done():
                future.set_result(None)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
