"""Files of process containers, from which a restarted node finds its containers.

Each container has a directory: the shim writes `start.json` when it begins, `container.json` before the
command runs, and `exit.json` after it has exited. A process is the right one only if its pid, its start time
and the boot agree, and if its shim, while it lives, holds the lock on the directory. The files of a copied
directory name the original's processes, but no shim holds a lock on the copy.

If a file is damaged (power cut, broken disk), the lock and `start.json` decide: if no process is at work,
the container has exited; otherwise a container runs that cannot be described, and it is killed. A file that
cannot be opened for lack of descriptors or memory is not damaged: OSError is raised, and the caller retries.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import signal
import time
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct, structs
from msgspec.json import Decoder

from volplane.base.directory_identity import boot_id
from volplane.host.inotify import CLOSE_NOWRITE, CREATE, MOVED_TO, Inotify
from volplane.host.processes import is_exiting, start_time
from volplane.node.containers.base import (
    KILLED,
    START_ERROR,
    ContainerError,
    ContainerRunState,
    ContainerSpec,
    make_ended_state,
)

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Struct)

START_TIMEOUT = 2.0  # seconds for unfinished starts of an earlier process to finish by themselves
LOCK_RELEASE_WAIT = 0.05  # seconds; inotify reports a close a moment before the lock is free

# Errors of open and read for a damaged file, or for one that is not a regular file.
_DAMAGED_FILE_ERRNOS = (errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EISDIR, errno.ELOOP, errno.ENXIO)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,250}")


class UnreadableContainerRecord(Exception):
    """A file exists and cannot be decoded."""


class StartRecord(Struct, frozen=True):
    """`start.json`: the processes that set up a container."""

    pid: int
    pid_start: int
    shim: int
    shim_start: int
    boot: str

    @property
    def live_pids(self) -> list[int]:
        """The pids that still run."""
        here = self.boot == boot_id()
        known = ((self.pid, self.pid_start), (self.shim, self.shim_start))
        return [pid for pid, started in known if here and start_time(pid) == started]

    def live_pids_in(self, directory: str) -> list[int]:
        """The same, but none if this directory is a copy and they serve the original."""
        living = self.live_pids
        return [] if self.shim in living and is_copy(directory, self.shim) else living


class UnfinishedStart(Struct, frozen=True):
    """An unfinished start: no command has run yet, and processes may be left that could still run one."""

    directory: str
    processes: StartRecord | None = None  # not known before `start.json` is there

    @property
    def id(self) -> str:
        return os.path.basename(self.directory)


class StartedRecord(Struct, frozen=True):
    """`container.json`."""

    spec: ContainerSpec
    pid: int
    pid_start: int
    shim: int
    shim_start: int
    boot: str
    started_at: str

    @property
    def is_shim_alive(self) -> bool:
        return start_time(self.shim) == self.shim_start and self.boot == boot_id()

    @property
    def is_alive(self) -> bool:
        return start_time(self.pid) == self.pid_start and self.boot == boot_id()


class ExitRecord(Struct, frozen=True):
    """`exit.json`."""

    code: int
    finished_at: str
    message: str = ""


class ProcessContainerRecord(Struct, frozen=True):
    directory: str
    started: StartedRecord
    ending: ExitRecord | None = None
    supervised: bool = True  # the shim or pid 1 was alive when there was no exit.json yet

    @property
    def is_shim_alive(self) -> bool:
        return self.started.is_shim_alive and not is_copy(self.directory, self.started.shim)

    @property
    def is_alive(self) -> bool:
        """Whether its command runs; it may outlive its shim."""
        started = self.started
        return started.is_alive and not (started.is_shim_alive and is_copy(self.directory, started.shim))

    def state(self) -> ContainerRunState:
        """The state according to the files."""
        spec, since = self.started.spec, whole_seconds(self.started.started_at)
        started = ContainerRunState(spec.id, running=True, pid=self.started.pid, started_at=since, spec=spec)
        if self.ending:
            reason = START_ERROR if self.ending.message else ""
            finished = whole_seconds(self.ending.finished_at)
            return make_ended_state(started, finished, self.ending.code, self.ending.message, reason)
        if self.supervised:
            return started
        # The machine was restarted, or the shim was killed, and the container with it.
        return make_ended_state(started, started.started_at, KILLED, "its supervisor was killed")


# Made here, on the importing thread: msgspec crashes when several threads meet a type for the first time.
_start_decoder = Decoder(StartRecord)
_started_decoder = Decoder(StartedRecord)
_exit_decoder = Decoder(ExitRecord)


def whole_seconds(stamp: str) -> str:
    return stamp[:19] + "Z"


def directory_of(base: str, id: str) -> str:
    if not _ID.fullmatch(id):
        raise ContainerError(f"{id!r} cannot be a container's id")
    return f"{base}/{id}"


def load(directory: str) -> ProcessContainerRecord | None:
    """The record of a container; None if it never ran, or if its files are damaged."""
    try:
        return _load(directory)
    except UnreadableContainerRecord as error:
        log.warning("%s", error)
        return None


def _load(directory: str) -> ProcessContainerRecord | None:
    """Raises UnreadableContainerRecord."""
    started = _read(f"{directory}/container.json", _started_decoder)
    if started is None:
        return None
    # In this order: the shim writes exit.json last, so a dead shim without it was killed.
    found = ProcessContainerRecord(directory, started)
    supervised = found.is_shim_alive or found.is_alive
    return structs.replace(found, ending=load_exit(directory), supervised=supervised)


def load_exit(directory: str) -> ExitRecord | None:
    """How the container has exited; None if it runs, or if its shim was killed."""
    try:
        return _read(f"{directory}/exit.json", _exit_decoder)
    except UnreadableContainerRecord as error:
        log.warning("%s", error)  # that it has exited is known all the same
        return None


def load_all(base: str) -> list[ProcessContainerRecord]:
    """Every container that ran."""
    return load_with_starts(base)[0]


def load_with_starts(base: str) -> tuple[list[ProcessContainerRecord], list[UnfinishedStart]]:
    """Every container that ran, and every unfinished start.

    Remove what is left of starts that were given up.
    """
    os.makedirs(base, mode=0o700, exist_ok=True)
    records, unfinished = [], []
    end = time.monotonic() + START_TIMEOUT
    for entry in sorted(os.scandir(base), key=lambda e: e.name):
        if not entry.is_dir(follow_symlinks=False):
            continue
        found = _find(entry.path, end)
        if isinstance(found, ProcessContainerRecord) and _is_misplaced(found):
            log.warning("%s holds a copy of container %s and is ignored", entry.path, found.started.spec.id)
        elif isinstance(found, ProcessContainerRecord):
            records.append(found)
        elif found is not None:
            unfinished.append(found)
        else:
            delete(entry.path)
    return records, unfinished


def _find(directory: str, end: float) -> ProcessContainerRecord | UnfinishedStart | None:
    try:
        return _load(directory) or _wait_for_start(directory, end)
    except UnreadableContainerRecord as error:
        log.warning("%s", error)
        return kill_unknown(directory, end)


def _is_misplaced(record: ProcessContainerRecord) -> bool:
    """Whether the directory's name is not the container's id: it is a copy beside the original.

    A directory that was moved while its container runs does not count: no other record of it exists.
    """
    base, name = os.path.split(record.directory)
    id = record.started.spec.id
    return id != name and (not record.state().running or os.path.lexists(f"{base}/{id}"))


def _wait_for_start(directory: str, end: float) -> ProcessContainerRecord | UnfinishedStart | None:
    """Wait for the outcome of a start that an earlier node process requested; None if nothing is left of it.

    The shim sees that its node is gone, and gives up, or has just started the command. It holds a lock on the
    directory while it lives; inotify reports the file that it writes, and that it has closed the directory.
    """
    try:
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # it has given up just now
        return None
    changes = Inotify()
    try:
        changes.add(directory, CREATE | MOVED_TO | CLOSE_NOWRITE)
        while True:
            start = find_unfinished(directory, lock)
            if record := _load(directory):  # read last: it may have been written meanwhile
                return record
            if start is None or time.monotonic() >= end:
                return start
            changes.wait(LOCK_RELEASE_WAIT)
    finally:
        changes.close()
        os.close(lock)


def find_unfinished(directory: str, lock: int = -1) -> UnfinishedStart | None:
    """An unfinished start; None if no process of it is left. `lock`: the directory, if it is open already."""
    processes = _read_start_record(directory)
    # Pid 1 may outlive its shim while it is blocked in the kernel.
    if processes is not None and processes.live_pids_in(directory):
        return UnfinishedStart(directory, processes)
    try:
        descriptor = lock if lock >= 0 else os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return UnfinishedStart(directory)
    finally:
        if lock < 0:
            os.close(descriptor)
    return None


def _read_start_record(directory: str) -> StartRecord | None:
    try:
        return _read(f"{directory}/start.json", _start_decoder)
    except UnreadableContainerRecord as error:
        log.warning("%s", error)  # the lock shows whether its shim lives
        return None


def is_locked(directory: str) -> bool:
    """Whether a shim serves this directory. Only for directories whose shim has taken its lock already."""
    try:
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def is_copy(directory: str, shim: int) -> bool:
    """Whether a live shim serves another directory, of which this one is a copy.

    An exiting process releases its lock before it is gone; so an unlocked directory is a copy only if its
    shim had not begun to exit by then.
    """
    return not is_locked(directory) and not is_exiting(shim)


def kill_unknown(directory: str, end: float) -> UnfinishedStart | None:
    """Kill a container whose record cannot be read; return what is left of it at the time `end`.

    Its first process is killed; its shim then kills the others and exits: without a pid namespace the kernel
    does not. The shim itself is killed only if it stays although it has no child left.
    """
    log.warning("the container in %s has no readable record; killing it if it still runs", directory)
    while (left := find_unfinished(directory)) is not None:
        shims = _shims(directory)
        for pid in _first_processes(left, shims):
            _kill(pid)
        if time.monotonic() >= end:
            for shim in shims:
                if not _children(shim):
                    log.warning("the supervisor of %s does not exit; killing process %d", directory, shim)
                    _kill(shim)
            return find_unfinished(directory)
        time.sleep(LOCK_RELEASE_WAIT)
    return None


def _first_processes(left: UnfinishedStart, shims: list[int]) -> list[int]:
    """Pid 1 of a container; without `start.json`, all children of its shim."""
    if left.processes is None:
        return [child for shim in shims for child in _children(shim)]
    return [pid for pid in left.processes.live_pids_in(left.directory) if pid == left.processes.pid]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _shims(directory: str) -> list[int]:
    """The shims that hold a lock on the directory.

    /proc/locks names the inode, but on btrfs another device than stat; so an open descriptor decides.
    """
    try:
        there = os.stat(directory)
    except FileNotFoundError:  # its shim has given up and removed it
        return []
    with open("/proc/locks") as file:
        locks = [line.split() for line in file]
    pids = {int(line[4]) for line in locks if line[1] == "FLOCK" and line[5].endswith(f":{there.st_ino}")}
    return [pid for pid in pids if pid > 0 and _is_shim(pid) and _has_open(pid, there)]


def _is_shim(pid: int) -> bool:
    """Whether the process is a shim, by its title: any process can lock a directory."""
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().startswith(b"volplane-shim ")
    return False


def _has_open(pid: int, file: os.stat_result) -> bool:
    with suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), file):
                    return True
    return False


def delete(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _read(path: str, decoder: Decoder[K]) -> K | None:
    try:
        with open(path, "rb") as file:
            return decoder.decode(file.read())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UnreadableContainerRecord(f"{path} cannot be read: {error}") from error
    except OSError as error:
        if error.errno not in _DAMAGED_FILE_ERRNOS:
            raise
        raise UnreadableContainerRecord(f"{path} cannot be read: {error}") from error
