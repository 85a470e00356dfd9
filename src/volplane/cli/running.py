"""How every verb that serves runs: on uvloop, until a signal, with its log, failures as one clear line."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import uvloop

from volplane.base import log, memory
from volplane.cli.connecting import connect as connect
from volplane.cli.failure import Failure
from volplane.cluster.errors import CannotStart
from volplane.loops.wait_reports import WaitRegistry, serve_wait_reports
from volplane.store import InUse
from volplane.web import PortInUse

logger = logging.getLogger(__name__)

STOPS = (signal.SIGINT, signal.SIGTERM)
CLOSED = "the handler is closed"  # uvloop's word for a connection that both ends have closed


def serve(
    work: Callable[[asyncio.Event], Awaitable[None]],
    *,
    level: str = "INFO",
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Run `work(stop)` to its end; SIGINT and SIGTERM set `stop`, a second one ends at once.

    `wait_registry`: what its roles wait for, reported on the socket that $VOLPLANE_WAITS names.
    """
    log.setup(level)
    memory.prepare()
    memory.look_less_often()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_signalled(work, wait_registry or WaitRegistry()))
    except Exception as error:
        if words := in_words(error):
            raise Failure(words) from error
        raise


def in_words(error: BaseException) -> str:
    """What a user can do something about, in a line; nothing for a mistake of ours."""
    if isinstance(error, BaseExceptionGroup):  # several roles start side by side
        return next(filter(None, map(in_words, error.exceptions)), "")
    if isinstance(error, CannotStart):
        return str(error)
    if isinstance(error, PortInUse):
        return f"{error.strerror}; choose another with --port"
    if isinstance(error, InUse):
        return f"{error}; stop it first, or choose another --data-dir"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the disk of {error.filename or 'the data directory'}"
    if isinstance(error, PermissionError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return ""


def complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """As every loop does, but for the last word of TLS on a connection that the other end closes at the same
    moment: uvloop calls that fatal, and nobody has lost anything.
    """
    error = context.get("exception")
    if isinstance(error, RuntimeError) and CLOSED in str(error):
        logger.debug("%s: %s", context.get("message", ""), error)
    else:
        loop.default_exception_handler(context)


async def _until_signalled(work: Callable[[asyncio.Event], Awaitable[None]], registry: WaitRegistry) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(complain)

    def asked() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for number in STOPS:
        loop.add_signal_handler(number, asked)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # a kept role holds them back while it starts
    if lifeline := os.environ.get("VOLPLANE_LIFELINE"):
        # Readable means closed: the process that keeps us is gone, and the next one must find nobody here.
        loop.add_reader(int(lifeline), os._exit, 1)
    if "VOLPLANE_CALLS" in os.environ:
        from volplane.csi import recording  # not for those that never call a driver

        recording.begin()
    tidying = asyncio.create_task(memory.keep_tidy(), name="memory")
    place = os.environ.get("VOLPLANE_WAITS")
    try:
        async with serve_wait_reports(place, registry) if place else nullcontext():
            await work(stop)
    finally:
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)


async def until(stop: asyncio.Event, work: Awaitable[None]) -> None:
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


def need_root(*, loops: bool = True) -> None:
    """Disks are attached and mounted for real. Raises Failure."""
    if os.geteuid() != 0:
        raise Failure(
            "needs root: disks are attached as loop devices and mounted, containers get own namespaces.\n"
            "  Run it with sudo, or in a container or VM where you are root."
        )
    if loops and not os.path.exists("/dev/loop-control"):
        raise Failure(
            "this machine has no loop devices (/dev/loop-control is missing): load the module `loop`"
        )
