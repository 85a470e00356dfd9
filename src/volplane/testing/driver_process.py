"""The driver's processes for cases without a cluster: start, kill, restart.

A driver with one command runs once per node, and the first instance is also the controller. A driver with two
commands runs its controller separately. A killed process is restarted with the same command, node and socket.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from volplane.base.tasks import cancel_and_wait
from volplane.cluster.external_driver.command import FIELDS, MODE, fill_variables
from volplane.cluster.external_driver.model import Command
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import CsiChannel
from volplane.host import Host
from volplane.host.processes import Process

START = 60.0  # seconds until the driver's socket must accept connections
PIECE = 0.1  # seconds
LOG_TAIL = 4000  # characters of its log


class DriverStartError(Exception):
    """The driver did not start; the message has its output."""


class DriverProcess:
    """One process of the driver."""

    def __init__(
        self,
        name: str,
        command: Command,
        directory: Path,
        host: Host,
        *,
        mode: str,
        interceptor: CallInterceptor,
    ) -> None:
        self.name, self.root = name, directory / name
        self.socket = str(self.root / "csi.sock")
        self.log = str(directory / f"{name}.log")
        self._interceptor = interceptor
        self.channel = self._connect()
        self._old_channels: list[CsiChannel] = []
        self.starts = 0
        self._command, self._host = command, host
        self._state, self._shared = self.root / "state", directory / "shared"
        self._values = {
            **dict.fromkeys(FIELDS, name),
            "NODE_IP": "127.0.0.1",
            "POD_IP": "127.0.0.1",
            "CSI_ENDPOINT": f"unix://{self.socket}",
            "CSI_SOCKET": self.socket,
            "STATE_DIR": str(self._state),
            "SHARED_DIR": str(self._shared),
            MODE: mode,
        }
        self._process: Process | None = None

    def _connect(self) -> CsiChannel:
        return CsiChannel(self.socket, component="test-driver", interceptor=self._interceptor)

    async def start(self) -> None:
        """Start and wait until it accepts connections. Raises DriverStartError."""
        # The socket file of a killed process remains, as on a real node: the driver must handle it.
        for directory in (self.root, self._state, self._shared):
            directory.mkdir(parents=True, exist_ok=True)
        argv = [fill_variables(word, self._values) for word in self._command.argv]
        own = {name: fill_variables(value, self._values) for name, value in self._command.env.items()}
        script = f"cd {shlex.quote(self._command.directory)} && exec {shlex.join(argv)}"
        env = {**os.environ, **self._values, **own}
        if self.starts:
            # A channel may take a moment to notice that its process was killed. The old channel stays open:
            # interrupted calls still wait for their error on it.
            self._old_channels.append(self.channel)
            self.channel = self._connect()
        self._process = await self._host.spawn(["/bin/sh", "-c", script], log=self.log, env=env)
        self.starts += 1
        ready = asyncio.ensure_future(self._is_listening())
        ended = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                code, said = ended.result(), self.log_tail() or "no output"
                raise DriverStartError(f"{self.name}: the driver ended with code {code}: {said}")
            await ready
        except TimeoutError:
            text = f"{self.name}: nothing listens at {self.socket} after {START:g} s"
            raise DriverStartError(
                f"{text}{self._endpoint_hint()}: {self.log_tail() or 'no output'}"
            ) from None
        finally:
            await cancel_and_wait(ready, ended)

    def _endpoint_hint(self) -> str:
        words = (*self._command.argv, *self._command.env.values())
        if any(name in word for name in ("CSI_ENDPOINT", "CSI_SOCKET") for word in words):
            return ""
        return " (its command does not use $CSI_ENDPOINT or $CSI_SOCKET, which are in its environment)"

    async def _is_listening(self) -> None:
        async with asyncio.timeout(START):
            while True:
                # In short intervals: gRPC's own backoff grows, and the run waits for every start.
                with suppress(TimeoutError):
                    await self.channel.ready(PIECE)
                    return

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    async def kill(self) -> None:
        """Kill the process and all processes of its session (SIGKILL); its mounts remain."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            self._process = None

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def delete_state(self) -> None:
        """Delete the driver's own state, as on a new machine."""
        await self.kill()
        await self._host.call(shutil.rmtree, self._state, True)

    async def stop(self, grace: float = 5.0) -> None:
        """Terminate it, and kill it after `grace` seconds."""
        if self._process is not None and self._process.running:
            with suppress(ProcessLookupError, TimeoutError):
                os.killpg(self._process.pid, signal.SIGTERM)
                async with asyncio.timeout(grace):
                    await self._process.wait()
        await self.kill()
        for channel in (*self._old_channels, self.channel):
            await channel.close()

    def children(self) -> int:
        """The number of other processes in its session."""
        return len(_session(self._process.pid)) - 1 if self._process is not None else 0

    def log_size(self) -> int:
        """The size of its log in bytes."""
        return os.path.getsize(self.log) if os.path.exists(self.log) else 0

    def log_tail(self, most: int = LOG_TAIL, since: int = 0) -> str:
        """The end of its log."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(since, self.log_size() - most))
                return file.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""


def _session(leader: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError), open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] not in "ZX":
                    found.append(int(entry))
    return found
