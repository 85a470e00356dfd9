"""A cluster as a service of systemd: the unit is valid, and does what systemd would do with it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path

import pytest

from tests.cli.test_lifecycle import Machine, make_machine
from tests.support import machine
from tests.support.up import VOLPLANE, wait_until
from volplane.cluster import lifecycle
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.service import build_unit, choose_unit


@pytest.fixture
def home() -> Iterator[Machine]:
    yield from make_machine()


def verify(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.peer("systemd-analyze")
@pytest.mark.parametrize("user", [False, True])
def test_systemd_accepts_the_unit_also_with_odd_names(user: bool, tmp_path: Path) -> None:
    directory = tmp_path / 'a "quoted" 50%name $HOME'
    directory.mkdir()
    layout = DataDirectory(directory)
    unit = choose_unit(layout, str(tmp_path), user=user)
    arguments = ['--driver-command=run "$X" \\ 100%', "--nodes=2"]
    text = build_unit(
        layout,
        ["/bin/true"],
        arguments,
        environment={"HOME": "/root"},
        working_directory=str(directory),
        user=user,
    )
    unit.path.write_text(text)
    verify(unit.path)
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.removeprefix("ExecStart=").replace("$$", "$").replace("%%", "%"), posix=True)
    assert words[:2] == ["/bin/true", "up"]


class Unit:
    """What systemd does with a unit, in a few lines."""

    def __init__(self, path: Path) -> None:
        parser = RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        text = path.read_text()
        parser.read_string(text)
        self.section = parser["Service"]
        lines = [line for line in text.splitlines() if line.startswith("Environment=")]
        self.env = dict(shlex.split(line.removeprefix("Environment="))[0].split("=", 1) for line in lines)

    def start(self) -> subprocess.Popen[bytes]:
        kind, _, log = self.section["StandardOutput"].partition(":")
        assert kind == "append"
        with open(log, "ab") as output:
            return subprocess.Popen(
                shlex.split(self.section["ExecStart"]),
                env=self.env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.peer("kubectl", "systemd-analyze")
def test_a_service_is_installed_killed_restarted_and_removed(home: Machine) -> None:
    units = home.home / "units"
    directory = home.home / ".volplane-dev"
    layout = DataDirectory(directory)
    unit_dir = ("--name", "dev", "--unit-dir", str(units))
    shown = home.run("service", "install", *unit_dir, "--", "--nodes", "1")
    unit = units / "volplane-dev.service"
    assert f"wrote {unit}" in shown
    assert "systemctl enable --now volplane-dev.service" in shown
    verify(unit)
    process = Unit(unit).start()

    def is_ready() -> bool:
        found = lifecycle.find_processes(layout)
        return found.phase is lifecycle.ClusterPhase.RUNNING and found.pid == process.pid

    try:
        wait_until("the service is ready", is_ready, 60)
        home.kubectl(directory, "create", "configmap", "kept")
        assert home.status("--name", "dev")["supervisor"] == 0
        assert "ready in" in home.run("logs", "--name", "dev")
        process.kill()
        process.wait()
        process = Unit(unit).start()
        wait_until("the service is ready again", is_ready, 60)
        assert home.kubectl(directory, "get", "configmap", "kept", "-o", "name").strip() == "configmap/kept"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, "systemd would start it again"
        assert not machine.leftovers(directory)
    finally:
        process.kill()
        process.wait()
    assert f"removed {unit}" in home.run("service", "uninstall", *unit_dir)
    assert not unit.exists()
    assert layout.state.exists()


@pytest.mark.root
def test_what_is_wrong_with_a_service_is_said(home: Machine) -> None:
    units = home.home / "units"
    there = ("--unit-dir", str(units))
    assert "options of up: No such option" in home.run("service", "install", *there, "--", "--colour", code=2)
    assert "--detach is not for a service" in home.run("service", "install", *there, "--", "--detach", code=2)
    assert not units.exists()
    assert "no cluster in" in home.run("service", "uninstall", *there, code=1)
    home.run("service", "install", *there)
    assert "is a service: remove it first" not in home.run("status", code=3)
    (units / "volplane.service").write_text("[Service]\nExecStart=/bin/true\n")
    for verb in ("install", "uninstall"):
        assert "was not written by Volplane" in home.run("service", verb, *there, code=1)
    (units / "volplane.service").unlink()
    assert "is not a service" in home.run("service", "uninstall", *there, code=1)
    assert "ExecStart=" in home.run("service", "install", "--print", "--name", "other")
    assert not (home.home / ".volplane-other").exists()
    home.env["HOME"] = str(home.home)
    os.makedirs(home.home / ".config" / "systemd" / "user")
    home.run("service", "install", "--user", "--unit-dir", str(home.home / ".config" / "systemd" / "user"))
    assert "volplane service uninstall --user" in home.run("delete", "--yes", code=1)


SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$HOME/asked"
case "$*" in *"$REFUSED"*) echo "because of me" >&2; exit 1;; esac
"""
WITH_SYSTEMD = 'mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && exec "$@"'


class MachineWithSystemd(Machine):
    """Its systemd notes what it is asked for, and does nothing."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        program = home / "bin" / "systemctl"
        program.parent.mkdir()
        program.write_text(SYSTEMCTL)
        program.chmod(0o755)
        self.env |= {"PATH": f"{program.parent}:{self.env['PATH']}", "REFUSED": "nothing"}

    def ask(self, *words: str, code: int = 0, **env: str) -> str:
        done = subprocess.run(
            ["unshare", "--mount", "/bin/sh", "-c", WITH_SYSTEMD, "sh", VOLPLANE, *words],
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def take_asked(self) -> list[str]:
        """What systemctl was asked for since the last call."""
        file = self.home / "asked"
        words = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return words


@pytest.mark.root
def test_systemd_is_asked_and_its_refusals_are_said(tmp_path: Path) -> None:
    machine, name = MachineWithSystemd(tmp_path), "volplane.service"
    unit = tmp_path / ".config" / "systemd" / "user" / name
    shown = machine.ask("service", "install", "--user", "--no-start")
    assert f"{name} starts with the machine" in shown
    assert machine.take_asked() == ["--user daemon-reload", f"--user enable {name}"]
    shown = machine.ask("service", "install", "--user", "--wait", "0.1s", code=1)
    assert f"{name} is not ready within 0.1 seconds; see volplane logs" in shown
    assert machine.take_asked()[-1] == f"--user restart {name}"
    shown = machine.ask("service", "install", "--user", code=1, REFUSED="restart")
    assert f"systemctl --user restart {name} failed: because of me" in shown
    assert f"start it with systemctl --user start {name}" in machine.ask("start", code=1)
    shown = machine.ask("service", "uninstall", "--user", code=1, REFUSED="disable")
    assert f"systemctl --user disable --now {name} failed: because of me" in shown
    assert unit.exists()
    machine.take_asked()
    assert f"removed {unit}" in machine.ask("service", "uninstall", "--user")
    assert not unit.exists()
    assert machine.take_asked() == [f"--user disable --now {name}", "--user daemon-reload"]
    (tmp_path / "bin" / "systemctl").unlink()
    only = {"PATH": str(link_programs(tmp_path / "programs", "mount", "mkdir"))}
    shown = machine.ask("service", "install", "--user", code=1, **only)
    assert "systemctl --user daemon-reload: systemctl failed with code 127: not installed" in shown


def link_programs(directory: Path, *programs: str) -> Path:
    directory.mkdir()
    for program in ("unshare", *programs):
        path = shutil.which(program)
        assert path is not None
        (directory / program).symlink_to(path)
    return directory
