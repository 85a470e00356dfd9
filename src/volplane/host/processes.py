"""Start other programs; no other module does.

Programs are started from executor threads with vfork, so that the event loop does not block and the size of
this process does not matter. Their exit is awaited by a pidfd, not by polling.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from volplane.base import descriptors

_PF_EXITING = 0x4  # a flag in /proc/<pid>/stat


class CompletedCommand(Struct, frozen=True):
    argv: tuple[str, ...]
    code: int  # negative: ended by that signal
    stdout: bytes
    stderr: bytes

    @property
    def output(self) -> str:
        """Both streams as text, for error messages."""
        return (self.stdout + self.stderr).decode(errors="replace").strip()


class HostCommandFailed(Exception):
    def __init__(self, completed: CompletedCommand) -> None:
        super().__init__(f"{completed.argv[0]} failed with code {completed.code}: {completed.output}")
        self.completed = completed


class HostCommandMissing(HostCommandFailed):
    """The program is not installed."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(CompletedCommand(tuple(argv), 127, b"", b"not installed on this machine"))


class OutputTooLong(Exception):
    """A program wrote more than its caller reads."""


class RunningCommand:
    """A running command that another thread can kill."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.argv, self.env = tuple(argv), env
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def finish(self, timeout: float | None, given: bytes = b"") -> CompletedCommand:
        """Run the command to its end, blocking. Raises TimeoutError after killing it."""
        try:
            self._process = process = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE if given else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.env,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise HostCommandMissing(self.argv) from None
        descriptors.restore_limit(process.pid)
        if self._cancelled:  # before the process was started
            self.kill()
        with process:
            try:
                stdout, stderr = process.communicate(given or None, timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise TimeoutError(f"{self.argv[0]} did not end within {timeout:g} s") from None
        return CompletedCommand(self.argv, process.returncode, stdout, stderr)

    def kill(self) -> None:
        """Kill it and its process group."""
        self._cancelled = True
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)


def run(
    argv: Sequence[str], *, timeout: float = 120, given: bytes = b"", check: bool = True
) -> CompletedCommand:
    """Run a command, blocking; for executor threads."""
    completed = RunningCommand(argv).finish(timeout, given)
    if check and completed.code:
        raise HostCommandFailed(completed)
    return completed


async def capture(
    argv: Sequence[str],
    *,
    start: Callable[[Callable[[], None]], Awaitable[None]],
    timeout: float | None,
    max_output: int,
) -> CompletedCommand:
    """Run a program that may take minutes or hang; stdout and stderr come together, in `stdout`.

    Only the start needs a thread (`start` runs it on one). The wait is on descriptors: a program that hangs
    blocks its caller alone. The output ends with the program, even if something that it started in the
    background keeps the pipe open. Raises TimeoutError, OutputTooLong; both, and cancelling, kill the
    program's process group.
    """
    running = CapturedCommand(argv)
    try:
        await start(running.start)
        async with asyncio.timeout(timeout):
            return await running.finish(max_output)
    except BaseException:
        running.kill()
        raise


class CapturedCommand:
    """A program whose whole output is read by the event loop."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def start(self) -> None:
        """Blocking; for a thread."""
        self._process = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        descriptors.restore_limit(self._process.pid)
        if self._cancelled:  # between the request and the start
            self.kill()

    async def finish(self, max_output: int) -> CompletedCommand:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        output, descriptor = bytearray(), process.stdout.fileno()
        os.set_blocking(descriptor, False)
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        exited = asyncio.ensure_future(wait_for_exit(process.pid))
        exited.add_done_callback(lambda _: woken.set())
        loop.add_reader(descriptor, woken.set)
        try:
            while not exited.done():
                await woken.wait()
                woken.clear()
                if not _read_available(descriptor, output, max_output):
                    loop.remove_reader(descriptor)
                    await exited
            _read_available(descriptor, output, max_output)
        finally:
            # At once: the event loop must not watch a descriptor that is closed, or it aborts the process.
            loop.remove_reader(descriptor)
            exited.cancel()
        process.stdout.close()
        return CompletedCommand(self.argv, process.wait(), bytes(output), b"")

    def kill(self) -> None:
        """End it with everything it started in its session's group."""
        self._cancelled = True
        if (process := self._process) is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdout is not None:
                process.stdout.close()
            # Not here: one that is blocked in the kernel, as on an NFS server that is gone, ends when it can.
            threading.Thread(target=process.wait, name=f"reap {process.pid}", daemon=True).start()


def _read_available(descriptor: int, output: bytearray, limit: int) -> bool:
    """Append what the pipe holds; False at its end."""
    while True:
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        output += data
        if len(output) > limit:
            raise OutputTooLong(f"more than {limit} bytes of output")


class Process:
    """A long-lived child process."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    async def wait(self) -> int:
        if self._popen.poll() is None:
            await wait_for_exit(self.pid)
        return self._popen.wait()

    def send(self, number: int) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        self._popen.kill()


def spawn(
    argv: Sequence[str],
    *,
    fds: Sequence[int] = (),
    log: str = os.devnull,
    env: Mapping[str, str] | None = None,
    blocked_signals: Collection[int] = (),
) -> Process:
    """Start a program in a session of its own, with no other descriptors of ours than `fds`; blocking.

    `blocked_signals` are blocked in the child until it unblocks them, so that none is lost while it starts.
    """
    bare = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # The mask belongs to this thread, and the child inherits it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked_signals)
    try:
        started = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            pass_fds=fds,
            env={**bare, **(env or {})},
            cwd="/",
            start_new_session=True,
        )
        descriptors.restore_limit(started.pid)
        return Process(started)
    except FileNotFoundError:
        raise HostCommandMissing(argv) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(descriptor)


async def wait_for_exit(pid: int) -> None:
    """Wait for the exit of any process, child or not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await wait_readable(descriptor)
    finally:
        os.close(descriptor)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def wait_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _set_ready, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def wait_writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, _set_ready, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def start_time(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 if there is none. Identifies it with the pid.

    Raises OSError if that cannot be read, for example for lack of descriptors.
    """
    fields = _read_stat(pid)
    return 0 if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def is_exiting(pid: int) -> bool:
    """Whether the process has begun to exit: from then on it only closes files."""
    fields = _read_stat(pid)
    return not fields or bool(int(fields[6]) & _PF_EXITING)


def _read_stat(pid: int) -> list[bytes]:
    """The fields of /proc/<pid>/stat from the state on; [] if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The process name before it may contain any characters, including brackets and spaces.
    return text.rsplit(b")", 1)[1].split()
