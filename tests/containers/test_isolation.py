"""Containers and volumes of other pods: none is visible or held, and mounts propagate as requested."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from volplane.host import Host, devices, filesystems, mounts, syscalls
from volplane.node.containers.base import ContainerSpec, Mount, StartFailed
from volplane.node.containers.process import ProcessRuntime

pytestmark = pytest.mark.root


@pytest.fixture
def disk(room: Any) -> Iterator[str]:
    """A formatted disk."""
    file = room.path / "disk.img"
    file.touch()
    os.truncate(file, 64 << 20)
    device = devices.loop_attach(str(file))
    filesystems.mkfs(device, "ext4")
    yield device
    for entry in mounts.read_table().under(str(room.path)):
        mounts.unmount(entry.target)
    devices.loop_detach(device, str(file))  # the number may have been reused


def directory(*parts: object) -> str:
    path = Path(*map(str, parts))
    path.mkdir(parents=True, exist_ok=True)
    return str(path)


def text_of(path: str) -> str:
    return Path(path).read_text()


def mount_ext4(device: str, target: str) -> str:
    mounts.mount(device, target, "ext4", [])
    return target


async def test_the_data_directory_is_empty_inside() -> None:
    data = tempfile.mkdtemp(prefix="volplane-test-", dir="/var/lib")  # /tmp is never seen inside anyway
    directory(data, "keys")
    host = Host(threads=2)
    runtime = ProcessRuntime(f"{data}/n/1/containers", host, cover=[data])
    try:
        log = f"{data}/log"
        await runtime.start(ContainerSpec(id="one", command=("ls", "-A", data), log_path=log))
        assert (await runtime.wait("one")).exit_code == 0
        assert text_of(log) == ""
        await runtime.remove("one")
    finally:
        await runtime.close()
        await host.close()
        shutil.rmtree(data)


async def test_what_is_to_be_covered_may_come_later_than_the_launcher() -> None:
    data = tempfile.mkdtemp(prefix="volplane-test-", dir="/var/lib")
    late = f"{data}/late"
    host = Host(threads=2)
    runtime = ProcessRuntime(f"{data}/containers", host, cover=[f"{late}/a/b", f"{late}/a/c"])
    log = f"{data}/log"
    try:
        await runtime.start(ContainerSpec(id="first", command=("true",), log_path=f"{data}/first"))
        await runtime.wait("first")
        await runtime.remove("first")
        directory(late, "a", "b")
        await runtime.start(ContainerSpec(id="one", command=("ls", "-A", late), log_path=log))
        assert (await runtime.wait("one")).exit_code == 2
        assert "No such file" in text_of(log)
        await runtime.remove("one")
    finally:
        await runtime.close()
        await host.close()
        shutil.rmtree(data)


SEPARATE = """
import asyncio, os, sys
from volplane.host import Host
from volplane.node.containers.base import ContainerSpec
from volplane.node.containers.process import ProcessRuntime

async def main():
    host, log = Host(threads=2), "/mnt/data/log"
    runtime = ProcessRuntime("/mnt/data/containers", host, cover=["/mnt/data", "/opt/data"])
    script = "cat /opt/file; echo changed > /opt/file; ls -A /opt /opt/data /home"
    await runtime.start(ContainerSpec(id="one", command=("sh", "-c", script), log_path=log))
    await runtime.wait("one")
    await runtime.remove("one")
    await runtime.close()
    await host.close()
    print([line.split(" ", 3)[3].strip() for line in open(log)], open("/opt/file").read())

asyncio.run(main())
"""


def test_system_directories_on_file_systems_of_their_own_are_seen_and_covered_alike() -> None:
    prepare = (
        "for place in /opt /home /mnt; do mount -t tmpfs none $place && mkdir $place/data; done"
        " && echo here > /opt/file && echo secret > /opt/data/key && echo secret > /home/data/key"
    )
    shell = f'{prepare} && exec "$0" -c "$1"'
    argv = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", shell, sys.executable, SEPARATE]
    completed = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert completed.stdout == ("['here', '/home:', '', '/opt:', 'data', 'file', '', '/opt/data:'] here\n\n")


async def test_a_volume_mounted_before_is_neither_seen_nor_held(room: Any, disk: str) -> None:
    target = mount_ext4(disk, directory(room.path, "pods", "a"))
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell("cat /proc/mounts; echo end; exec sleep 1000"))
        await room.wait_for_output("end")
        assert not [line for line in room.output() if "/dev/loop" in line]
        mounts.unmount(target)
        assert devices.loop_detach(disk)  # fails while it is in use


async def test_a_volume_mounted_later_is_neither_seen_nor_held(room: Any, disk: str) -> None:
    mounts.make_shared(directory(room.path, "pods"))
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec("sleep", "1000"))
        target = mount_ext4(disk, directory(room.path, "pods", "a"))
        assert "/dev/loop" not in (await room.run_in(runtime, "one", "cat", "/proc/mounts"))[1]
        mounts.unmount(target)
        assert devices.loop_detach(disk)


async def test_its_own_volume_is_held_until_it_ends_and_no_longer(room: Any, disk: str) -> None:
    target = mount_ext4(disk, directory(room.path, "pods", "a"))
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec("sleep", "1000", mounts=(Mount(target, "/data"),)))
        code, text = await room.run_in(runtime, "one", "df", "-T", "/data")
        assert code == 0
        assert disk in text
        assert "ext4" in text
        mounts.unmount(target)
        with pytest.raises(devices.DeviceBusy):
            devices.loop_detach(disk)
        await runtime.stop("one", 0)
        assert devices.loop_detach(disk)


@pytest.mark.parametrize("propagation", ["private", "rslave", "rshared"])
async def test_a_directory_of_volumes_does_not_hold_them(room: Any, disk: str, propagation: Any) -> None:
    root = directory(room.path, "n")
    mounts.make_shared(root)
    target = mount_ext4(disk, directory(root, "pods", "a"))
    async with room.temporary_runtime() as runtime:
        await runtime.start(
            room.spec("sleep", "1000", mounts=(Mount(root, "/host", propagation=propagation),))
        )
        assert "/host/pods/a" in (await room.run_in(runtime, "one", "cat", "/proc/mounts"))[1]
        mounts.unmount(target)
        assert "/host/pods/a" not in (await room.run_in(runtime, "one", "cat", "/proc/mounts"))[1]
        assert devices.loop_detach(disk)


@pytest.mark.parametrize(("propagation", "seen"), [("private", False), ("rslave", True), ("rshared", True)])
async def test_later_mounts_of_the_machine_appear_inside_as_asked(
    room: Any, propagation: Any, seen: bool
) -> None:
    root = directory(room.path, "n")
    mounts.make_shared(root)
    inner = directory(root, "inner")
    async with room.temporary_runtime() as runtime:
        await runtime.start(
            room.spec("sleep", "1000", mounts=(Mount(root, "/host", propagation=propagation),))
        )
        mounts.mount("none", inner, "tmpfs", [])
        table = (await room.run_in(runtime, "one", "cat", "/proc/mounts"))[1]
        assert ("/host/inner" in table) == seen
        mounts.unmount(inner)


async def test_a_volume_with_another_volume_in_it_does_not_follow_the_machine(room: Any) -> None:
    outer, inner = directory(room.path, "outer"), directory(room.path, "inner")
    mounts.make_shared(outer)
    later = directory(outer, "later")
    volumes = (Mount(inner, "/host/nested"), Mount(outer, "/host"))
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.spec("sleep", "1000", mounts=volumes))
        mounts.mount("none", later, "tmpfs", [])
        table = (await room.run_in(runtime, "one", "cat", "/proc/mounts"))[1]
        assert "/host/nested" in table
        assert "/host/later" not in table
        mounts.unmount(later)


@pytest.mark.parametrize(("propagation", "seen"), [("rslave", False), ("rshared", True)])
async def test_mounts_made_inside_appear_on_the_machine_as_asked(
    room: Any, propagation: Any, seen: bool
) -> None:
    root = directory(room.path, "n")
    mounts.make_shared(root)
    directory(root, "plugins")
    kubelet = Mount(root, "/var/lib/kubelet", propagation=propagation)
    async with room.temporary_runtime() as runtime:
        script = "mount -t tmpfs none /var/lib/kubelet/plugins && echo done; exec sleep 1000"
        await runtime.start(room.shell(script, privileged=True, mounts=(kubelet,)))
        await room.wait_for_output("done")
        assert mounts.is_mount(f"{root}/plugins") == seen
        await runtime.stop("one", 0)
        # A driver's mounts outlive the driver.
        assert mounts.unmount(f"{root}/plugins") == seen


async def test_what_cannot_propagate_is_refused(room: Any) -> None:
    root = directory(room.path, "n")
    mounts.bind(root, root, readonly=False, recursive=False)
    syscalls.mount("", root, flags=syscalls.MS_PRIVATE)
    async with room.temporary_runtime() as runtime:
        with pytest.raises(StartFailed, match="not on a shared mount"):
            await runtime.start(room.spec("true", mounts=(Mount(root, "/host", propagation="rshared"),)))


async def test_a_read_only_volume_is_writable_for_others(room: Any) -> None:
    data = directory(room.path, "data")
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell("touch /d/x", mounts=(Mount(data, "/d", readonly=True),)))
        await runtime.start(room.shell("touch /d/y", id="two", mounts=(Mount(data, "/d"),)))
        assert (await runtime.wait("one")).exit_code == 1
        assert (await runtime.wait("two")).exit_code == 0
    assert os.listdir(data) == ["y"]


# In a mount namespace of its own, a machine whose /etc/resolv.conf is a link into /run, as systemd-resolved
# makes it. Prints what a container without and one with a file of its own sees there.
_LINKED_MACHINE = """
set -e
mount -t tmpfs none /run
mkdir /run/resolve /run/upper /run/work
echo 'nameserver 192.0.2.9' > /run/resolve/resolv.conf
mount -t overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work overlay /etc
umount /etc/resolv.conf 2>/dev/null || true
ln -sf ../run/resolve/resolv.conf /etc/resolv.conf
exec "$@"
"""
_LINKED_CONTAINERS = """
import asyncio, sys
from volplane.host import Host
from volplane.node.containers.base import ContainerSpec, Mount
from volplane.node.containers.process import ProcessRuntime

async def main(place):
    host = Host(threads=2)
    runtime = ProcessRuntime(f"{place}/containers", host, cover=[])
    with open(f"{place}/own", "w") as file:
        file.write("nameserver 192.0.2.1\\n")
    for id, mounts in (("plain", ()), ("own", (Mount(f"{place}/own", "/etc/resolv.conf"),))):
        log = f"{place}/{id}.log"
        command = ("cat", "/etc/resolv.conf")
        await runtime.start(ContainerSpec(id=id, command=command, log_path=log, mounts=mounts))
        await runtime.wait(id)
        print(open(log).read().split(" ", 3)[3], end="")
        await runtime.remove(id)
    await runtime.close()
    await host.close()

asyncio.run(main(sys.argv[1]))
"""


def test_a_resolver_file_that_is_a_link_into_a_directory_that_containers_do_not_see(room: Any) -> None:
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _LINKED_MACHINE, "sh"]
    script = [sys.executable, "-c", _LINKED_CONTAINERS, str(room.path)]
    done = subprocess.run([*command, *script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "nameserver 192.0.2.9\nnameserver 192.0.2.1\n"
