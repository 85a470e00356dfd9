"""Run a command in user-mode Linux, for tests that need a capability which this machine lacks.

User-mode Linux is a kernel that is an ordinary process; root in it has every capability. It sees this
machine's files read-only; its /dev, /run and /tmp are in its memory. It has one processor, only a loopback
network, and is several times slower than the machine.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.support import peers

PROGRAM = "linux.uml"
MEMORY = "2G"
HIDDEN_DIRECTORIES = (Path("/dev"), Path("/run"), Path("/tmp"))  # the VM has its own

INIT = """#!/bin/sh
set -e
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p /run/host /run/modules/lib
mount --bind / /run/host
mount -t tmpfs tmpfs /tmp
for place in {shown}; do
    mkdir -p "$place"
    mount --bind "/run/host$place" "$place"
done
umount /run/host
mkdir -p {exchange}
mount -t hostfs -o {exchange} exchange {exchange}
ln -s /usr/lib/uml/modules /run/modules/lib/modules
modprobe -a -d /run/modules loop overlay veth bridge
ip link set lo up
cd {directory}
set +e
env -i {environment} {command} >{exchange}/output 2>&1 </dev/null
echo $? >{exchange}/code
sync
echo o >/proc/sysrq-trigger
exec sleep 60
"""


def require(because: str = "") -> None:
    """Skip the test where no such kernel can be had: not installed, or unable to run on this processor."""
    peers.require(PROGRAM, because)
    # With AMX, PTRACE_SETREGSET of this machine takes more registers than that kernel has room for: it panics
    # in put_fp_registers when it starts init.
    if "amx_tile" in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"{because}{PROGRAM} cannot run on a processor with AMX")


class VmDied(Exception):
    """The VM ended before its command, or was killed; the message has its console output."""


class VmResult(NamedTuple):
    code: int
    output: str


class VmCommand:
    """A running command in the VM. Of the machine's /tmp it sees `directory` and the `shown` paths."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        env: Mapping[str, str],
        shown: Iterable[Path] = (),
        seconds: float = 1200.0,
    ) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="vm-")
        self.exchange = Path(self._place.name)
        (init := self.exchange / "init").write_text(
            INIT.format(
                shown=shlex.join(map(str, sorted(_hidden_paths([directory, *shown])))),
                exchange=shlex.quote(self._place.name),
                directory=shlex.quote(str(directory)),
                environment=shlex.join(f"{name}={value}" for name, value in env.items()),
                command=shlex.join(command),
            )
        )
        init.chmod(0o700)
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._process = _boot(init, self.exchange)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait(self) -> VmResult:
        """Wait for the command, and return its result. Raises VmDied, also on a timeout."""
        try:
            self._process.wait(max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise VmDied(f"not done after {self.seconds:g}s\n{_tail_of_output(self.exchange)}") from None
        try:
            code = int((self.exchange / "code").read_text())
        except (FileNotFoundError, ValueError) as error:
            raise VmDied(_tail_of_output(self.exchange)) from error
        return VmResult(code, (self.exchange / "output").read_text(errors="replace"))

    def end(self) -> None:
        """Kill the VM if it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._place.cleanup()


def run(
    command: Sequence[str], *, directory: Path, env: Mapping[str, str], shown: Iterable[Path] = ()
) -> VmResult:
    with VmCommand(command, directory=directory, env=env, shown=shown) as running:
        return running.wait()


def _hidden_paths(paths: Iterable[Path]) -> set[Path]:
    return {path for path in paths if any(path.is_relative_to(place) for place in HIDDEN_DIRECTORIES)}


def _boot(init: Path, exchange: Path) -> subprocess.Popen[bytes]:
    arguments = (
        *(f"mem={MEMORY}", "rootfstype=hostfs", "root=/dev/root", "ro", f"init={init}", "quiet"),
        *(f"uml_dir={exchange}/uml", "con=null", "con0=null,fd:1"),
    )
    # Its memory is a file, below TMPDIR if that is set, else in /dev/shm, which is faster.
    env = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    with (exchange / "console").open("wb") as console:
        return subprocess.Popen(
            [peers.path(PROGRAM), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # each process of the VM is a process of the machine in this session
        )


def _tail_of_output(exchange: Path) -> str:
    """The end of the output of the kernel and of the command."""
    files = [file for name in ("console", "output") if (file := exchange / name).exists()]
    return "\n".join(line for file in files for line in file.read_text(errors="replace").splitlines()[-40:])
