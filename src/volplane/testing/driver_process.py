"""The driver's processes for cases without a cluster: start, kill, restart.

A driver with one command runs once per node, and the first instance is also the controller. A driver with two
commands runs its controller separately. A killed process is restarted with the same command, node and socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import shlex
import shutil
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from volplane.base.tasks import cancel_and_wait
from volplane.cluster.external_driver.command import FIELDS, MODE, fill_variables
from volplane.cluster.external_driver.model import Command
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import CsiChannel
from volplane.host import Host

START_TIMEOUT = 60.0  # seconds until the driver's socket must accept connections
REPORT_AFTER = 5.0  # seconds of waiting until it is reported
CONNECT_TIMEOUT = 0.1  # seconds for one try
ORPHAN_TIMEOUT = 10.0  # seconds for a killed process to end
LOG_TAIL = 4000  # characters of its log
SECRETS = "/var/run/secrets"

log = logging.getLogger(__name__)


class DriverStartError(Exception):
    """The driver did not start; the message has its output."""


class RunningDriver(Protocol):
    @property
    def pid(self) -> int: ...
    @property
    def running(self) -> bool: ...
    async def wait(self) -> int:
        """Wait until it has exited; returns its exit code."""
        ...


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
        self.environment: dict[str, str] = {}  # for the driver, beside the variables of an instance
        # Directories that the driver sees at other paths, as in a pod: path → directory.
        self.binds: dict[str, str] = {}
        # A new process has a copy of all open files until it runs its program, and a volume with an open file
        # cannot be unmounted: files of volumes are not open meanwhile.
        self.file_lock = asyncio.Lock()
        self._process: RunningDriver | None = None

    def _connect(self) -> CsiChannel:
        return CsiChannel(self.socket, component="test-driver", interceptor=self._interceptor)

    async def start(self) -> None:
        """Start and wait until it accepts connections. Raises DriverStartError."""
        # The socket file of a killed process remains, as on a real node: the driver must handle it.
        for directory in (self.root, self._state, self._shared):
            directory.mkdir(parents=True, exist_ok=True)
        argv = [fill_variables(word, self._values) for word in self._command.argv]
        own = {name: fill_variables(value, self._values) for name, value in self._command.env.items()}
        if self.starts:
            # A channel may take a moment to notice that its process was killed. The old channel stays open:
            # interrupted calls still wait for their error on it.
            self._old_channels.append(self.channel)
            self.channel = self._connect()
        async with self.file_lock:
            self._process = await self._spawn(argv, {**self._values, **self.environment, **own})
        self.starts += 1
        ready = asyncio.ensure_future(self._wait_until_listening())
        ended = asyncio.ensure_future(self._process.wait())
        report = asyncio.get_running_loop().call_later(REPORT_AFTER, self._report_wait)
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                code, output = ended.result(), self.log_tail() or "no output"
                raise DriverStartError(f"{self.name}: the driver ended with code {code}: {output}")
            await ready
        except TimeoutError:
            text = f"{self.name}: nothing listens at {self.socket} after {START_TIMEOUT:g} s"
            raise DriverStartError(
                f"{text}{self._endpoint_hint()}: {self.log_tail() or 'no output'}"
            ) from None
        finally:
            report.cancel()
            await cancel_and_wait(ready, ended)

    async def _spawn(self, argv: list[str], env: dict[str, str]) -> RunningDriver:
        script = f"cd {shlex.quote(self._command.directory)} && exec {shlex.join(argv)}"
        if self.binds:
            script = with_binds(self.binds, script)
        return await self._host.spawn(["/bin/sh", "-c", script], log=self.log, env={**os.environ, **env})

    def _report_wait(self) -> None:
        # As an error, because a test run shows nothing else of its log.
        log.error(
            "%s: the driver runs, and nothing listens at %s: waiting for %g s at most%s",
            *(self.name, self.socket, START_TIMEOUT, self._endpoint_hint()),
        )

    def _endpoint_hint(self) -> str:
        words = (*self._command.argv, *self._command.env.values())
        if any(name in word for name in ("CSI_ENDPOINT", "CSI_SOCKET") for word in words):
            return ""
        return " (its command does not use $CSI_ENDPOINT or $CSI_SOCKET, which are in its environment)"

    async def _wait_until_listening(self) -> None:
        async with asyncio.timeout(START_TIMEOUT):
            while True:
                # In short intervals: gRPC's own backoff grows, and the run waits for every start.
                with suppress(TimeoutError):
                    await self.channel.ready(CONNECT_TIMEOUT)
                    return

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def seen_by_driver(self, path: str) -> str:
        """A path to what the driver has mounted there.

        In a mount namespace of its own, its remounts are not seen by others: a target that it binds and makes
        read-only afterwards is writable outside.
        """
        return f"/proc/{self._process.pid}/root{path}" if self.binds and self._process is not None else path

    async def kill(self) -> None:
        """Kill the process and everything that it has started (SIGKILL); its mounts remain."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            self._process = None
            await self._host.call(self._kill_orphans)

    def _kill_orphans(self) -> None:
        """Kill processes that have left the session, as the end of a container would, and wait for their end.

        A child that has not run its program yet still has the driver's sockets: until it has ended, it would
        accept the connections of those who wait for the driver's next process.
        """
        with ExitStack() as stack:
            for process in [_kill(pid, stack) for pid in _with_variable(f"CSI_SOCKET={self.socket}")]:
                if process is not None:
                    ended = select.poll()  # select.select takes no descriptor above 1023
                    ended.register(process, select.POLLIN)
                    ended.poll(ORPHAN_TIMEOUT * 1000)

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
            await self._terminate(self._process, grace)
        await self.kill()
        await self.close_old_channels()
        await self.channel.close()

    async def _terminate(self, process: RunningDriver, grace: float) -> None:
        with suppress(ProcessLookupError, TimeoutError):
            os.killpg(process.pid, signal.SIGTERM)
            async with asyncio.timeout(grace):
                await process.wait()

    async def close_old_channels(self) -> None:
        """Close the channels of earlier processes; their calls must have ended."""
        while self._old_channels:
            await self._old_channels.pop().close()

    def children(self) -> int:
        """The number of its other processes."""
        return len(self._members(self._process.pid)) - 1 if self._process is not None else 0

    def resources(self) -> tuple[int, int, int]:
        """The number of open files and threads of all its processes, and of zombies in its session."""
        leader = self._process.pid if self._process is not None else 0
        members = self._members(leader)
        files, threads = (sum(_count(pid, kind) for pid in members) for kind in ("fd", "task"))
        return files, threads, len(_session(leader, states="Z"))

    @property
    def data_directories(self) -> tuple[Path, Path]:
        """The driver's own directory, and the one of all its instances."""
        return self._state, self._shared

    def _members(self, leader: int) -> list[int]:
        return _session(leader)

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


def with_binds(binds: Mapping[str, str], script: str) -> str:
    """A script that runs another one in a mount namespace where directories are at other paths.

    Mounts that are shared with this namespace stay so: the driver's volumes are seen by both.
    """
    # Not recursive: only the mounts below these paths must not be seen by others.
    private = [f"mount --make-private {place} 2>/dev/null" for place in ("/run", *binds)]
    mounts = [f"mount --bind {shlex.quote(source)} {shlex.quote(path)} &&" for path, source in binds.items()]
    inner = "; ".join(["mount --make-private /", *private, " ".join([*mounts, script])])
    return f"exec unshare --mount --propagation unchanged /bin/sh -c {shlex.quote(inner)}"


def _count(pid: int, kind: str) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/{kind}"))
    return 0


def _with_variable(assignment: str) -> list[int]:
    """Processes that have, or have inherited, this variable in their environment."""
    found, wanted = [], b"\0" + assignment.encode() + b"\0"
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if wanted in b"\0" + file.read() + b"\0":
                    found.append(int(entry))
    return found


def _kill(pid: int, stack: ExitStack) -> int | None:
    """Kill a process; a descriptor that is readable when it has ended, or None if it has."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        stack.callback(os.close, process)
        signal.pidfd_send_signal(process, signal.SIGKILL)
        return process
    return None


def _session(leader: int, states: str = "") -> list[int]:
    """Processes of a session: those in one of the states (as in ps), or all that have not ended."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError), open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                fits = fields[0] in states if states else fields[0] not in "ZX"
                if int(fields[3]) == leader and fits:
                    found.append(int(entry))
    return found
