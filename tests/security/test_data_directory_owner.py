"""Which directory may be a data directory, and what happens to one that is there already: nothing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.up import VOLPLANE, Up, wait_until
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import UnusableDataDirectory

pytestmark = pytest.mark.root


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_that_is_made_is_for_its_owner_only(tmp_path: Path) -> None:
    assert DataDirectory(tmp_path / "new").create()
    assert mode(tmp_path / "new") == 0o700


@pytest.mark.parametrize("before", [0o755, 0o750, 0o711])
def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path, before: int) -> None:
    place = tmp_path / "there"
    place.mkdir()
    place.chmod(before)
    (place / "lost+found").mkdir()
    assert not DataDirectory(place).create()
    assert mode(place) == before
    # What is written into it is for its owner only all the same.
    assert {mode(inside) for inside in place.iterdir() if inside.name != "lost+found"} == {0o700}


@pytest.mark.parametrize("before", [0o777, 0o1777, 0o757])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, before: int) -> None:
    place = tmp_path / "public"
    place.mkdir()
    place.chmod(before)
    with pytest.raises(
        UnusableDataDirectory, match=rf"other users can write to it \(mode {before:04o}\).* chmod go-w"
    ):
        DataDirectory(place).create()
    assert mode(place) == before
    assert not list(place.iterdir())


def test_a_directory_of_another_group_that_can_write_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "group"
    place.mkdir()
    os.chown(place, -1, 4242)
    place.chmod(0o770)
    with pytest.raises(UnusableDataDirectory, match="other users can write to it"):
        DataDirectory(place).create()


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, 4242, 4242)
    with pytest.raises(UnusableDataDirectory, match="it belongs to user 4242"):
        DataDirectory(place).create()
    assert place.stat().st_uid == 4242


@pytest.mark.parametrize("name", ["run", "n", "cloud", "pki", "shared"])
def test_a_directory_with_things_of_others_at_our_places_is_refused(tmp_path: Path, name: str) -> None:
    """As / has, with its /run."""
    (tmp_path / name).mkdir(0o755)
    (tmp_path / name / "theirs.pid").write_text("1")
    with pytest.raises(
        UnusableDataDirectory, match=f"{tmp_path}/{name} exists and was not created by Volplane"
    ):
        DataDirectory(tmp_path).create()
    assert mode(tmp_path / name) == 0o755
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_second_start_finds_its_own(tmp_path: Path) -> None:
    layout = DataDirectory(tmp_path / "d")
    layout.create()
    os.close(layout.acquire_lock())
    assert not layout.create()


@pytest.mark.slow
def test_up_says_it_in_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [VOLPLANE, "up", "--data-dir", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"volplane: cannot use {tmp_path} as data directory: other users can write")
    assert mode(tmp_path) == 0o777
    assert not list(tmp_path.iterdir())


# --- a start that hangs


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A start that hangs: what it reads gives nothing and does not end."""
    place = tmp_path_factory.mktemp("hanging")
    up = Up(nodes=0, directory=place / "d")
    up.directory.mkdir(0o700)
    up.output = place / "up.log"
    with up:
        pass
    (up.directory / "pki" / "sa.key").unlink()
    os.mkfifo(up.directory / "pki" / "sa.key")
    yield up
    if up.process is not None and up.process.poll() is None:
        up.kill()
    machine.purge(place)


@pytest.mark.slow
def test_an_interrupt_ends_a_start_that_hangs(hanging: Up) -> None:
    hanging.start(wait=False)
    wait_until("it has begun", lambda: (hanging.directory / "up.lock").read_text() == str(hanging.pid))
    hanging.send(signal.SIGINT)
    assert hanging.process is not None
    assert hanging.process.wait(90) == 1
    assert "Traceback" not in hanging.log()


@pytest.mark.slow
def test_a_second_interrupt_ends_any_start_at_once(hanging: Up) -> None:
    hanging.start(wait=False)
    wait_until("it has begun", lambda: (hanging.directory / "up.lock").read_text() == str(hanging.pid))
    process = hanging.process
    assert process is not None

    def asked_again() -> bool:
        process.send_signal(signal.SIGINT)  # two signals in quick succession may count as one
        return process.poll() is not None

    wait_until("it has ended", asked_again)
    assert process.returncode == 130
