"""A cluster in the background: up --detach, status, logs, list, stop, start, delete."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import VOLPLANE, wait_until
from volplane.base.locks import find_holder, lock

PATIENCE = 240.0
HOLD = "import sys; from volplane.base.locks import lock; lock(sys.argv[1]); print(flush=True); input()"


def hold(path: Path) -> subprocess.Popen[bytes]:
    """Another process that holds a lock."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    return holder


class Machine:
    """A home directory with clusters."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {**os.environ, "HOME": str(home), "KUBECONFIG": ""}

    def run(self, *words: str, code: int = 0, stdin: str = "") -> str:
        done = subprocess.run(
            [VOLPLANE, *words],
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def status(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [VOLPLANE, "status", "-o", "json", *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def kubectl(self, directory: Path, *words: str) -> str:
        argv = ["kubectl", "--kubeconfig", str(directory / "kubeconfig"), *words]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def machine() -> Iterator[Machine]:
    yield from make_machine()


def make_machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="vp-") as home:
        made = Machine(Path(home))
        yield made
        for directory in Path(home).glob(".volplane*"):
            made.run("stop", "--data-dir", str(directory))


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.peer("kubectl")
def test_a_cluster_lives_in_the_background(machine: Machine) -> None:
    """Started, killed, restarted by its supervisor, stopped, started again with its options, deleted."""
    directory = machine.home / ".volplane-dev"
    shown = machine.run("up", "--name", "dev", "--nodes", "1", "--detach", "--update-kubeconfig")
    assert "ready" in shown
    assert f"export KUBECONFIG={directory}/kubeconfig" in shown
    assert subprocess.check_output(
        ["kubectl", "config", "current-context"], env=machine.env, text=True
    ).split() == ["volplane-dev"]
    machine.kubectl(directory, "create", "configmap", "kept")
    first = machine.status("--name", "dev")
    assert first["phase"] == "Running"
    assert first["supervisor"] > 0
    assert "runs already" in machine.run("up", "--name", "dev", "--detach", code=1)
    assert "dev" in machine.run("list")
    assert "ready in" in machine.run("logs", "--name", "dev")
    assert len(machine.run("logs", "--name", "dev", "--tail", "2").splitlines()) == 2
    assert "there are logs of: up" in machine.run("logs", "scheduler", "--name", "dev", code=1)

    os.kill(first["pid"], signal.SIGKILL)

    def is_back() -> bool:
        status = machine.status("--name", "dev")
        return bool(status["phase"] == "Running" and status["pid"] != first["pid"])

    wait_until("the supervisor has restarted it", is_back, 120)
    assert machine.kubectl(directory, "get", "configmap", "kept", "-o", "name").strip() == "configmap/kept"

    assert "stopped" in machine.run("stop", "--name", "dev")
    assert machine.run("status", "--name", "dev", code=3).startswith("Stopped")
    assert "does not run" in machine.run("stop", "--name", "dev")
    machine.run("start", "--name", "dev")
    assert machine.kubectl(directory, "get", "nodes", "-o", "name").split() == ["node/worker-1"]
    assert machine.kubectl(directory, "get", "configmap", "kept", "-o", "name").strip() == "configmap/kept"

    assert "Delete" in machine.run("delete", "--name", "dev", stdin="n\n", code=130)
    assert machine.status("--name", "dev")["phase"] == "Running"
    assert "removed the context volplane-dev" in machine.run("delete", "--name", "dev", "--yes")
    assert not directory.exists()
    assert json.loads(machine.run("list", "-o", "json")) == []


@pytest.mark.root
@pytest.mark.slow
def test_a_first_start_that_fails_leaves_nothing(machine: Machine) -> None:
    shown = machine.run("up", "--nodes", "1", "--detach", "--port", "1", "--wait", "0.01s", code=1)
    assert "has not started: not ready within 0.01 seconds" in shown
    assert not (machine.home / ".volplane").exists()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("status",), 1, "no cluster in {home}/.volplane: start one with volplane up"),
        (("status", "--name", "x"), 1, "start one with volplane up --name x"),
        (("stop", "--data-dir", "/nonexistent/d"), 1, "start one with volplane up --data-dir /nonexistent/d"),
        (("start",), 1, "no cluster"),
        (("start", "node/worker-1"), 1, "no cluster runs in"),
        (("logs",), 1, "no cluster"),
        (("delete", "--yes"), 1, "no cluster"),
        (("env",), 1, "no cluster"),
        (("status", "--name", "a", "--data-dir", "b"), 2, "--name and --data-dir exclude each other"),
        (("status", "--name", "Dev"), 2, "use lower-case letters"),
        (("completion", "tcsh"), 2, "'tcsh' is not one of"),
    ],
)
@pytest.mark.root
def test_every_verb_says_what_is_wrong(
    machine: Machine, words: tuple[str, ...], code: int, sentence: str
) -> None:
    assert sentence.format(home=machine.home) in machine.run(*words, code=code)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_verbs_and_options(machine: Machine, shell: str) -> None:
    assert "_VOLPLANE_COMPLETE" in machine.run("completion", shell)
    asked = {
        "bash": {"COMP_WORDS": "volplane sta", "COMP_CWORD": "1"},
        "zsh": {"COMP_WORDS": "volplane sta", "COMP_CWORD": "1"},
        "fish": {"COMP_WORDS": "volplane sta", "COMP_CWORD": "sta"},
    }[shell]
    machine.env |= {**asked, "_VOLPLANE_COMPLETE": f"{shell}_complete"}
    shown = machine.run()
    assert "status" in shown
    assert "start" in shown


def test_a_lock_is_seen_while_its_holder_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert find_holder(str(path)) is None
    held = lock(str(path))
    assert find_holder(str(path)) == os.getpid()
    os.close(held)
    assert find_holder(str(path)) is None
    holder = hold(path)
    assert find_holder(str(path)) == holder.pid
    holder.kill()
    holder.communicate()
    assert find_holder(str(path)) is None


def test_a_log_is_followed_over_its_rotation_until_the_cluster_stops(tmp_path: Path) -> None:
    log = tmp_path / "run" / "up.log"
    log.parent.mkdir()
    log.write_text("1\n2\n")
    cluster = hold(tmp_path / "up.lock")
    argv = [VOLPLANE, "logs", "-f", "--tail", "1", "--data-dir", str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "2\n"
        with log.open("a") as file:
            file.write("3\n")
            file.flush()
            assert following.stdout.readline() == "3\n"
            log.rename(log.with_name("up.log.old"))
            file.write("4\n")
        log.write_text("5\n")
        assert [following.stdout.readline() for _ in range(2)] == ["4\n", "5\n"]
        descriptors = Path(f"/proc/{following.pid}/fd").iterdir()
        opened = [target for each in descriptors if "up.log" in (target := os.readlink(each))]
        with log.open("a") as file:
            file.write("6\n")
        cluster.kill()
        cluster.communicate()
        assert following.stdout.read() == "6\n"
        assert following.wait(60) == 0
    assert opened == [str(log)]  # the rotated file is closed
