"""How every verb that serves runs: on uvloop, until a signal, with its log, failures as one clear line."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from types import FrameType
from typing import Any

import uvloop

from volplane.base import descriptors, log, memory
from volplane.base.files import UnusableFile
from volplane.base.locks import LockHeld
from volplane.cli.client_factory import connect as connect
from volplane.cli.error import CommandError
from volplane.cluster.errors import CannotStart
from volplane.loops.wait_reports import WaitRegistry, serve_wait_reports
from volplane.store import StoreFailed, StoreInUse
from volplane.web import BadAddress, PortInUse

logger = logging.getLogger(__name__)

FEWEST_FILES = 96
RAISE = "raise the hard limit (ulimit -Hn, LimitNOFILE= of a systemd unit, --ulimit nofile of docker)"
STOPS = (signal.SIGINT, signal.SIGTERM)
DEAF = 20.0  # seconds without an answer after which a loop that is to stop counts as hanging
CLOSED = "the handler is closed"  # uvloop's word for a connection that both ends have closed


def serve(
    work: Callable[[asyncio.Event], Awaitable[None]],
    *,
    level: str = "INFO",
    files: int = FEWEST_FILES,
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Run `work(stop)` to its end; SIGINT and SIGTERM set `stop`, a second one ends at once.

    `files`: how many must be open at a time. `wait_registry`: what its roles wait for, reported on the socket
    that $VOLPLANE_WAITS names.
    """
    log.setup(level)
    require_descriptors(files)
    memory.configure_malloc()
    memory.tune_garbage_collector()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_signalled(work, wait_registry or WaitRegistry()))
    except Exception as error:
        if words := user_message(error):
            raise CommandError(words) from error
        raise


def user_message(error: BaseException) -> str:
    """What a user can do something about, in a line; nothing for a mistake of ours."""
    if isinstance(error, BaseExceptionGroup):  # several roles start side by side
        return next(filter(None, map(user_message, error.exceptions)), "")
    if isinstance(error, CannotStart):
        return str(error)
    if isinstance(error, PortInUse):
        return f"{error.strerror}; choose another with --port"
    if isinstance(error, BadAddress):
        return str(error.strerror)
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return f"too many open files: the limit is {descriptors.limit()}; {RAISE}"
    if isinstance(error, StoreInUse):
        return f"{error}; stop it first, or choose another --data-dir"
    if isinstance(error, LockHeld):
        return f"{error}; stop it first, or choose another --root-dir"
    if isinstance(error, StoreFailed | UnusableFile):
        return str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the disk of {error.filename or 'the data directory'}"
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError) and error.filename:
        return f"{error.filename2 or error.filename}: {error.strerror}"  # of a rename, what is in its way
    return ""


def handle_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """As every loop does, but for the last word of TLS on a connection that the other end closes at the same
    moment: uvloop calls that fatal, and nobody has lost anything.
    """
    error = context.get("exception")
    if isinstance(error, RuntimeError) and CLOSED in str(error):
        logger.debug("%s: %s", context.get("message", ""), error)
    else:
        loop.default_exception_handler(context)


class StopSignals:
    """SIGINT and SIGTERM: the first sets `stop`, the second ends the process at once.

    Heard by Python and not by the loop: a loop that hangs in a system call hears nothing. From the first one
    on it is watched from outside, and if it does not answer for a while, the process ends as it is.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        self._loop, self._stop = loop, stop
        self._watch = threading.Thread(target=self._watch_loop, name="stop", daemon=True)
        self._answered = threading.Event()

    def listen(self) -> None:
        for number in STOPS:
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._watch.ident is not None:
            os._exit(130)
        self._watch.start()
        self._loop.call_soon_threadsafe(self._stop.set)

    def _watch_loop(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: it has come to its end
            while True:
                self._answered.clear()
                self._loop.call_soon_threadsafe(self._answered.set)
                if not self._answered.wait(DEAF):
                    break
                time.sleep(1.0)
            os.write(2, b"volplane: it hangs and does not stop: ended as it is\n")
            os._exit(1)


async def _until_signalled(work: Callable[[asyncio.Event], Awaitable[None]], registry: WaitRegistry) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(handle_loop_exception)
    StopSignals(loop, stop).listen()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # a kept role holds them back while it starts
    if lifeline := os.environ.get("VOLPLANE_LIFELINE"):
        # Readable means closed: the process that keeps us is gone, and the next one must find nobody here.
        loop.add_reader(int(lifeline), os._exit, 1)
    tidying = asyncio.create_task(memory.release_memory_periodically(), name="memory")
    place = os.environ.get("VOLPLANE_WAITS")
    try:
        async with serve_wait_reports(place, registry) if place else nullcontext():
            await work(stop)
    finally:
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)


async def run_until(stop: asyncio.Event, work: Awaitable[None]) -> None:
    """Run `work` until it ends or `stop` is set; then it is cancelled and awaited."""
    running, asked = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
    finally:
        for task in (running, asked):
            task.cancel()
        await asyncio.gather(running, asked, return_exceptions=True)


def require_descriptors(files: int) -> None:
    """Take as many descriptors as the machine allows. Raises Failure if these are too few to start."""
    limit = descriptors.raise_limit()
    if limit < files:
        raise CommandError(
            f"only {limit} files may be open, and at least {files} are needed to start: {RAISE}"
        )


def require_root(*, loops: bool = True) -> None:
    """Disks are attached and mounted for real. Raises Failure."""
    if os.geteuid() != 0:
        raise CommandError(
            "needs root: disks are attached as loop devices and mounted, containers get own namespaces.\n"
            "  Run it with sudo, or in a container or VM where you are root."
        )
    if loops and not os.path.exists("/dev/loop-control"):
        raise CommandError(
            "this machine has no loop devices (/dev/loop-control is missing): load the module `loop`"
        )
