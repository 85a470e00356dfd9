"""Atomic updates of a volume's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from volplane.volumes.atomic_writer import InvalidVolumePath, VolumeFile, write_files


def shown(directory: Path) -> dict[str, bytes]:
    """The files that a container sees, without the writer's own names."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for top in directory.iterdir()
        if not top.name.startswith("..")
        for path in ([top] if top.is_file() else top.rglob("*"))
        if path.is_file()
    }


def test_names_are_links_through_the_data_link(tmp_path: Path) -> None:
    assert write_files(str(tmp_path), {"a": VolumeFile(b"1"), "sub/b": VolumeFile(b"2")})
    assert shown(tmp_path) == {"a": b"1", "sub/b": b"2"}
    assert os.readlink(tmp_path / "a") == "..data/a"
    assert os.readlink(tmp_path / "sub") == "..data/sub"
    assert os.readlink(tmp_path / "..data").startswith("..20")


def test_a_change_replaces_everything_and_leaves_no_old_files(tmp_path: Path) -> None:
    write_files(str(tmp_path), {"a": VolumeFile(b"1"), "old": VolumeFile(b"x")})
    before = os.readlink(tmp_path / "..data")
    assert write_files(str(tmp_path), {"a": VolumeFile(b"2"), "new": VolumeFile(b"y")})
    assert shown(tmp_path) == {"a": b"2", "new": b"y"}
    assert os.readlink(tmp_path / "..data") != before
    assert sorted(os.listdir(tmp_path)) == sorted([os.readlink(tmp_path / "..data"), "..data", "a", "new"])


def test_the_same_content_is_not_written_again(tmp_path: Path) -> None:
    write_files(str(tmp_path), {"a": VolumeFile(b"1", 0o600)})
    before = os.readlink(tmp_path / "..data")
    assert not write_files(str(tmp_path), {"a": VolumeFile(b"1", 0o600)})
    assert os.readlink(tmp_path / "..data") == before
    assert write_files(str(tmp_path), {"a": VolumeFile(b"1", 0o644)})


def test_what_a_crash_left_half_done_is_finished(tmp_path: Path) -> None:
    write_files(str(tmp_path), {"a": VolumeFile(b"1"), "b": VolumeFile(b"2")})
    (tmp_path / "b").unlink()
    os.symlink("nowhere", tmp_path / "..data_tmp")
    (tmp_path / "..2020_01_01_00_00_00.123").mkdir()
    assert not write_files(str(tmp_path), {"a": VolumeFile(b"1"), "b": VolumeFile(b"2")})
    assert shown(tmp_path) == {"a": b"1", "b": b"2"}
    assert write_files(str(tmp_path), {"a": VolumeFile(b"3")})
    assert "..2020_01_01_00_00_00.123" not in os.listdir(tmp_path)


def test_modes_and_groups(tmp_path: Path) -> None:
    write_files(str(tmp_path), {"a": VolumeFile(b"", 0o400)})
    assert os.stat(tmp_path / "a").st_mode & 0o777 == 0o400


@pytest.mark.root
def test_a_volume_with_a_group_is_readable_by_it(tmp_path: Path) -> None:
    write_files(str(tmp_path), {"a": VolumeFile(b"", 0o600, owner=1000)}, group=2000)
    info = os.stat(tmp_path / "a")
    assert (info.st_uid, info.st_gid, info.st_mode & 0o777) == (1000, 2000, 0o640)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "..data", "..x"])
def test_a_path_cannot_leave_the_volume(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidVolumePath):
        write_files(str(tmp_path), {path: VolumeFile(b"")})
