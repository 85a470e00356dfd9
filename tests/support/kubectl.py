"""Two versions of kubectl: Debian's (1.20) and the newest one on this machine.

A machine that has another kubectl installed gets Debian's by unpacking its package into the cache of built
peers; what cannot be had is not in the list, and its tests say so by being skipped.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import select
import shutil
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

CACHE = Path(os.environ.get("VOLPLANE_CACHE", "~/.cache/volplane")).expanduser()
DEBIAN = 20  # minor version
PATIENCE = 60.0


class Program(Struct, frozen=True):
    path: str
    minor: int

    def __str__(self) -> str:
        return f"1.{self.minor}"


@functools.cache
def programs() -> tuple[Program, ...]:
    """Debian's and the newest, as far as they are available."""
    seen = [program for path in _candidates() if (program := _probe(path))]
    old = [p for p in seen if p.minor == DEBIAN] or _unpack_debian()
    newest = max(seen, key=lambda program: program.minor, default=None)
    return tuple({p.minor: p for p in [*old[:1], *([newest] if newest else [])]}.values())


def _candidates() -> list[str]:
    built = sorted(str(p) for p in (CACHE / "bin").glob("kubectl*"))
    return [*built, *([found] if (found := shutil.which("kubectl")) else [])]


def _probe(path: str) -> Program | None:
    output = subprocess.run([path, "version", "--client"], capture_output=True, text=True, check=False)
    match = re.search(r"v1\.(\d+)\.", output.stdout) or re.search(r'Minor:"(\d+)', output.stdout)
    return Program(path, int(match[1])) if match else None


def _unpack_debian() -> list[Program]:
    """Unpack Debian's package without installing it."""
    place = CACHE / f"kubectl-1.{DEBIAN}"
    if not (place / "kubectl").exists():
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            return []
        with tempfile.TemporaryDirectory(prefix="vp-deb-") as directory:
            asked = ["apt-get", "download", "-qq", "kubernetes-client"]
            try:
                subprocess.run(asked, cwd=directory, capture_output=True, check=True, timeout=PATIENCE)
            except subprocess.SubprocessError:
                return []
            (package,) = Path(directory).glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", str(package), f"{directory}/x"], check=True)
            place.mkdir(parents=True, exist_ok=True)
            shutil.move(f"{directory}/x/usr/bin/kubectl", place / "kubectl")
    found = _probe(str(place / "kubectl"))
    return [found] if found and found.minor == DEBIAN else []


class KubectlFailed(AssertionError):
    """kubectl exited with another code than expected."""


class Kubectl:
    """One program, one namespace, and its own home directory for caches and plugins."""

    def __init__(self, program: Program, kubeconfig: str, home: Path, namespace: str) -> None:
        self.program, self.namespace, self.home = program, namespace, home
        self.env = {**os.environ, "KUBECONFIG": kubeconfig, "HOME": str(home), "LC_ALL": "C"}

    @property
    def minor(self) -> int:
        return self.program.minor

    def argv(self, words: tuple[str, ...]) -> list[str]:
        # At the end, but before what belongs to the command in the container.
        cut = words.index("--") if "--" in words else len(words)
        scope = [] if {"-n", "-A", "--all-namespaces"} & set(words[:cut]) else ["-n", self.namespace]
        return [self.program.path, *words[:cut], *scope, *words[cut:]]

    def run(self, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(words),
            input=stdin,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def __call__(self, *words: str, stdin: str = "", code: int = 0, **env: str) -> str:
        """Run it and return its standard output; `code` is the expected exit code."""
        done = self.run(*words, stdin=stdin, **env)
        if done.returncode != code:
            raise KubectlFailed(f"kubectl {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def fails(self, *words: str, stdin: str = "", code: int = 1) -> str:
        """Run it, expect it to fail, and return its standard error."""
        done = self.run(*words, stdin=stdin)
        if done.returncode != code:
            raise KubectlFailed(f"kubectl {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stderr

    def apply(self, manifest: str, *words: str) -> str:
        return self("apply", "-f", "-", *words, stdin=manifest)

    def value(self, path: str, *what: str) -> str:
        return self("get", *what, "-o", f"jsonpath={{{path}}}")

    @contextmanager
    def start(self, *words: str) -> Iterator[RunningCommand]:
        """Start a command that keeps running; its lines can be read."""
        process = subprocess.Popen(
            self.argv(words), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield RunningCommand(process)
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def terminal(self, *words: str) -> Iterator[TerminalSession]:
        """Start a command on a terminal of 100 x 30 characters, for input."""
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 100, 0, 0))
        process = subprocess.Popen(
            self.argv(words), env=self.env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        try:
            yield TerminalSession(process, ours)
        finally:
            process.kill()
            process.wait()
            os.close(ours)


class TerminalSession:
    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process, self._terminal = process, terminal
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def until(self, wanted: str) -> None:
        """Wait until the screen shows the text."""
        end = time.monotonic() + PATIENCE
        while wanted not in self.seen:
            ready, _, _ = select.select([self._terminal], [], [], max(end - time.monotonic(), 0))
            try:
                data = os.read(self._terminal, 4096) if ready else b""
            except OSError:  # the other end is closed
                data = b""
            if not data:
                raise KubectlFailed(f"no {wanted!r} in {self.seen!r}")
            self.seen += data.decode(errors="replace")

    def wait(self) -> int:
        return self.process.wait(PATIENCE)


class RunningCommand:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen: list[str] = []

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise KubectlFailed(f"it ended with {self.process.wait()}: {''.join(self.seen)}")
        self.seen.append(line)
        return line.rstrip("\n")

    def until(self, text: str) -> str:
        """Read until a line has the text, and return the line."""
        end = time.monotonic() + 60
        while text not in (line := self.line()):
            if time.monotonic() > end:
                raise KubectlFailed(f"no {text!r} in {''.join(self.seen)}")
        return line

    def has_more(self) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0.2)[0])

    def wait(self) -> Any:
        return self.process.wait(60)
