"""A real `volplane up` as a user starts it, with kubectl and aws.

At the end of a test the process, its containers, mounts, loop devices and the data directory are removed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support import machine
from volplane.cluster.data_directory import DataDirectory, SavedCluster

BIN = Path(sys.executable).parent
VOLPLANE = str(BIN / "volplane")
PATIENCE = float(os.environ.get("VOLPLANE_PATIENCE", "1"))  # factor of all timeouts


class Stuck(AssertionError):
    """A condition did not become true in time."""


def environment() -> dict[str, str]:
    """A copy of os.environ; retried, because pytest changes it in another thread."""
    while True:
        try:
            return dict(os.environ)
        except KeyError:
            continue


def wait_until(what: str, test: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Poll until `test` returns a true value, and return it."""
    end = time.monotonic() + seconds * PATIENCE
    last: Any = None
    while time.monotonic() < end:
        try:
            last = test()
        except (subprocess.CalledProcessError, json.JSONDecodeError, IndexError, KeyError) as error:
            last = error
        if last and not isinstance(last, Exception):
            return last
        time.sleep(0.02 * PATIENCE)
    raise Stuck(f"{what}: not within {seconds:g}s; last: {last!r}")


class Up:
    """One cluster in one data directory; it can be started, killed and restarted."""

    def __init__(
        self,
        *arguments: str,
        nodes: int = 2,
        directory: Path | None = None,
        program: Sequence[str] = (VOLPLANE, "up"),
    ) -> None:
        self.own = directory is None
        self.program = program
        self.directory = directory or Path(tempfile.mkdtemp(prefix="vp-"))
        self.arguments = ("--data-dir", str(self.directory), "--nodes", str(nodes), *arguments)
        self.process: subprocess.Popen[bytes] | None = None
        self.output = self.directory / "up.log"

    def wait(self, what: str, test: Callable[[], Any], seconds: float = 120.0) -> Any:
        """`wait_until`, with diagnostics on failure."""
        try:
            return wait_until(what, test, seconds)
        except Stuck as stuck:
            raise Stuck(f"{stuck}\n{self.diagnostics()}") from None

    def diagnostics(self) -> str:
        looks = (
            ("get", "nodes,pods,pvc,pv,volumeattachments,leases", "-A", "-o", "wide"),
            ("get", "events", "-A", "--sort-by=.metadata.creationTimestamp"),
        )
        seen = ["\n".join(self.kubectl(*look, check=False).splitlines()[-80:]) for look in looks]
        return "\n\n".join([*seen, self.log(40)])

    def describe(self, kind: str, name: str, *texts: str) -> str:
        """Wait until the output of `kubectl describe` contains all texts, and return it."""
        shown = ""

        def has_all() -> bool:
            nonlocal shown
            shown = self.kubectl("describe", kind, name)
            return all(text in shown for text in texts)

        try:
            wait_until(f"{kind} {name} is described with {texts}", has_all, 30)
        except Stuck as stuck:
            raise Stuck(f"{stuck}; it says:\n{shown}") from None
        return shown

    # --- start and stop

    def start(self, env: Mapping[str, str] | None = None, *, wait: bool = True) -> Self:
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.program, *self.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment(), **(env or {})},
                start_new_session=True,
            )
        if wait:
            wait_until("the cluster is ready", self._is_ready_or_dead, 60)
        return self

    def _is_ready_or_dead(self) -> bool:
        assert self.process is not None
        if (code := self.process.poll()) is not None:
            raise Stuck(f"volplane up ended with {code}:\n{self.log()}")
        return self.is_ready()

    def is_ready(self) -> bool:
        try:
            return (self.directory / "ready").read_text().strip() == str(self.pid)
        except FileNotFoundError:
            return False

    def memory(self) -> SavedCluster:
        """What it has stored for its next start."""
        return DataDirectory(self.directory).load_saved()

    def kill(self) -> None:
        """Kill the process (SIGKILL); its containers continue."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait_until_exit(self, seconds: float = 30.0) -> None:
        assert self.process is not None
        self.process.wait(seconds)

    def stop(self) -> int:
        """Stop it with SIGTERM, like a user."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def log(self, lines: int = 80) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def remove(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
        if self.own:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except Stuck:
            self.remove()  # __exit__ is not called if __enter__ fails
            raise

    def __exit__(self, *_: object) -> None:
        self.remove()

    # --- commands of a user

    @property
    def kubeconfig(self) -> str:
        return str(self.directory / "kubeconfig")

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        done = subprocess.run(
            [
                "kubectl",
                "--kubeconfig",
                self.kubeconfig,
                "--cache-dir",
                str(self.directory / "kube-cache"),
                *arguments,
            ],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120 * PATIENCE,
        )
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, manifest: str) -> str:
        return self.kubectl("apply", "-f", "-", stdin=manifest)

    def get(self, *what: str) -> Any:
        return json.loads(self.kubectl("get", *what, "-o", "json"))

    def items(self, *what: str) -> list[Any]:
        items: list[Any] = self.get(*what)["items"]
        return items

    def aws(self, *arguments: str) -> Any:
        exports = subprocess.run(
            [VOLPLANE, "env", "--data-dir", str(self.directory)], capture_output=True, text=True, check=True
        ).stdout
        env = dict(line.removeprefix("export ").split("=", 1) for line in exports.splitlines() if "=" in line)
        env = {k: v.strip("'\"") for k, v in env.items()}
        done = subprocess.run(
            [str(BIN / "aws"), "ec2", *arguments, "--output", "json"],
            env={**environment(), **env},
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
        return json.loads(done.stdout or "{}")

    def explain(self, what: str, *more: str) -> tuple[int, str]:
        """Run `volplane explain`; returns its exit code and its output on one line."""
        command = [VOLPLANE, "explain", what, *(more or ("--data-dir", str(self.directory)))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100 * PATIENCE)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def phase(self, pod: str) -> str:
        phase: str = self.get("pod", pod)["status"]["phase"]
        return phase

    def wait_running(self, pod: str, seconds: float = 30.0) -> None:
        wait_until(f"pod {pod} runs", lambda: self.phase(pod) == "Running", seconds)

    # --- leftovers

    def list_containers(self) -> list[str]:
        """What a container runtime has of this cluster; here there is none."""
        return []

    def remove_containers(self) -> None: ...

    def leftovers(self) -> dict[str, list[str]]:
        """Mounts, loop devices and networks of this cluster's directory."""
        place = str(self.directory)
        mounts = [m for m in Path("/proc/self/mountinfo").read_text().splitlines() if place in m]
        loops = machine.loop_devices(self.directory)
        networks = list(machine.interfaces(self.directory).values())
        found = {"mounts": mounts, "loop devices": loops, "networks": networks}
        return {what: left for what, left in found.items() if left}
