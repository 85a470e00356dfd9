"""Run a verb that serves: on uvloop, until a signal, with logging and readable errors."""

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

from volplane.base import descriptors, log, memory, trace
from volplane.base.files import UnusableFile
from volplane.base.locks import LockHeld
from volplane.base.tasks import background
from volplane.base.user_namespace import has_ranges, is_user_namespace, reexec_as_root
from volplane.cli.client_factory import connect as connect
from volplane.cli.error import CommandError
from volplane.cli.stop_signals import STOPS, StopSignals
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import CannotStart
from volplane.cluster.leftovers import find_namespace_process
from volplane.loops.leader import LeaseLost
from volplane.loops.span_recording import read_environment, record_spans
from volplane.loops.wait_reports import WaitRegistry, serve_wait_reports
from volplane.store import StoreFailed, StoreInUse
from volplane.web import BadAddress, PortInUse
from volplane.web.sigv4 import NoAwsKeys

logger = logging.getLogger(__name__)

FEWEST_FILES = 96
RAISE = "raise the hard limit (ulimit -Hn, LimitNOFILE= of a systemd unit, --ulimit nofile of docker)"
CLOSED = "the handler is closed"  # uvloop's message for a connection that both ends have closed


def serve(
    work: Callable[[asyncio.Event], Awaitable[None]],
    *,
    level: str = "INFO",
    files: int = FEWEST_FILES,
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Run `work(stop)` to its end. SIGINT and SIGTERM set `stop`; a second Ctrl-C exits at once.

    `files`: the number of open files it needs. `wait_registry`: what its roles wait for, reported on the
    socket in $VOLPLANE_WAITS.
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
    """The message for an error that the user can fix; "" for a bug."""
    if isinstance(error, BaseExceptionGroup):  # several roles start in parallel
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
    if isinstance(error, StoreFailed | UnusableFile | NoAwsKeys | LeaseLost):
        return str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the disk of {error.filename or 'the data directory'}"
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError) and error.filename:
        return f"{error.filename2 or error.filename}: {error.strerror}"  # filename2: the target of a rename
    return ""


def handle_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The default handler, except for a harmless error: uvloop reports a fatal error if both ends close a TLS
    connection at the same moment.
    """
    error = context.get("exception")
    if isinstance(error, RuntimeError) and CLOSED in str(error):
        logger.debug("%s: %s", context.get("message", ""), error)
    else:
        loop.default_exception_handler(context)


async def _until_signalled(work: Callable[[asyncio.Event], Awaitable[None]], registry: WaitRegistry) -> None:
    tracing = trace.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(handle_loop_exception)
    StopSignals(loop, stop).listen()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # blocked while a supervised role starts
    if lifeline := os.environ.get("VOLPLANE_LIFELINE"):
        # Readable means closed: the supervisor has ended, and its successor must not find this process.
        loop.add_reader(int(lifeline), os._exit, 1)
    path = os.environ.get("VOLPLANE_WAITS")
    reports = serve_wait_reports(path, registry) if path else nullcontext()
    recorded = record_spans(tracing, *read_environment())
    async with background(memory.release_memory_periodically()), reports, recorded:
        await work(stop)


def require_descriptors(files: int) -> None:
    """Raise the limit of open files. Raises CommandError if it is too low to start."""
    limit = descriptors.raise_limit()
    if limit < files:
        raise CommandError(f"the limit of open files is {limit}, but at least {files} are needed: {RAISE}")


def require_root(layout: DataDirectory | None = None, *, loops: bool = True) -> None:
    """Make sure that the process is root, to attach and mount disks; raises CommandError if `loops` and the
    machine has no loop devices.

    An ordinary user gets a user namespace: then this does not return, and the command runs once more. If
    containers of the cluster in `layout` still run, it is their namespace, with their mounts.
    """
    if os.geteuid() != 0:
        reexec_as_root(find_namespace_process(layout) if layout is not None else 0)
    if loops and not is_user_namespace() and not os.path.exists("/dev/loop-control"):
        raise CommandError(
            "this machine has no loop devices (/dev/loop-control is missing): load the module `loop`"
        )


def enter_namespace(layout: DataDirectory, *, always: bool = False) -> None:
    """For a verb that reads or removes files of a cluster: if it belongs to an ordinary user, its containers
    and mounts are in a user namespace, and its files may belong to users of one. `always`: the owners of
    files matter, and only root of a namespace sees them as the cluster does.
    """
    if os.geteuid() != 0 and ((process := find_namespace_process(layout)) or always or has_ranges()):
        reexec_as_root(process)
