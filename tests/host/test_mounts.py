"""Real mounts and unmounts, and the mount table."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from volplane.host import Host, HostCommandMissing, MountTable
from volplane.host.mounts import split_options
from volplane.host.processes import start_time, wait_for_exit
from volplane.host.syscalls import MS_NOATIME, MS_NOEXEC, MS_RDONLY

TABLE = MountTable.parse(
    "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
    "30 22 7:0 / /srv/with\\040blank rw,noatime shared:5 - ext4 /dev/loop0 rw\n"
    "31 22 7:0 /data /srv/pod ro shared:5 master:2 - ext4 /dev/loop0 rw\n"
    "32 31 0:55 / /srv/pod/tmp rw - tmpfs tmpfs rw,size=4k\n"
    "33 22 0:56 / /srv/pod rw - tmpfs none rw\n"
)


def test_the_table_knows_the_topmost_mount_of_a_path() -> None:
    top = TABLE.at("/srv/pod/")
    assert top is not None
    assert top.fstype == "tmpfs"
    assert TABLE.at("/srv") is None


def test_the_table_lists_inner_mounts_first() -> None:
    assert [e.id for e in TABLE.under("/srv/pod")] == [33, 32, 31]
    assert [e.id for e in TABLE.under("/srv/po")] == []


def test_the_table_finds_a_device_by_number() -> None:
    assert [e.target for e in TABLE.references("7:0")] == ["/srv/with blank", "/srv/pod"]


def test_the_table_finds_other_mounts_of_the_same_directory() -> None:
    assert TABLE.siblings("/srv/with blank") == ["/srv/pod"]
    assert TABLE.siblings("/nowhere") == []


def test_the_table_tells_a_directory_on_its_own_place_from_a_disk() -> None:
    table = MountTable.parse(
        "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "30 22 7:0 /@ /srv rw - btrfs /dev/loop0 rw\n"
        "31 30 7:0 /@/own /srv/own rw shared:5 - btrfs /dev/loop0 rw\n"
        "32 31 7:0 /@/own /srv/own rw shared:5 - btrfs /dev/loop0 rw\n"
        "33 30 7:0 /@/other /srv/bound rw - btrfs /dev/loop0 rw\n"
        "34 22 0:55 / /tmp rw - tmpfs none rw\n"
    )
    assert [p for p in ("/srv", "/srv/own", "/srv/bound", "/tmp", "/", "/none") if table.is_on_itself(p)] == [
        "/srv/own"
    ]


def test_the_table_tells_propagation_and_read_only() -> None:
    entry = TABLE.entries[2]
    assert entry.is_shared
    assert entry.readonly
    assert not TABLE.entries[0].is_shared


@pytest.mark.parametrize(
    ("options", "flags", "data"),
    [
        ([], 0, ""),
        (["ro", "noexec"], MS_RDONLY | MS_NOEXEC, ""),
        (["ro,rw", "noatime"], MS_NOATIME, ""),
        (
            ["discard", "data=ordered", "_netdev", "x-systemd.automount", "defaults"],
            0,
            "discard,data=ordered",
        ),
        (['context="a:b:c1,c2",ro'], MS_RDONLY, 'context="a:b:c1,c2"'),
    ],
)
def test_options_are_split_into_flags_and_data(options: list[str], flags: int, data: str) -> None:
    assert split_options(options) == (flags, data)


@pytest.mark.root
async def test_a_mount_appears_and_goes(host: Host, room: Path) -> None:
    target = room / "target"
    target.mkdir()
    assert not await host.is_mount(str(target))
    await host.mount("none", str(target), "tmpfs", ["size=1m", "nosuid"])
    assert await host.is_mount(str(target))
    entry = (await host.mounts()).at(str(target))
    assert entry is not None
    assert entry.fstype == "tmpfs"
    assert "nosuid" in entry.options
    assert await host.unmount(str(target))
    assert not await host.unmount(str(target))
    assert not await host.unmount(str(room / "missing"))
    assert not await host.is_mount(str(room / "missing"))


@pytest.mark.root
async def test_a_failed_mount_names_both_ends(host: Host, room: Path) -> None:
    with pytest.raises(OSError, match=r"missing.*target"):
        await host.bind(str(room / "missing"), str(room / "target"))


@pytest.mark.root
async def test_a_busy_mount_is_not_taken_off(host: Host, room: Path) -> None:
    target = room / "target"
    target.mkdir()
    await host.mount("none", str(target), "tmpfs")
    with (target / "open").open("w"), pytest.raises(OSError, match="busy"):
        await host.unmount(str(target))
    assert await host.unmount(str(target))


@pytest.mark.root
async def test_a_read_only_bind_is_read_only_here_and_writable_there(host: Host, room: Path) -> None:
    source, target = room / "source", room / "target"
    source.mkdir()
    target.mkdir()
    await host.bind(str(source), str(target), readonly=True)
    with pytest.raises(OSError, match="Read-only"):
        (target / "file").write_text("x")
    (source / "file").write_text("x")
    assert (target / "file").read_text() == "x"


@pytest.mark.root
async def test_a_file_can_be_bound_and_made_read_only_later(host: Host, room: Path) -> None:
    source, target = room / "source", room / "target"
    source.write_text("x")
    target.touch()
    await host.mount(str(source), str(target), "", ["bind"])
    await host.remount_readonly(str(target))
    with pytest.raises(OSError, match="Read-only"):
        target.write_text("y")


@pytest.mark.root
async def test_mounts_below_a_shared_directory_appear_in_its_copies(host: Host, room: Path) -> None:
    root, copy = room / "root", room / "copy"
    for directory in (root, copy, root / "inner"):
        directory.mkdir()
    await host.make_shared(str(root))
    await host.make_shared(str(root))  # again changes nothing
    assert (await host.mounts()).is_on_itself(str(root))
    assert len([e for e in await host.mounts() if e.target == str(root)]) == 1
    await host.bind(str(root), str(copy))
    await host.mount("none", str(copy / "inner"), "tmpfs")
    assert await host.is_mount(str(root / "inner"))
    await host.unmount(str(root / "inner"))
    assert not await host.is_mount(str(copy / "inner"))


@pytest.mark.root
async def test_a_link_to_a_mount_is_no_mount(host: Host, room: Path) -> None:
    target, link = room / "target", room / "link"
    target.mkdir()
    link.symlink_to(target)
    await host.mount("none", str(target), "tmpfs")
    assert not await host.is_mount(str(link))
    assert not await host.unmount(str(link))
    assert await host.is_mount(str(target))


async def test_a_command_gives_its_output_and_its_code(host: Host) -> None:
    completed = await host.run(["sh", "-c", "cat; echo oops >&2; exit 3"], input=b"given ", check=False)
    assert (completed.code, completed.stdout, completed.stderr) == (3, b"given ", b"oops\n")


@pytest.mark.parametrize(("held", "code"), [((), -signal.SIGTERM), ((signal.SIGTERM,), 7)])
async def test_a_signal_that_is_held_does_not_end_a_program_that_starts(
    host: Host, held: tuple[int, ...], code: int
) -> None:
    process = await host.spawn(["sh", "-c", "kill -TERM $$; exit 7"], blocked_signals=held)
    assert await process.wait() == code
    assert await host.call(signal.pthread_sigmask, signal.SIG_BLOCK, ()) == set()


async def test_a_missing_command_is_said_to_be_missing(host: Host) -> None:
    with pytest.raises(HostCommandMissing, match="not installed"):
        await host.run(["no-such-program"])


async def test_a_command_whose_caller_is_cancelled_is_killed(host: Host, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    running = asyncio.create_task(host.run(["sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 60 & wait"]))
    pid = int(await asyncio.to_thread((tmp_path / "pid").read_text))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(10):
        await wait_for_exit(pid)


async def test_a_command_over_its_time_is_killed(host: Host, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        await host.run(["sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 60 & wait"], timeout=0.2)
    assert start_time(int((tmp_path / "pid").read_text())) == 0
