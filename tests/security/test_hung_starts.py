"""A start that hangs is given up, and then nothing of it ever runs: neither later, nor after a restart."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.containers.conftest import RuntimeEnv
from tests.loops.inprocess import until
from tests.node.node_env import node_env
from volplane.api.core import Pod
from volplane.host import devices, filesystems, mounts
from volplane.host.processes import start_time
from volplane.node.containers import process, records
from volplane.node.containers.base import Mount, NoSuchContainer, StartFailed

pytestmark = pytest.mark.root

FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
LOOKS = 20


class Disk:
    """A file system that can be frozen: writers block in the kernel until it is thawed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._frozen = False

    def freeze(self) -> None:
        fcntl.ioctl(self._descriptor, FIFREEZE, 0)
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            fcntl.ioctl(self._descriptor, FITHAW, 0)
            self._frozen = False

    def close(self) -> None:
        self.thaw()
        os.close(self._descriptor)

    def holds(self, name: str) -> bool:
        return (self.path / name).exists()


@contextmanager
def made_disk(directory: Path) -> Iterator[Disk]:
    file, place = directory / "disk.img", directory / "disk"
    file.touch()
    os.truncate(file, 32 << 20)
    place.mkdir()
    device = devices.loop_attach(str(file))
    try:
        filesystems.mkfs(device, "ext4")
        mounts.mount(device, str(place), "ext4", [])
        disk = Disk(place)
        try:
            yield disk
        finally:
            disk.close()
            mounts.unmount(str(place))
    finally:
        let_go(device, str(file))


def let_go(device: str, file: str) -> None:
    """Retry: a process that creates a mount namespace holds all disks of the machine for a moment."""
    for _ in range(500):
        with suppress(devices.DeviceBusy):
            devices.loop_detach(device, file)
            return
        time.sleep(0.01)
    devices.loop_detach(device, file)


@pytest.fixture
def room(tmp_path: Path) -> RuntimeEnv:
    return RuntimeEnv(tmp_path)


@pytest.fixture
def disk(room: RuntimeEnv) -> Iterator[Disk]:
    with made_disk(room.path) as disk:
        yield disk


@pytest.fixture
def other(room: RuntimeEnv) -> str:
    path = room.path / "other"
    path.mkdir()
    return str(path)


def hanging(room: RuntimeEnv, disk: Disk, other: str, **more: Any) -> Any:
    """A container for which a directory has to be made on the disk, and that would leave a file there."""
    volumes = (Mount(str(disk.path), "/data"), Mount(other, "/data/inner"))
    return room.shell("echo ran; touch /data/ran; sync; exec sleep 1000", mounts=volumes, **more)


async def wait_until_stuck(room: RuntimeEnv, id: str = "one") -> records.StartRecord:
    """Wait until its first process waits in the kernel."""
    return await wait_until_stuck_in(str(room.containers / id))


async def wait_until_stuck_in(directory: str) -> records.StartRecord:
    looks = 0  # consecutive checks at which it was blocked: every process is for a moment
    async with asyncio.timeout(30):
        while True:
            found = records.find_unfinished(directory)
            start = found.processes if found is not None else None
            looks = looks + 1 if start is not None and state_of(start.pid) == "D" else 0
            if start is not None and looks == LOOKS:
                return start
            await asyncio.sleep(0.01)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


async def is_quiet(room: RuntimeEnv, start: records.StartRecord) -> None:
    assert start.pid not in start.live_pids

    async def is_gone() -> bool:
        return not start.live_pids

    await until(is_gone)  # the shim removes its directory before it exits
    assert [p.name for p in room.containers.iterdir() if p.name != "launcher.log"] == []
    assert "ran" not in room.output()


async def test_a_start_that_is_given_up_never_runs(
    room: RuntimeEnv, disk: Disk, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "START_TIMEOUT", 0.5)
    async with room.temporary_runtime() as runtime:
        await runtime.prepare()
        disk.freeze()
        starting = asyncio.create_task(runtime.start(hanging(room, disk, other)))
        start = await wait_until_stuck(room)
        with pytest.raises(StartFailed, match=r"did not start within 0\.5 s"):
            await starting
        assert await runtime.unfinished_starts() == ["one"]
        removing = asyncio.create_task(runtime.remove("one"))
        await asyncio.wait({removing}, timeout=0.2)
        assert not removing.done()  # its volumes are not free
        assert start.pid in start.live_pids
        disk.thaw()
        async with asyncio.timeout(20):
            await removing
        assert await runtime.unfinished_starts() == []
        await is_quiet(room, start)
    assert not disk.holds("ran")


async def test_a_start_that_is_cancelled_never_runs(room: RuntimeEnv, disk: Disk, other: str) -> None:
    async with room.temporary_runtime() as runtime:
        disk.freeze()
        starting = asyncio.create_task(runtime.start(hanging(room, disk, other)))
        start = await wait_until_stuck(room)
        stopping = asyncio.create_task(runtime.stop("one", 30))
        async with asyncio.timeout(20):
            with pytest.raises(StartFailed, match="was cancelled"):
                await starting
        assert not stopping.done()
        disk.thaw()
        async with asyncio.timeout(20):
            with pytest.raises(NoSuchContainer):
                await stopping
        await is_quiet(room, start)
    assert not disk.holds("ran")


async def test_a_container_starts_anew_once_the_start_that_was_given_up_is_gone(
    room: RuntimeEnv, disk: Disk, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "START_TIMEOUT", 0.5)
    async with room.temporary_runtime() as runtime:
        await runtime.prepare()
        disk.freeze()
        with pytest.raises(StartFailed, match="did not start"):
            await runtime.start(hanging(room, disk, other))
        monkeypatch.setattr(process, "START_TIMEOUT", 60.0)
        monkeypatch.setattr(process, "TIMEOUT", 0.2)
        with pytest.raises(StartFailed, match="its processes have not exited"):
            await runtime.start(hanging(room, disk, other))
        monkeypatch.setattr(process, "TIMEOUT", 60.0)
        again = asyncio.create_task(runtime.start(hanging(room, disk, other)))
        await asyncio.sleep(0)
        disk.thaw()
        assert (await again).running
        await room.wait_for_output("ran")
        await runtime.stop("one", 0)
    assert room.output() == ["ran"]


async def test_a_restarted_node_ends_a_start_that_hangs(
    room: RuntimeEnv, disk: Disk, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "START_TIMEOUT", 0.1)
    async with room.runtime() as runtime:
        disk.freeze()
        starting = asyncio.create_task(runtime.start(hanging(room, disk, other)))
        start = await wait_until_stuck(room)
    with pytest.raises(StartFailed, match="was cancelled"):
        await starting
    async with room.temporary_runtime() as runtime:
        assert await runtime.states() == []  # it neither runs nor keeps the node from starting
        assert await runtime.unfinished_starts() == ["one"]
        disk.thaw()
        async with asyncio.timeout(20):
            await runtime.cancel_start("one")
        await is_quiet(room, start)
    assert not disk.holds("ran")


async def test_a_supervisor_whose_node_is_gone_ends_the_start_itself(
    room: RuntimeEnv, disk: Disk, other: str
) -> None:
    async with room.runtime() as runtime:
        disk.freeze()
        runtime._give_up = lambda start: None  # type: ignore[method-assign]  # as if the node had been killed
        starting = asyncio.create_task(runtime.start(hanging(room, disk, other)))
        start = await wait_until_stuck(room)
    with pytest.raises(StartFailed, match="was cancelled"):
        await starting
    disk.thaw()
    async with asyncio.timeout(20):
        while start.live_pids:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await is_quiet(room, start)
    assert not disk.holds("ran")


async def test_a_container_that_hangs_in_its_start_is_not_running_and_its_pod_can_be_deleted(
    tmp_path: Path,
) -> None:
    with made_disk(tmp_path) as disk:
        async with node_env() as here:
            role = await here.start()
            disk.freeze()
            shell = {
                "name": "main",
                "image": "busybox",
                "command": ["sh", "-c", "touch /data/ran; exec sleep 1000"],
                "workingDir": "/data/made/by/the/node",
                "volumeMounts": [{"name": "disk", "mountPath": "/data"}],
            }
            volume = {"name": "disk", "hostPath": {"path": str(disk.path)}}
            await here.pod(containers=[shell], volumes=[volume])
            (id,) = await until(role.runtimes.unfinished_starts)
            pid = (await wait_until_stuck_in(here.paths.real(f"{here.paths.containers}/{id}"))).pid
            pod = await here.client.get(Pod, "app", "default")
            assert pod.status.phase == "Pending"
            (status,) = pod.status.container_statuses
            assert status.state.running is None
            assert status.state.waiting is not None
            assert status.state.waiting.reason == "ContainerCreating"
            await here.delete(grace=1)

            async def is_start_cancelled() -> bool:
                return not role.runtimes._processes._starting  # type: ignore[attr-defined]

            await until(is_start_cancelled)
            assert await here.phase() == "Pending"  # its volumes are not reported as free
            assert start_time(pid)
            disk.thaw()
            await here.wait_for_phase("gone")
            assert not start_time(pid)
            assert await role.runtimes.states() == []
        assert not disk.holds("ran")
