"""A container's log: rotated by its writer, limited in size, and read as one file."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from volplane.node.api.log_files import LogFiles
from volplane.node.containers.launcher.log import ContainerLog, RotatingFile, list_rotated
from volplane.node.containers.logs import LogFile

SIZE, FILES = 10_000, 5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c" / "0.log"


def texts(data: bytes) -> list[str]:
    return [line.split(b" ", 3)[3].decode() for line in data.splitlines()]


def read_all(path: Path, tail: int | None = None, since: datetime | None = None) -> list[str]:
    files = LogFiles(str(path), follow=False)
    files.open(tail, since)
    data = b""
    while piece := files.read(4096):
        data += piece
    files.close()
    return texts(data)


def numbers(first: int, last: int) -> bytes:
    return b"".join(b"%05d %s\n" % (n, b"x" * 60) for n in range(first, last))


def test_no_more_than_the_allowed_files_of_the_allowed_size_are_ever_there(path: Path) -> None:
    log = ContainerLog(str(path), SIZE, FILES)
    for n in range(400):
        log.write("stdout", numbers(n * 10, n * 10 + 10))
        there = [path, *map(Path, list_rotated(str(path)))]
        assert len(there) <= FILES
        assert all(file.stat().st_size <= SIZE for file in there)
    shown = read_all(path)
    assert shown[-1].startswith("03999")
    assert [int(line[:5]) for line in shown] == list(range(4000 - len(shown), 4000))  # whole lines, in order
    assert sum(f.stat().st_size for f in there) > SIZE * (FILES - 2)


def test_rotated_files_are_named_as_a_kubelet_names_them(path: Path) -> None:
    log = ContainerLog(str(path), SIZE, FILES)
    log.write("stdout", numbers(0, 150))
    first, *more = [Path(old).name for old in list_rotated(str(path))]
    when = datetime.strptime(first, "0.log.%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    assert timedelta(0) <= datetime.now(UTC) - when < timedelta(minutes=1)
    assert all(name.startswith("0.log.") for name in more)


def test_logs_of_other_attempts_are_left_alone(path: Path) -> None:
    ContainerLog(str(path), SIZE, FILES).write("stdout", numbers(0, 1000))
    other = ContainerLog(str(path.parent / "10.log"), SIZE, FILES)
    other.write("stdout", numbers(0, 1000))
    strange = path.parent / "0.log.20261115-200000.gz"
    strange.touch()
    assert len(list_rotated(str(path))) == FILES - 1
    assert str(strange) not in list_rotated(str(path))


def test_a_line_longer_than_a_file_is_kept_in_parts(path: Path) -> None:
    log = ContainerLog(str(path), 64 << 10, 2)
    log.write("stdout", b"y" * 300_000 + b"\n")
    there = [path, *map(Path, list_rotated(str(path)))]
    assert sum(file.stat().st_size for file in there) <= 2 * (64 << 10)
    assert b" stdout F " in path.read_bytes()


@pytest.mark.parametrize("tail", [0, 1, 7, 130, 300, 9999])
def test_the_last_lines_are_found_across_files(path: Path, tail: int) -> None:
    log = ContainerLog(str(path), SIZE, FILES)
    log.write("stdout", numbers(0, 350))
    assert len(list_rotated(str(path))) == 3
    everything = read_all(path)
    assert len(everything) == 350
    assert read_all(path, tail) == everything[len(everything) - min(tail, 350) :]


def test_files_that_were_written_before_the_wanted_time_are_not_read(path: Path) -> None:
    log = ContainerLog(str(path), SIZE, FILES)
    log.write("stdout", numbers(0, 350))
    oldest, *_ = list_rotated(str(path))
    os.utime(oldest, (0, 0))
    shown = read_all(path, since=datetime.now(UTC) - timedelta(hours=1))
    assert not shown[0].startswith("00000")
    assert shown[-1].startswith("00349")


def test_whoever_follows_loses_and_repeats_nothing_while_files_are_rotated(path: Path) -> None:
    log = ContainerLog(str(path), SIZE, 50)
    log.write("stdout", numbers(0, 10))
    done = threading.Event()

    def write() -> None:
        for n in range(1, 300):
            log.write("stdout", numbers(n * 10, n * 10 + 10))
        done.set()

    files = LogFiles(str(path), follow=True)
    files.open(None, None)
    writer = threading.Thread(target=write)
    writer.start()
    data = b""
    while True:
        over = done.is_set()
        while piece := files.read(1000):
            data += piece
        if over:
            break
    writer.join()
    files.close()
    assert len(list_rotated(str(path))) > 20
    assert [int(line[:5]) for line in texts(data)] == list(range(3000))


def test_a_follower_whose_file_was_removed_goes_on_with_the_oldest_that_is_left(path: Path) -> None:
    log = ContainerLog(str(path), SIZE, 2)
    log.write("stdout", numbers(0, 10))
    files = LogFiles(str(path), follow=True)
    files.open(None, None)
    log.write("stdout", numbers(10, 1000))
    data = b""
    while piece := files.read(1000):
        data += piece
    files.close()
    seen = [int(line[:5]) for line in texts(data)]
    assert seen[0] == 0
    assert seen[-1] == 999
    assert seen == sorted(set(seen))


def test_a_built_in_image_s_log_is_rotated_too(path: Path) -> None:
    file = LogFile(str(path), max_size=SIZE, max_files=3)
    for n in range(1000):
        file.write(f"{n:05} {'z' * 100}")
    file.close()
    there = [path, *map(Path, list_rotated(str(path)))]
    assert len(there) == 3
    assert all(f.stat().st_size <= SIZE for f in there)
    assert read_all(path)[-1].startswith("00999")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


@pytest.mark.root
def test_on_a_full_disk_lines_are_lost_and_a_note_says_how_many_when_there_is_space(small_disk: Path) -> None:
    path = small_disk / "c" / "0.log"
    log = ContainerLog(str(path), 10 << 20, FILES)
    log.write("stdout", b"before\n")
    filler = fill(small_disk)
    for n in range(2000):
        log.write("stdout", b"%05d %s\n" % (n, b"x" * 60))
    filler.unlink()
    log.write("stdout", b"after\n")
    shown = read_all(path)
    note = next(line for line in shown if "lines of this log were lost: No space left on device" in line)
    kept = [line for line in shown if line[:5].isdigit() and len(line) == 66]
    assert shown[0] == "before"
    assert shown[-2:] == [note, "after"]
    assert int(note.split()[0]) + len(kept) == 2000


@pytest.mark.root
def test_a_log_that_could_not_be_made_on_a_full_disk_is_made_later(small_disk: Path) -> None:
    filler = fill(small_disk)
    for n in range(1000):  # and no inode for a directory either
        with suppress(OSError):
            (small_disk / f"empty{n}").touch()
    file = RotatingFile(str(small_disk / "c" / "0.log"), SIZE, FILES)
    file.append([b"2026-11-15T20:00:00.000000000Z stdout F lost\n"])
    filler.unlink()
    for empty in small_disk.glob("empty*"):
        empty.unlink()
    file.append([b"2026-11-15T20:00:01.000000000Z stdout F kept\n"])
    shown = read_all(small_disk / "c" / "0.log")
    assert shown[-1] == "kept"
    assert "1 lines of this log were lost" in shown[0] or shown[0] == "lost"
    file.close()
