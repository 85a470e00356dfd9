"""Every file of a data directory, damaged in every way, and then a start.

The directory is that of a cluster at work whose power was cut. Whatever is wrong with one file, `up` either
starts, or ends with one sentence that names the file. It never ends with a traceback, never hangs, and never
loses a disk's data or an object.

By default a sample; `VOLPLANE_DAMAGE_ALL=1` takes every file and every damage: an hour.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support import machine
from tests.support.power_cut import copy, cut_power, fill, is_pod_running, objects
from tests.support.up import Stuck, Up

pytestmark = [pytest.mark.root, pytest.mark.slow]

ALL = os.environ.get("VOLPLANE_DAMAGE_ALL") == "1"
UNREAD = (".log", ".corrupt", ".lock")  # not read at a start


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def garble(file: Path) -> None:
    """Other bytes here and there, the same in every run."""
    chance = random.Random(file.name)
    with file.open("r+b") as opened:
        size = min(file.stat().st_size, 1 << 20)
        for _ in range(max(4, size // 256)):
            opened.seek(chance.randrange(max(size, 1)))
            opened.write(bytes([chance.randrange(256)]))


def remove(file: Path) -> None:
    file.unlink()


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: tuple[Callable[[Path], None], ...] = (cut_short, empty, garble, remove, make_directory)


class Watched(Up):
    """Reads readiness from the output, because the `ready` file is among the damaged ones."""

    def is_ready(self) -> bool:
        return "ready in " in self.log()


class Stopped(Struct):
    """A directory whose power was cut, as often as it is wanted."""

    up: Up
    kept: Path  # its files
    files: list[str]
    objects: set[tuple[str, str]]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    place = tmp_path_factory.mktemp("damage")
    directory, kept = place / "d", place / "kept"
    directory.mkdir(0o700)
    kept.mkdir()
    up = Watched(nodes=1, directory=directory)
    up.output = place / "up.log"
    try:
        up.start()
        fill(up)
        made = objects(up)
        up.stop()  # now the databases hold what was in their logs
        up.start()
        up.wait("the pod is at work again", lambda: is_pod_running(up))
        cut_power(up)
        copy(directory, kept)
        yield Stopped(up, kept, sorted(_files(kept)), made)
    finally:
        if up.process is not None and up.process.poll() is None:
            up.kill()
        machine.purge(directory)
        shutil.rmtree(place)


def _files(directory: Path) -> Iterator[str]:
    for place, _, names in os.walk(directory):
        for name in names:
            file = Path(place) / name
            inside = str(file.relative_to(directory))
            if inside.startswith("kube-cache") or name.endswith(UNREAD):
                continue
            if file.is_file() and not file.is_symlink():
                yield inside


def damage(stopped: Stopped, file: str, how: Callable[[Path], None]) -> str:
    """Damage a file, start, run the checks for all starts, and return the output."""
    up, place = stopped.up, stopped.up.directory / file
    copy(stopped.kept, up.directory)
    how(place)
    up.output.write_bytes(b"")
    try:
        up.start()
    except Stuck:
        if up.process is None or up.process.poll() is None:
            raise
        _check_refusal(stopped, file)
    else:
        _check_start(stopped, file)
    said = up.output.read_text(errors="replace")
    assert "Traceback" not in said, said
    _check_disks(stopped, file)
    return said


def _check_refusal(stopped: Stopped, file: str) -> None:
    up = stopped.up
    assert up.process is not None
    last = up.log().splitlines()[-1]
    assert up.process.returncode == 1, up.log()
    assert last.startswith("volplane: "), up.log()
    assert re.sub("-(wal|shm)$", "", file) in last, up.log()  # of a database, its own name says enough
    assert not (left := up.leftovers()), left


def _check_start(stopped: Stopped, file: str) -> None:
    up = stopped.up
    if not file.startswith("state.db"):  # without its log it has what was in it at the last checkpoint
        assert objects(up) >= stopped.objects
    assert up.stop() == 0, up.log()
    assert not (left := up.leftovers()), left


def _check_disks(stopped: Stopped, file: str) -> None:
    """A start writes only to mounted disks: no disk is missing, and no unused one has changed."""
    for image in stopped.kept.glob("cloud/*/*.img"):
        inside = str(image.relative_to(stopped.kept))
        if inside != file:
            assert (stopped.up.directory / inside).stat().st_size == image.stat().st_size, inside


def pick(stopped: Stopped, pattern: str) -> str:
    return next(file for file in stopped.files if Path(file).match(pattern))


@pytest.mark.skipif(ALL, reason="it is among all of them")
@pytest.mark.parametrize(
    ("pattern", "how", "starts"),
    [
        ("n/*/containers/*/container.json", empty, True),
        ("n/*/pods/*/volumes/*/*/vol_data.json", garble, True),
        ("cluster.json", cut_short, True),
        ("cloud/disks/*.img", remove, True),
        ("pki/ca.key", cut_short, False),
        ("pki/apiserver.key", make_directory, False),
        ("state.db", empty, False),
        ("cloud/state.db", garble, False),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_a_damaged_file_is_survived_or_named(
    stopped: Stopped, pattern: str, how: Callable[[Path], None], starts: bool
) -> None:
    said = damage(stopped, pick(stopped, pattern), how)
    assert ("ready in" in said) == starts, said


@pytest.mark.skipif(not ALL, reason="VOLPLANE_DAMAGE_ALL=1 takes every file")
@pytest.mark.parametrize("how", DAMAGES)
def test_every_file_may_be_damaged(stopped: Stopped, how: Callable[[Path], None]) -> None:
    failed, started = {}, 0
    for file in stopped.files:
        try:
            said = damage(stopped, file, how)
            started += "ready in" in said
            print(how.__name__, file, "starts" if "ready in" in said else said.strip().splitlines()[-1])
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            failed[file] = str(error)
            print(how.__name__, file, "FAILED", error)
            if stopped.up.process is not None and stopped.up.process.poll() is None:
                stopped.up.kill()
            machine.purge(stopped.up.directory)
    refused = len(stopped.files) - started - len(failed)
    print(
        f"{how.__name__}: {len(stopped.files)} files, {started} starts, "
        f"{refused} refusals that name the file, {len(failed)} failed"
    )
    assert not failed
