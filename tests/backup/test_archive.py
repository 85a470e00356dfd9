"""The archive of a backup: what goes in comes out, and a damaged or forged one changes nothing."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from volplane.cluster.backup import BackupError, create_backup, restore_backup
from volplane.cluster.backup.writer import ArchiveWriter
from volplane.cluster.data_directory import DataDirectory
from volplane.host.copies import extents
from volplane.store import StoreRecord
from volplane.store.sqlite import SqliteStore

MIB = 1 << 20


def make_directory(directory: Path) -> DataDirectory:
    """A data directory with files of all kinds, as no cluster has written it."""
    layout = DataDirectory(directory)
    layout.create()
    layout.lock.touch()
    asyncio.run(fill_store(layout.state, 50))
    (directory / "pki").mkdir()
    (directory / "pki" / "ca.key").write_text("key")
    (directory / "cluster.json").write_text("{}")
    (layout.cloud / "disks").mkdir()
    (layout.cloud / "snapshots").mkdir()
    make_sparse(layout.cloud / "disks" / "vol-1.img")
    (layout.cloud / "disks" / "vol-2.img").write_bytes(b"")
    os.truncate(layout.cloud / "disks" / "vol-2.img", 3 * MIB)
    (layout.cloud / "disks" / "vol-3.img").write_bytes(os.urandom(5000))
    (layout.cloud / "disks" / "vol-4.img.orphaned").write_bytes(b"not a disk")
    shutil.copy(layout.cloud / "disks" / "vol-3.img", layout.cloud / "snapshots" / "snap-1.img")
    make_tree(layout.shared / "fs-00000001" / "fsap-1")
    return layout


async def fill_store(path: Path, records: int) -> None:
    store = await SqliteStore.open(path)
    for number in range(records):
        await store.create(f"/registry/x/{number}", os.urandom(100))
    await store.close()


async def read_store(path: Path) -> tuple[int, list[StoreRecord]]:
    store = await SqliteStore.open(path)
    try:
        return store.revision, store.scan("/")
    finally:
        await store.close()


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(64 * MIB)
        for place in (0, 7 * MIB, 40 * MIB):
            file.seek(place)
            file.write(os.urandom(8192))


def make_tree(top: Path) -> None:
    (top / "inner" / "empty").mkdir(parents=True)
    (top / "plain").write_text("text")
    (top / "setuid").write_text("#!/bin/sh\n")
    os.chmod(top / "setuid", 0o4751)
    os.chown(top / "inner", 1234, 4321)
    os.link(top / "plain", top / "inner" / "same")
    os.symlink("/etc/passwd", top / "absolute")
    os.symlink("inner", top / "relative")
    os.mkfifo(top / "pipe")
    make_sparse(top / "sparse")
    (top / "blank \udcff ünïcode").write_text("")
    (top / ("long" * 40)).mkdir()
    os.setxattr(top / "plain", "user.comment", b"\xff\x00binary")
    os.setxattr(top / "inner", "user.on", b"a directory")
    os.utime(top / "plain", ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
    os.chmod(top, 0o2775)


def describe_tree(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a backup must keep, by name."""
    found: dict[str, tuple[object, ...]] = {}
    names: dict[int, str] = {}
    for path in sorted(top.rglob("*")):
        there = path.lstat()
        content: object = ""
        xattrs: dict[str, bytes] = {}
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            with path.open("rb") as file:
                content = (there.st_size, list(extents(file.fileno())), hash(file.read()))
        if not path.is_symlink():
            xattrs = {name: os.getxattr(path, name) for name in os.listxattr(path)}
        first = names.setdefault(there.st_ino, str(path.relative_to(top)))
        times = there.st_mtime_ns
        found[str(path.relative_to(top))] = (
            oct(there.st_mode),
            there.st_uid,
            there.st_gid,
            times,
            content,
            xattrs,
            first,
        )
    return found


def back_up(layout: DataDirectory, target: Path, *, disks: bool = True) -> Path:
    create_backup(layout, target, disks=disks, report=lambda *_: None)
    return target


def restore(archive: Path, target: Path) -> DataDirectory:
    restore_backup(archive, target, lambda *_: None)
    return DataDirectory(target)


@pytest.mark.root
def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    layout = make_directory(tmp_path / "d")
    archive = back_up(layout, tmp_path / "b.tar")
    restored = restore(archive, tmp_path / "r")
    assert describe_tree(restored.shared) == describe_tree(layout.shared)
    assert describe_tree(restored.cloud / "snapshots") == describe_tree(layout.cloud / "snapshots")
    disks, before = describe_tree(restored.cloud / "disks"), describe_tree(layout.cloud / "disks")
    assert disks == {name: found for name, found in before.items() if not name.endswith(".orphaned")}
    assert (restored.directory / "pki" / "ca.key").read_text() == "key"
    old, new = [asyncio.run(read_store(path)) for path in (layout.state, restored.state)]
    assert old == new
    assert len(old[1]) == 50
    assert stat.S_IMODE(restored.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert archive.stat().st_size < 8 * MIB, "holes take space"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.root
def test_gnu_tar_reads_it_with_holes_and_links(tmp_path: Path) -> None:
    layout = make_directory(tmp_path / "d")
    archive = back_up(layout, tmp_path / "b.tar")
    (tmp_path / "t").mkdir()
    subprocess.run(
        ["tar", "--xattrs", "--xattrs-include=*", "-xpf", str(archive), "-C", str(tmp_path / "t")], check=True
    )
    assert describe_tree(tmp_path / "t" / "efs") == describe_tree(layout.shared)
    disk = tmp_path / "t" / "cloud" / "disks" / "vol-1.img"
    assert disk.read_bytes() == (layout.cloud / "disks" / "vol-1.img").read_bytes()
    assert disk.stat().st_blocks * 512 < MIB


def test_without_disks_there_are_only_objects(tmp_path: Path) -> None:
    layout = DataDirectory(tmp_path / "d")
    layout.create()
    asyncio.run(fill_store(layout.state, 1))
    (layout.cloud / "disks").mkdir()
    (layout.cloud / "disks" / "vol-1.img").write_bytes(b"data")
    archive = back_up(layout, tmp_path / "b.tar", disks=False)
    restored = restore(archive, tmp_path / "r")
    assert not (restored.cloud / "disks").exists()
    assert restored.state.exists()


def make_archive(tmp_path: Path) -> Path:
    layout = DataDirectory(tmp_path / "d")
    layout.create()
    asyncio.run(fill_store(layout.state, 1))
    (layout.shared / "fs-1" / "a").mkdir(parents=True)
    (layout.shared / "fs-1" / "a" / "file").write_text("content")
    return back_up(layout, tmp_path / "b.tar")


def test_every_damage_is_found_and_nothing_is_restored(tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    whole = archive.read_bytes()
    target = tmp_path / "r"
    with tarfile.open(archive) as tar:
        members = [(member.offset_data, member.size, member.name) for member in tar]
    damaged = [whole[: len(whole) * part // 10] for part in range(10)]
    for offset, size, _ in members:
        if size:
            middle = offset + size // 2
            damaged.append(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    damaged.append(b"no archive at all, but long enough to be one" * 100)
    for content in damaged:
        archive.write_bytes(content)
        with pytest.raises(BackupError, match="Nothing was restored"):
            restore(archive, target)
        assert not target.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "d"]
    archive.write_bytes(whole)
    assert (restore(archive, target).shared / "fs-1" / "a" / "file").read_text() == "content"


def _member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


@pytest.mark.parametrize(
    "forged",
    [
        [_member("../outside", size=4)],
        [_member("/outside", size=4)],
        [_member("efs/../../outside", size=4)],
        [_member("n/1/file", size=4)],
        [_member("pki/link", kind=tarfile.SYMTYPE, link="/etc")],
        [_member("efs/link", kind=tarfile.SYMTYPE, link=".."), _member("efs/link/outside", size=4)],
        [_member("efs/link", kind=tarfile.LNKTYPE, link="../outside")],
        [_member("efs/link", kind=tarfile.LNKTYPE, link="/etc/passwd")],
        [_member("efs/file", size=4), _member("efs/file", size=4)],
        [_member("efs/what", kind=b"Z")],
    ],
)
def test_a_forged_archive_writes_nothing_outside(forged: list[tarfile.TarInfo], tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    (tmp_path / "outside").write_text("old")
    rebuilt = tmp_path / "forged.tar"
    with tarfile.open(archive) as old, tarfile.open(rebuilt, "w", format=tarfile.PAX_FORMAT) as new:
        for member in old:
            if member.name == "members.json":
                for info in forged:
                    new.addfile(info, io.BytesIO(b"evil") if info.size else None)
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(BackupError):
        restore(rebuilt, tmp_path / "r")
    assert (tmp_path / "outside").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_backup_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    whole = archive.read_bytes()
    archive.write_bytes(whole.replace(b'{"format":1,', b'{"format":9,', 1))
    with pytest.raises(BackupError, match="written by a newer version"):
        restore(archive, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def _as_file(path: Path) -> None:
    path.write_text("")


def _as_used_directory(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("")


def _as_link(path: Path) -> None:
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [(_as_file, "is not a directory"), (_as_used_directory, "is not empty"), (_as_link, "not a directory")],
)
def test_a_used_target_is_refused(make: Callable[[Path], None], sentence: str, tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    target = tmp_path / "r"
    make(target)
    before = sorted(map(str, tmp_path.rglob("*")))
    with pytest.raises(BackupError, match=sentence):
        restore_backup(archive, target, lambda *_: None)
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_an_empty_directory_may_be_the_target(tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    (tmp_path / "r").mkdir()
    assert restore(archive, tmp_path / "r").state.exists()


def test_an_existing_file_is_never_replaced(tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    before = archive.read_bytes()
    with pytest.raises(BackupError, match="exists already"):
        back_up(DataDirectory(tmp_path / "d"), archive)
    assert archive.read_bytes() == before


def test_a_file_that_is_written_meanwhile_is_reported(tmp_path: Path) -> None:
    layout = DataDirectory(make_archive(tmp_path).parent / "d")
    busy = layout.shared / "fs-1" / "a" / "log"
    busy.write_text("line\n")

    def append(*_: object) -> None:
        with busy.open("a") as file:
            file.write("line\n")

    summary = create_backup(layout, tmp_path / "busy.tar", disks=True, report=append)
    assert summary.unsteady == ("efs/fs-1/a/log",)
    copied = (restore(tmp_path / "busy.tar", tmp_path / "r").shared / "fs-1" / "a" / "log").read_text()
    assert copied.startswith("line\nline\n")
    assert busy.read_text().startswith(copied)


def test_a_file_with_the_inode_of_a_removed_one_is_no_link_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = DataDirectory(make_archive(tmp_path).parent / "d")
    place = layout.shared / "fs-1" / "a"
    (place / "early").write_text("old")
    os.link(place / "early", place / "later")
    real = ArchiveWriter.add_file

    def add_file(writer: ArchiveWriter, name: str, *given: Any, **more: Any) -> bool:
        if name.endswith("/file"):  # between the two names
            inode = (place / "early").stat().st_ino
            (place / "early").unlink()
            (place / "later").unlink()
            (place / "later").write_text("new")
            if (place / "later").stat().st_ino != inode:
                pytest.skip("this file system does not use the number of an inode again at once")
        return real(writer, name, *given, **more)

    monkeypatch.setattr(ArchiveWriter, "add_file", add_file)
    restored = restore(back_up(layout, tmp_path / "swapped.tar"), tmp_path / "r").shared / "fs-1" / "a"
    assert (restored / "later").read_text() == "new"


def test_a_linked_file_that_is_written_between_its_names_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = DataDirectory(make_archive(tmp_path).parent / "d")
    place = layout.shared / "fs-1" / "a"
    (place / "early").write_text("old")
    os.link(place / "early", place / "later")
    real = ArchiveWriter.add_file

    def add_file(writer: ArchiveWriter, name: str, *given: Any, **more: Any) -> bool:
        if name.endswith("/file"):  # between the two names
            (place / "early").write_text("newer")
        return real(writer, name, *given, **more)

    monkeypatch.setattr(ArchiveWriter, "add_file", add_file)
    summary = create_backup(layout, tmp_path / "linked.tar", disks=True, report=lambda *_: None)
    assert summary.unsteady == ("efs/fs-1/a/later",)
    restored = restore(tmp_path / "linked.tar", tmp_path / "r").shared / "fs-1" / "a"
    assert ((restored / "early").read_text(), (restored / "later").read_text()) == ("old", "newer")


def test_a_cluster_on_etcd_is_told_what_to_use(tmp_path: Path) -> None:
    (tmp_path / "d" / "pki").mkdir(parents=True)
    with pytest.raises(BackupError, match="etcdctl snapshot save"):
        back_up(DataDirectory(tmp_path / "d"), tmp_path / "b.tar")
    with pytest.raises(BackupError, match="no cluster in"):
        back_up(DataDirectory(tmp_path / "nothing"), tmp_path / "b.tar")
