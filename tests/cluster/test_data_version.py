"""Files of older versions are migrated step by step; files of newer versions are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support.up import VOLPLANE
from volplane.cluster import data_version
from volplane.cluster.data_directory import DataDirectory, SavedCluster
from volplane.cluster.data_version import DataVersion, Migration, migrate, read_version
from volplane.cluster.errors import UnusableDataDirectory

NEWEST = data_version.NEWEST


def make_used(directory: Path, version: int | None = None) -> DataDirectory:
    layout = DataDirectory(directory)
    layout.create()
    layout.save(SavedCluster(port=1))
    layout.lock.touch()
    if version is not None:
        layout.write(layout.version, DataVersion(version, "9.9.9"))
    return layout


def append_step(layout: DataDirectory, step: str) -> None:
    with (layout.directory / "steps").open("a") as file:
        file.write(f"{step}\n")


STEPS = tuple(
    Migration(version, f"step {version}", partial(append_step, step=str(version))) for version in (1, 2, 3)
)


@pytest.mark.parametrize(("version", "wanted"), [(None, "123"), (0, "123"), (1, "23"), (2, "3"), (3, "")])
def test_a_directory_is_migrated_from_its_version_on(
    version: int | None, wanted: str, tmp_path: Path
) -> None:
    layout = make_used(tmp_path / "d", version)
    migrate(layout, STEPS)
    steps = layout.directory / "steps"
    assert (steps.read_text().replace("\n", "") if wanted else steps.exists() or "") == wanted
    assert read_version(layout).version == 3
    migrate(layout, STEPS)
    assert (steps.read_text().replace("\n", "") if wanted else "") == wanted


def test_a_new_directory_has_nothing_to_migrate(tmp_path: Path) -> None:
    layout = DataDirectory(tmp_path / "d")
    layout.create()
    migrate(layout, STEPS)
    assert not (layout.directory / "steps").exists()
    assert read_version(layout).version == 3


KILLED = """
import sys
from tests.cluster.test_data_version import STEPS
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.data_version import migrate
migrate(DataDirectory(sys.argv[1]), STEPS)
"""


@pytest.mark.parametrize(
    ("failpoint", "version", "steps"),
    [
        ("migration:half", 0, "1 123"),
        ("migration:done", 1, "1 23"),
        ("migration:half#2", 1, "12 23"),
        ("migration:done#3", 3, "123 "),
    ],
)
def test_a_killed_migration_continues(failpoint: str, version: int, steps: str, tmp_path: Path) -> None:
    layout = make_used(tmp_path / "d")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(layout.directory)],
        env={**os.environ, "VOLPLANE_FAILPOINT": failpoint, "PYTHONPATH": str(Path.cwd())},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert read_version(layout).version == version
    migrate(layout, STEPS)
    assert (layout.directory / "steps").read_text().replace("\n", "") == steps.replace(" ", "")


def test_an_unreadable_version_is_not_guessed(tmp_path: Path) -> None:
    layout = make_used(tmp_path / "d")
    layout.version.write_text("half")
    with pytest.raises(UnusableDataDirectory, match=r"version\.json cannot be read"):
        migrate(layout)
    assert layout.version.read_text() == "half"


def _list_files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.root
@pytest.mark.parametrize(
    "words",
    [
        ("up",),
        ("up", "--detach"),
        ("up", "--separate"),
        ("start",),
        ("fsck",),
        ("rotate-certificates", "--yes"),
    ],
)
def test_every_verb_refuses_files_of_a_newer_version(words: tuple[str, ...], tmp_path: Path) -> None:
    layout = make_used(tmp_path / "d", NEWEST + 1)
    before = _list_files(layout.directory)
    done = subprocess.run(
        [VOLPLANE, *words, "--data-dir", str(layout.directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"has files of version {NEWEST + 1}, written by Volplane 9.9.9" in done.stderr
    assert "Nothing was changed" in done.stderr
    assert _list_files(layout.directory) == before


def upgrade_check(layout: DataDirectory, code: int) -> dict[str, object]:
    done = subprocess.run(
        [VOLPLANE, "upgrade-check", "-o", "json", "--data-dir", str(layout.directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


def test_a_newer_version_is_in_the_way_of_an_upgrade(tmp_path: Path) -> None:
    layout = make_used(tmp_path / "d", NEWEST + 1)
    report = upgrade_check(layout, 3)
    assert report["lastDataVersion"] == NEWEST + 1
    assert report["lastProgram"] == "9.9.9"
    (finding,) = report["findings"]  # type: ignore[misc]
    assert finding["about"] == "directory"  # type: ignore[has-type]
