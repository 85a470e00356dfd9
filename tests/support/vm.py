"""Run a command in a virtual machine, for tests that need a capability or a kernel that this machine lacks.

The VM is a Debian kernel in QEMU, which emulates its processors; root in it has every capability. It sees
this machine's files read-only, and on top of them the programs of tools/debian_vm.py; its /dev, /run and /tmp
are in its memory. It has only a loopback network, and is about twenty times slower than the machine.
"""

from __future__ import annotations

import os
import platform
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
from tools import debian_vm

PROGRAM = "qemu-system-x86_64"
FILES = debian_vm.directory(debian_vm.CACHE)
PROCESSOR = "Nehalem"  # emulation of later processors' instructions is slower
MEMORY = "2G"
# Without what protects a kernel from its programs, or only costs time.
KERNEL_OPTIONS = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr apparmor=0 selinux=0 audit=0 init_on_alloc=0"
)
HIDDEN_DIRECTORIES = (Path("/dev"), Path("/run"), Path("/tmp"))  # the VM has its own

INIT = """#!/bin/sh
set -e
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p /run/host
mount --bind / /run/host
mount -t tmpfs tmpfs /tmp
for place in {shown}; do
    mkdir -p "$place"
    mount --bind "/run/host$place" "$place"
done
umount /run/host
mkdir -p {exchange}
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none exchange {exchange}
modprobe -a loop ext4 xfs veth bridge
ip link set lo up
cd {directory}
set +e
env -i {environment} {command} >{exchange}/output 2>&1 </dev/null
echo $? >{exchange}/code
sync
echo o >/proc/sysrq-trigger
while true; do true; done
"""


def require(because: str = "") -> None:
    """Skip the test where the VM cannot be had (fail in CI, on a machine for which Debian has its files)."""
    if FILES.is_dir():
        peers.require(PROGRAM, because)
        return
    reason = f"{because}{_why_missing()}"
    if os.environ.get("CI") and platform.machine() == debian_vm.MACHINE:
        pytest.fail(f"{reason}; CI is meant to have it")
    pytest.skip(reason)


def _why_missing() -> str:
    try:
        said = debian_vm.failure_path(debian_vm.CACHE).read_text().strip()
    except FileNotFoundError:
        return "the virtual machine is not made: `make peers` does, on x86_64"
    return f"the virtual machine could not be made: {said}"


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
        *("-M", "q35", "-accel", "tcg,thread=multi", "-cpu", PROCESSOR, "-smp", "2", "-m", MEMORY),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-kernel", f"{FILES}/boot/vmlinuz", "-initrd", f"{FILES}/boot/initrd"),
        *("-append", f"{KERNEL_OPTIONS} volplane.init={init}", "-serial", f"file:{exchange}/console"),
        *_share("machine", "/", readonly=True),
        *_share("packages", FILES, readonly=True),
        *_share("exchange", exchange, readonly=False),
    )
    with (exchange / "qemu").open("wb") as output:
        return subprocess.Popen(
            [peers.path(PROGRAM), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _share(name: str, directory: Path | str, *, readonly: bool) -> list[str]:
    """Options for a directory of this machine that the VM can mount."""
    options = f"local,id={name},path={directory},security_model=none,multidevs=remap"
    device = f"virtio-9p-pci,fsdev={name},mount_tag={name}"
    return ["-fsdev", f"{options},readonly=on" if readonly else options, "-device", device]


def _tail_of_output(exchange: Path) -> str:
    """The end of the output of the kernel and of the command."""
    files = [file for name in ("qemu", "console", "output") if (file := exchange / name).exists()]
    return "\n".join(line for file in files for line in file.read_text(errors="replace").splitlines()[-40:])
