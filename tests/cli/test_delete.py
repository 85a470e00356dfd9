"""A cluster is deleted: nothing starts meanwhile, and an interrupted deletion can be repeated."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tests.cli.test_lifecycle import hold
from volplane.base.locks import find_holder
from volplane.cli.delete import command
from volplane.cli.error import CommandError
from volplane.cluster.data_directory import DataDirectory


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDirectory:
    """The directory of a stopped cluster."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")
    made = DataDirectory(tmp_path / "cluster")
    made.create()
    for path in (made.lock, made.supervisor_lock, made.state, made.cloud / "disk"):
        path.touch()
    (made.directory / "link").symlink_to(made.cloud)
    return made


def delete(layout: DataDirectory) -> Result:
    return CliRunner().invoke(command, ["--yes", "--data-dir", str(layout.directory)])


def test_it_is_locked_until_everything_else_is_deleted(
    layout: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = shutil.rmtree

    def watch(path: Path, *more: Any, **other: Any) -> None:
        seen.append((path.name, find_holder(str(layout.lock))))
        real(path, *more, **other)

    monkeypatch.setattr(shutil, "rmtree", watch)
    done = delete(layout)
    assert done.exit_code == 0, done.output
    assert {name for name, _ in seen} >= {"cloud", "run", "n"}
    assert {holder for _, holder in seen} == {os.getpid()}
    assert not layout.directory.exists()


def test_a_deletion_that_fails_can_be_repeated(
    layout: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        done = delete(layout)
    assert isinstance(done.exception, CommandError)
    assert "cannot delete" in str(done.exception)
    assert str(done.exception).endswith("Device or resource busy")
    assert layout.lock.exists()
    assert find_holder(str(layout.lock)) is None
    assert delete(layout).exit_code == 0
    assert not layout.directory.exists()


def test_a_cluster_that_was_started_again_is_not_deleted(
    layout: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start comes between the answer to the question and the deletion."""
    holders: list[subprocess.Popen[bytes]] = []

    def start_again(*_: Any, **__: Any) -> None:
        if not holders:
            holders.append(hold(layout.lock))

    monkeypatch.setattr(click, "echo", start_again)
    done = delete(layout)
    holders[0].kill()
    holders[0].communicate()
    assert isinstance(done.exception, CommandError)
    assert "was started again, and is not deleted" in str(done.exception)
    assert layout.state.exists()
    assert (layout.cloud / "disk").exists()
