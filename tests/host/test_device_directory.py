"""A node's own /dev: the machine's devices and the node's disks."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import path_exists
from volplane.host import DeviceDirectory, Host, NodePaths, mounts

pytestmark = pytest.mark.root

NULL, ZERO = os.makedev(1, 3), os.makedev(1, 5)


class Devices:
    """A node's directory, with a directory that plays the machine's /dev."""

    def __init__(self, root: Path, host: Host) -> None:
        self.host, self.machine = host, root / "machine"
        self.machine.mkdir()
        self.make("null", NULL)
        self.paths = NodePaths(str(root / "node"))
        self.own = Path(self.paths.dev)
        self.own.mkdir(parents=True)
        self.directory = DeviceDirectory(host, self.paths, str(self.machine))

    def make(self, name: str, number: int = NULL) -> None:
        path = self.machine / name
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, number)
        path.chmod(0o606)

    def link(self, name: str, target: str) -> None:
        """A disk, as the disk service links it."""
        (self.own / name).symlink_to(target)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Devices]:
    host = Host(threads=1)
    yield Devices(tmp_path, host)
    asyncio.run(host.close())


async def test_it_has_the_devices_of_the_machine(here: Devices) -> None:
    here.make("net/tun", ZERO)
    await here.directory.fill()
    info = os.stat(here.own / "null")
    assert (info.st_rdev, stat.S_IMODE(info.st_mode)) == (NULL, 0o606)
    assert os.stat(here.own / "net/tun").st_rdev == ZERO
    assert (here.own / "null").read_bytes() == b""


async def test_loop_devices_are_there_in_advance(here: Devices) -> None:
    await here.directory.fill()
    info = os.stat(here.own / "loop200")
    assert (info.st_rdev, stat.S_ISBLK(info.st_mode)) == (os.makedev(7, 200), True)


async def test_a_disk_of_the_node_takes_precedence(here: Devices) -> None:
    here.make("xvdba")
    here.link("xvdba", "/dev/loop99")
    await here.directory.fill()
    assert os.readlink(here.own / "xvdba") == "/dev/loop99"
    assert here.directory.find("/dev/xvdba") == str(here.own / "xvdba")


async def test_other_devices_are_opened_on_the_machine(here: Devices) -> None:
    await here.directory.fill()
    assert here.directory.find("/dev/null") == "/dev/null"
    assert here.directory.find("/dev") == str(here.own)


async def test_a_link_of_the_machine_follows_its_changes(here: Devices) -> None:
    (here.machine / "cdrom").symlink_to("null")
    await here.directory.fill()
    (here.machine / "cdrom").unlink()
    (here.machine / "cdrom").symlink_to("sr1")
    await here.directory.fill()
    assert os.readlink(here.own / "cdrom") == "sr1"


async def test_a_link_that_is_right_is_not_touched(here: Devices) -> None:
    (here.machine / "fd").symlink_to("/proc/self/fd")
    await here.directory.fill()
    before = os.lstat(here.own / "fd").st_ctime_ns
    await here.directory.fill()
    assert os.lstat(here.own / "fd").st_ctime_ns == before


async def test_pods_may_start_together(here: Devices) -> None:
    for number in range(200):
        (here.machine / f"link{number}").symlink_to("null")
    host = Host(threads=8)
    try:
        directory = DeviceDirectory(host, here.paths, str(here.machine))
        await asyncio.gather(*(directory.fill() for _ in range(8)))
    finally:
        await host.close()
    assert os.readlink(here.own / "link199") == "null"


async def test_a_number_of_before_a_restart_is_replaced(here: Devices) -> None:
    await here.directory.fill()
    (here.machine / "null").unlink()
    here.make("null", ZERO)
    await here.directory.fill()
    assert os.stat(here.own / "null").st_rdev == ZERO


async def test_it_follows_the_machine_while_it_is_used(here: Devices) -> None:
    here.link("xvdbb", "/dev/loop98")
    await here.directory.fill()
    here.directory.follow()
    following = asyncio.create_task(here.directory.run())
    here.make("net/early")
    await until(lambda: _has(here, "net/early"))
    here.make("sdx")
    await until(lambda: _has(here, "sdx"))
    (here.machine / "sdx").unlink()
    await until(lambda: _has(here, "sdx", False))
    assert os.readlink(here.own / "xvdbb") == "/dev/loop98"
    following.cancel()


async def test_a_new_directory_is_followed_too(here: Devices) -> None:
    await here.directory.fill()
    here.directory.follow()
    following = asyncio.create_task(here.directory.run())
    here.make("early")
    await until(lambda: _has(here, "early"))
    here.make("mapper/first")
    await until(lambda: _has(here, "mapper/first"))
    here.make("mapper/second")
    await until(lambda: _has(here, "mapper/second"))
    following.cancel()


async def test_a_machine_that_cannot_be_followed_is_logged(
    here: Devices, caplog: pytest.LogCaptureFixture
) -> None:
    lost = DeviceDirectory(here.host, here.paths, str(here.machine / "missing"))
    lost.follow()
    await lost.run()
    assert "pods do not see devices that appear on this machine" in caplog.text


async def _has(here: Devices, name: str, wanted: bool = True) -> bool:
    path = here.own / name
    return path_exists(path) is wanted


async def test_a_file_system_without_devices_shows_those_of_the_machine(here: Devices) -> None:
    mounts.mount("tmpfs", str(here.own), "tmpfs", ["nodev"])
    try:
        await here.directory.fill()
        assert here.directory.find("/dev") == "/dev"
        assert os.listdir(here.own) == []
    finally:
        mounts.unmount(str(here.own))
