"""Ctrl-C in a verb that starts a cluster: it cleans up, says so, and exits with 130."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.cli.test_lifecycle import Machine, make_machine
from tests.support import machine as leftovers
from tests.support.up import VOLPLANE, wait_until
from volplane.base.locks import find_holder

pytestmark = [pytest.mark.root, pytest.mark.slow]
PATIENCE = 240.0


@pytest.fixture
def machine() -> Iterator[Machine]:
    yield from make_machine()


def begin(machine: Machine, *words: str) -> subprocess.Popen[str]:
    """A verb in a process group of its own, as a shell starts it in the foreground: in the background, as the
    tests may run, it has SIGINT ignored.
    """
    return subprocess.Popen(
        ["env", "--default-signal=INT", VOLPLANE, *words],
        env={**machine.env, "TMPDIR": str(machine.home), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def press_ctrl_c(process: subprocess.Popen[str]) -> tuple[int, str]:
    """As the terminal does, to the whole process group. Returns the exit code and the rest of the output."""
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    assert any(text in line for line in process.stdout)


@pytest.mark.parametrize("moment", ["Starting a cluster", "ready after", "The proof"])
def test_the_demo_removes_everything(machine: Machine, moment: str) -> None:
    with begin(machine, "demo") as process:
        read_until(process, moment)
        code, output = press_ctrl_c(process)
    assert code == 130, output
    last = output.splitlines()[-1]
    assert last == "Stopped before its end. No mount, loop device, network or process of the demo is left."
    assert leftovers.leftovers(machine.home) == {}
    assert list(machine.home.iterdir()) == []


def has_written(directory: Path) -> bool:
    return (directory / "start.json").exists()


def has_begun(directory: Path) -> bool:
    return find_holder(str(directory / "up.lock")) is not None


@pytest.mark.parametrize("moment", [has_written, has_begun])
def test_a_first_start_in_the_background_leaves_nothing(
    machine: Machine, moment: Callable[[Path], bool]
) -> None:
    directory = machine.home / ".volplane"
    code, output = interrupt(machine, ("up", "--nodes", "1", "--detach"), lambda: moment(directory))
    assert code == 130, output
    assert "stopped before it was ready, and removed" in output
    assert not directory.exists()
    assert leftovers.leftovers(machine.home) == {}


def test_a_cluster_whose_start_is_interrupted_keeps_its_data(machine: Machine) -> None:
    directory = machine.home / ".volplane"
    machine.run("up", "--nodes", "1", "--detach")
    machine.run("stop")
    code, output = interrupt(machine, ("start",), lambda: has_begun(directory))
    assert code == 130, output
    assert output.rstrip().endswith("stopped before it was ready")
    assert machine.run("status", code=3).startswith("Stopped")
    assert leftovers.leftovers(machine.home) == {}
    machine.run("start")
    machine.run("delete", "--yes")


def interrupt(machine: Machine, words: Sequence[str], moment: Callable[[], bool]) -> tuple[int, str]:
    with begin(machine, *words) as process:
        wait_until(f"{words} has come so far", moment, PATIENCE)
        return press_ctrl_c(process)
