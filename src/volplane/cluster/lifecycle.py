"""The life of a cluster in the background: whether it runs, its options for the next start, its end.

Two processes hold locks in the data directory: `up` (`up.lock`), and in the background also its supervisor
(`supervisor.lock`). A lock ends with its holder, so a killed process never looks like a running one.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct

from volplane.base.locks import find_holder
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import CannotStart
from volplane.cluster.role_files import RoleFiles
from volplane.host import inotify
from volplane.host.processes import Process, spawn

DEFAULT_DIRECTORY = "~/.volplane"
REPORT = 1.0  # seconds between two signs of life of a wait
STOP_TIMEOUT = 120.0  # seconds: pods get their grace period
UP = "up"  # the role whose log is the cluster's


class StillRunning(CannotStart):
    """The cluster does not stop in time."""


class ClusterPhase(StrEnum):
    STOPPED = "Stopped"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"  # `up` has ended, and its supervisor starts it again


class StartOptions(Struct, frozen=True):
    """The options of the last start, as words of a command line (`start.json`)."""

    arguments: tuple[str, ...] = ()


class ClusterProcesses(Struct, frozen=True):
    """The processes of a cluster; 0 if one does not run."""

    phase: ClusterPhase
    pid: int = 0
    supervisor: int = 0
    started: float = 0.0  # unix time


def name_directory(name: str) -> str:
    """The data directory of a named cluster."""
    return f"{DEFAULT_DIRECTORY}-{name}" if name else DEFAULT_DIRECTORY


def list_directories() -> list[tuple[str, Path]]:
    """The names and data directories of all clusters in the home directory; the default one has no name."""
    first = Path(DEFAULT_DIRECTORY).expanduser()
    found = [("", first), *((path.name.removeprefix(f"{first.name}-"), path) for path in _list_named(first))]
    return [(name, path) for name, path in found if DataDirectory(path).lock.exists()]


def _list_named(first: Path) -> list[Path]:
    return sorted(path for path in first.parent.glob(f"{first.name}-*") if path.is_dir())


def find_processes(layout: DataDirectory) -> ClusterProcesses:
    """The processes that serve a data directory now."""
    pid, supervisor = find_holder(str(layout.lock)), find_holder(str(layout.supervisor_lock))
    if pid is None:
        phase = ClusterPhase.STOPPED if supervisor is None else ClusterPhase.RESTARTING
        return ClusterProcesses(phase, 0, supervisor or 0)
    phase = ClusterPhase.RUNNING if _is_ready(layout, pid) else ClusterPhase.STARTING
    with suppress(OSError):
        return ClusterProcesses(phase, pid, supervisor or 0, os.stat(f"/proc/{pid}").st_mtime)
    return ClusterProcesses(phase, pid, supervisor or 0)


def _is_ready(layout: DataDirectory, pid: int) -> bool:
    try:
        return layout.ready.read_text().strip() == str(pid)  # a killed process leaves the file behind
    except OSError:
        return False


def start_in_background(layout: DataDirectory, arguments: Sequence[str]) -> Process:
    """Start the supervisor of a cluster. The directory exists."""
    layout.write(layout.start_options, StartOptions(tuple(arguments)))
    log = RoleFiles(layout.run).log(UP)
    return spawn(
        [sys.executable, "-m", "volplane.cluster.supervisor", str(layout.directory)],
        log=str(log),
        env=dict(os.environ),
    )


def load_start_options(layout: DataDirectory) -> StartOptions:
    """The options of the last start in the background; none if there was none, or if they cannot be read."""
    try:
        return msgspec.json.decode(layout.start_options.read_bytes(), type=StartOptions)
    except (OSError, ValueError):
        return StartOptions()


def wait_ready(
    layout: DataDirectory, process: Process | None, timeout: float, report: Callable[[], None]
) -> str:
    """Wait until the cluster is ready. Returns why it is not; "" if it is. `report` is called each second.

    `process`: its supervisor, if that is a child of ours.
    """

    is_ready = False

    def has_started_or_ended() -> bool:
        nonlocal is_ready
        ended = process is not None and not process.running
        is_ready = find_processes(layout).phase is ClusterPhase.RUNNING
        return ended or is_ready

    pids = [process.pid] if process is not None else []
    if not wait_until(has_started_or_ended, timeout, directory=layout.directory, pids=pids, report=report):
        return f"not ready within {timeout:g} seconds"
    return "" if is_ready else RoleFiles(layout.run).last_log_line(UP)


def wait_until(
    test: Callable[[], bool],
    timeout: float = math.inf,
    *,
    directory: Path,
    changes: int = inotify.CREATE | inotify.CLOSE_WRITE,
    pids: Iterable[int] = (),
    report: Callable[[], None] = lambda: None,
) -> bool:
    """Wait until `test` is true; False if it is not in time.

    It is called again after such a change in the directory, when one of the processes ends, and each second,
    as `report` is.
    """
    end = time.monotonic() + timeout
    with ExitStack() as stack:
        poll = select.poll()
        watch = _watch(directory, changes, stack)
        if watch is not None:
            poll.register(watch.fileno(), select.POLLIN)
        for pid in pids:
            with suppress(ProcessLookupError):
                poll.register(descriptor := os.pidfd_open(pid), select.POLLIN)
                stack.callback(os.close, descriptor)
        reported = time.monotonic()
        while not test():
            if (now := time.monotonic()) >= end:
                return False
            if now - reported >= REPORT:
                report()
                reported = now
            for descriptor, _ in poll.poll(1000 * min(end - now, reported + REPORT - now)):
                if watch is not None and descriptor == watch.fileno():
                    watch.wait(0)  # takes the events
                else:
                    poll.unregister(descriptor)  # that process has ended
    return True


def _watch(directory: Path, changes: int, stack: ExitStack) -> inotify.Inotify | None:
    """None if this user has too many watches already: a look each second must do."""
    with suppress(OSError):
        watch = stack.enter_context(closing(inotify.Inotify()))
        watch.add(str(directory), changes)
        return watch
    return None


def stop(
    layout: DataDirectory, timeout: float = STOP_TIMEOUT, report: Callable[[], None] = lambda: None
) -> bool:
    """Stop a cluster and wait; `report` is called each second. Returns whether it ran. Raises
    StillRunning.
    """
    found = find_processes(layout)
    if found.phase is ClusterPhase.STOPPED:
        return False
    with suppress(ProcessLookupError):
        os.kill(found.supervisor or found.pid, signal.SIGTERM)
    pids = [pid for pid in (found.supervisor, found.pid) if pid]
    _wait_stopped(layout, pids, lambda: True, timeout, report)
    return True


def stop_start(
    layout: DataDirectory,
    process: Process,
    timeout: float = STOP_TIMEOUT,
    report: Callable[[], None] = lambda: None,
) -> None:
    """Stop a cluster whose supervisor may not hold its lock yet; `report` is called each second. Raises
    StillRunning.
    """
    if process.running:
        process.send(signal.SIGTERM)
    _wait_stopped(layout, [process.pid], lambda: not process.running, timeout, report)


def _wait_stopped(
    layout: DataDirectory,
    pids: Iterable[int],
    has_ended: Callable[[], bool],
    timeout: float,
    report: Callable[[], None],
) -> None:
    def has_stopped() -> bool:
        return has_ended() and find_processes(layout).phase is ClusterPhase.STOPPED

    if not wait_until(has_stopped, timeout, directory=layout.directory, pids=pids, report=report):
        raise StillRunning(f"{layout.directory} has not stopped within {timeout:g} seconds")
