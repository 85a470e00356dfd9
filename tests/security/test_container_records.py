"""Containers are known by their files: no want of descriptors, damage or copy lets one run unknown."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from tests.containers.conftest import RuntimeEnv
from tests.security.test_hung_starts import (
    LOOKS,
    Disk,
    hanging,
    is_quiet,
    made_disk,
    state_of,
    wait_until_stuck,
)
from volplane.base.directory_identity import boot_id
from volplane.host.processes import start_time
from volplane.node.containers import process, records
from volplane.node.containers.base import ContainerSpec, Mount, StartFailed
from volplane.node.containers.records import (
    ProcessContainerRecord,
    StartedRecord,
    StartRecord,
    UnfinishedStart,
)

pytestmark = pytest.mark.root

FAMILY = "setsid sleep 4321 & echo up; while :; do sleep 100; done"
WRITER = "echo up; while :; do date > /data/file; sync; sleep 0.01; done"


@pytest.fixture
def room(tmp_path: Path) -> RuntimeEnv:
    return RuntimeEnv(tmp_path)


@pytest.fixture
def disk(room: RuntimeEnv) -> Iterator[Disk]:
    with made_disk(room.path) as disk:
        yield disk


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave this process no descriptors: nothing more can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def begun_in(directory: Path) -> StartRecord:
    return msgspec.json.decode((directory / "start.json").read_bytes(), type=StartRecord)


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(found for child in children for found in descendants(child))]


async def await_gone(*pids: int) -> None:
    async with asyncio.timeout(20):
        while any(start_time(pid) for pid in pids):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- want of descriptors


async def test_a_record_that_cannot_be_opened_is_not_judged(room: RuntimeEnv) -> None:
    async with room.temporary_runtime() as runtime:
        pid = (await runtime.start(room.spec("sleep", "1000"))).pid
        directory = str(room.containers / "one")
        with no_descriptors():
            for ask in (records.load, records.is_locked, records.find_unfinished):
                with pytest.raises(OSError, match="Too many open files"):
                    ask(directory)
            with pytest.raises(OSError, match="Too many open files"):
                records._find(directory, 0.0)
            with pytest.raises(OSError, match="Too many open files"):
                start_time(pid)
        assert start_time(pid)
        ((found,), unfinished) = await asyncio.to_thread(records.load_with_starts, str(room.containers))
        assert found.state().running
        assert unfinished == []


async def test_a_container_is_followed_although_descriptors_were_wanting(
    room: RuntimeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "RETRY_INTERVAL", 0.05, raising=False)
    async with room.runtime() as runtime:
        pid = (await runtime.start(room.spec("sleep", "1000"))).pid
    async with room.temporary_runtime() as runtime:
        await runtime.states()
        (follower,) = runtime._followers
        with no_descriptors():
            await asyncio.wait({follower}, timeout=0.2)
        assert not follower.done()
        (state,) = await runtime.states()
        assert state.running
        assert start_time(pid)
        async with asyncio.timeout(20):
            stopped = await runtime.stop("one", 0)
        assert (stopped.running, stopped.exit_code) == (False, 137)
        assert not start_time(pid)


async def test_a_start_that_is_given_up_without_descriptors_keeps_its_id(
    room: RuntimeEnv, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "RETRY_INTERVAL", 0.05, raising=False)
    other = room.path / "other"
    other.mkdir()
    async with room.temporary_runtime() as runtime:
        await runtime.prepare()
        disk.freeze()
        starting = asyncio.create_task(runtime.start(hanging(room, disk, str(other))))
        start = await wait_until_stuck(room)
        with no_descriptors():
            cancelling = asyncio.create_task(runtime.cancel_start("one"))
            await asyncio.wait({starting}, timeout=20)
            await asyncio.wait({cancelling}, timeout=0.2)
        with pytest.raises(StartFailed, match="was cancelled"):
            await starting
        assert await runtime.unfinished_starts() == ["one"]
        assert not cancelling.done()
        disk.thaw()
        async with asyncio.timeout(20):
            await cancelling
        await is_quiet(room, start)
    assert not disk.holds("ran")


# --- damage


@pytest.mark.parametrize("damaged", [("container.json",), ("container.json", "start.json")])
@pytest.mark.parametrize("host_pid", [False, True])
async def test_a_container_whose_record_is_damaged_is_ended_with_all_it_started(
    room: RuntimeEnv, host_pid: bool, damaged: tuple[str, ...]
) -> None:
    directory = room.containers / "one"
    async with room.runtime() as runtime:
        await runtime.start(room.shell(FAMILY, host_pid=host_pid))
        await room.wait_for_output("up")
    begun = begun_in(directory)
    family = [begun.pid, *descendants(begun.pid)]
    assert len(family) >= 3
    for name in damaged:
        os.truncate(directory / name, 20)
    try:
        async with room.temporary_runtime() as runtime:
            assert await runtime.states() == []
            async with asyncio.timeout(20):
                await runtime.cancel_start("one")
            assert [pid for pid in family if start_time(pid)] == []
            assert not directory.exists()
    finally:
        for pid in family:
            if start_time(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("host_pid", [False, True])
async def test_a_container_whose_record_is_damaged_keeps_its_id_until_it_is_gone(
    room: RuntimeEnv, disk: Disk, host_pid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "START_TIMEOUT", 0.1)
    directory = room.containers / "one"
    async with room.runtime() as runtime:
        volumes = (Mount(str(disk.path), "/data"),)
        await runtime.start(room.shell(WRITER, host_pid=host_pid, mounts=volumes))
        await room.wait_for_output("up")
    begun = begun_in(directory)
    disk.freeze()
    waiting = await stuck_among(begun.pid)
    os.truncate(directory / "container.json", 20)
    async with room.temporary_runtime() as runtime:
        assert await runtime.states() == []
        assert await runtime.unfinished_starts() == ["one"]
        assert start_time(waiting)  # its volume is not free
        removing = asyncio.create_task(runtime.remove("one"))
        await asyncio.wait({removing}, timeout=0.2)
        assert not removing.done()
        disk.thaw()
        async with asyncio.timeout(20):
            await removing
        assert not start_time(waiting)
        assert begun.live_pids == []
        assert not directory.exists()


async def stuck_among(pid: int) -> int:
    """The descendant of a process that waits in the kernel."""
    looks, last = 0, 0
    async with asyncio.timeout(30):
        while True:
            try:
                found = next((p for p in descendants(pid) if state_of(p) == "D"), 0)
            except OSError:
                found = 0
            looks = looks + 1 if found and found == last else 0
            last = found
            if looks == LOOKS:
                return found
            await asyncio.sleep(0.01)


LOCKER = """
import fcntl, os, sys, time
lock = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(lock, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(600)
"""


def test_somebody_who_only_locks_a_directory_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "START_TIMEOUT", 0.2)
    directory = tmp_path / "one"
    directory.mkdir()
    (directory / "container.json").write_bytes(b"{")
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(directory)], stdout=subprocess.PIPE, text=True
    ) as backup:
        try:
            assert backup.stdout is not None
            assert backup.stdout.readline() == "locked\n"
            assert records.load_with_starts(str(tmp_path)) == ([], [UnfinishedStart(str(directory))])
            assert backup.poll() is None
        finally:
            backup.kill()


# --- starts that fail


async def test_a_start_given_up_after_its_command_ran_leaves_nothing_of_it(room: RuntimeEnv) -> None:
    """Without a pid namespace, only the supervisor ends what has left its parents."""
    directory = room.containers / "one"
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell(FAMILY, host_pid=True))
        await room.wait_for_output("up")
        begun = begun_in(directory)
        family = descendants(begun.pid)
        assert len(family) >= 2
        try:
            runtime._give_up(UnfinishedStart(str(directory), begun))
            async with asyncio.timeout(20):
                await runtime.cancel_start("one")
                await runtime.wait("one")
            assert [pid for pid in family if start_time(pid)] == []
        finally:
            for pid in family:
                if start_time(pid):
                    os.kill(pid, signal.SIGKILL)


def make_full_pipe(path: Path) -> int:
    """A pipe whose writers wait, until the descriptor is closed: then they fail."""
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))
    return pipe


async def test_a_start_whose_record_cannot_be_written_is_over_only_when_its_process_is(
    room: RuntimeEnv, disk: Disk
) -> None:
    other, directory = room.path / "other", room.containers / "one"
    other.mkdir()
    async with room.temporary_runtime() as runtime:
        await runtime.prepare()
        directory.mkdir()
        record = directory / "container.json.tmp"
        held = make_full_pipe(record)  # holds the supervisor up, and then breaks
        disk.freeze()
        starting = asyncio.create_task(runtime.start(hanging(room, disk, str(other))))
        start = await wait_until_stuck(room)
        os.close(held)
        await asyncio.wait({starting}, timeout=0.3)
        assert not starting.done()  # its volumes are not free
        assert await runtime.unfinished_starts() == ["one"]
        disk.thaw()
        async with asyncio.timeout(20):
            with pytest.raises(StartFailed, match="Broken pipe"):
                await starting
        assert not start_time(start.pid)
        await await_gone(start.shim)
        assert not directory.exists()
    assert not disk.holds("ran")


# --- copies


async def test_a_copy_beside_a_container_does_not_replace_it_and_is_left_alone(room: RuntimeEnv) -> None:
    async with room.runtime() as runtime:
        pid = (await runtime.start(room.spec("sleep", "1000"))).pid
    copy = room.containers / "one.bak"
    await asyncio.to_thread(subprocess.run, ["cp", "-a", str(room.containers / "one"), str(copy)], check=True)
    async with room.temporary_runtime() as runtime:
        (state,) = await runtime.states()
        assert (state.id, state.running, state.pid) == ("one", True, pid)
        assert await runtime.unfinished_starts() == []
        stopped = await runtime.stop("one", 0)
        assert stopped.exit_code == 137
    assert not start_time(pid)
    assert (copy / "container.json").exists()
    shutil.rmtree(copy)


DYING = """
import fcntl, os, socket, sys, time
kept = [socket.socketpair() for _ in range(int(sys.argv[2]))]
lock = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(lock, fcntl.LOCK_EX)
kept += [socket.socketpair() for _ in range(int(sys.argv[2]))]
print("locked", flush=True)
time.sleep(600)
"""


def test_a_supervisor_that_is_just_ending_does_not_make_its_directory_a_copy(tmp_path: Path) -> None:
    """It lets go of the lock before it is gone: the more files it has open, the longer before."""
    directory = tmp_path / "one"
    directory.mkdir()
    pairs = min(1000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 5)
    argv = [sys.executable, "-c", DYING, str(directory), str(pairs)]
    with subprocess.Popen(["sleep", "600"]) as first:
        try:
            for _ in range(5):
                with subprocess.Popen(argv, stdout=subprocess.PIPE) as shim:
                    assert shim.stdout is not None
                    shim.stdout.readline()
                    spec = ContainerSpec(id="one")
                    pids = (first.pid, start_time(first.pid), shim.pid, start_time(shim.pid))
                    record = ProcessContainerRecord(
                        str(directory), StartedRecord(spec, *pids, boot_id(), "2026-01-02T03:04:05Z")
                    )
                    begun = StartRecord(*pids, boot_id())
                    shim.kill()
                    while start_time(shim.pid):
                        assert record.is_alive
                        assert first.pid in begun.live_pids_in(str(directory))
                    assert record.is_alive
        finally:
            first.kill()
