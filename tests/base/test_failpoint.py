"""Fail points kill a process exactly where they are set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from volplane.base import failpoint
for _ in range(3):
    failpoint.hit("write:create:pods:before")
    failpoint.hit("write:create:pods:after")
"""


def run(**environment: str) -> int:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("VOLPLANE_FAILPOINT")}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=clean | environment, check=False).returncode


def test_without_the_variable_nothing_happens() -> None:
    assert run() == 0


def test_the_process_is_killed_at_the_named_hit(tmp_path: Path) -> None:
    passed = tmp_path / "log"
    code = run(VOLPLANE_FAILPOINT="write:create:pods:after#2", VOLPLANE_FAILPOINT_LOG=str(passed))
    assert code == -signal.SIGKILL
    assert passed.read_text().splitlines() == ["write:create:pods:before", "write:create:pods:after"] * 2


def test_nothing_counts_before_its_time(tmp_path: Path) -> None:
    point, began = "write:create:pods:before", tmp_path / "began"
    assert run(VOLPLANE_FAILPOINT=point, VOLPLANE_FAILPOINT_AFTER=str(began)) == 0
    began.touch()
    assert run(VOLPLANE_FAILPOINT=point, VOLPLANE_FAILPOINT_AFTER=str(began)) == -signal.SIGKILL


def test_every_process_may_have_a_log_of_its_own(tmp_path: Path) -> None:
    assert run(VOLPLANE_FAILPOINT_LOG=str(tmp_path / "log.%p")) == 0
    assert run(VOLPLANE_FAILPOINT_LOG=str(tmp_path / "log.%p")) == 0
    assert len([*tmp_path.glob("log.*")]) == 2


def test_another_name_kills_nobody() -> None:
    assert run(VOLPLANE_FAILPOINT="write:create:pods") == 0


def test_a_file_may_name_the_point_and_only_one_dies_of_it(tmp_path: Path) -> None:
    file = tmp_path / "point"
    assert run(VOLPLANE_FAILPOINT_FILE=str(file)) == 0
    file.write_text("write:create:pods:after")
    assert run(VOLPLANE_FAILPOINT_FILE=str(file)) == -signal.SIGKILL
    assert not file.exists()
    assert run(VOLPLANE_FAILPOINT_FILE=str(file)) == 0


def test_a_file_that_names_another_point_stays(tmp_path: Path) -> None:
    file = tmp_path / "point"
    file.write_text("write:create:pods")
    assert run(VOLPLANE_FAILPOINT_FILE=str(file)) == 0
    assert file.exists()


def test_a_file_may_name_several_points_for_one_death_after_the_other(tmp_path: Path) -> None:
    file, log = tmp_path / "point", tmp_path / "log"
    file.write_text("write:create:pods:before\nwrite:create:pods:after")
    where = {"VOLPLANE_FAILPOINT_FILE": str(file), "VOLPLANE_FAILPOINT_LOG": str(log)}
    assert run(**where) == -signal.SIGKILL
    assert file.read_text() == "write:create:pods:after"
    assert run(**where) == -signal.SIGKILL
    assert log.read_text().splitlines() == ["write:create:pods:before"] * 2 + ["write:create:pods:after"]
    assert [p.name for p in tmp_path.iterdir()] == ["log"]
    assert run(**where) == 0
