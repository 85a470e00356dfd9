"""A command in a Linux of its own: for what this machine's kernel refuses even to root.

The kernel is user-mode Linux, an ordinary process, in which root has every capability. It sees this machine's
files, read only; what is written to its /dev, /run and /tmp lives in its memory and ends with it. It has one
processor, a network with nothing but loopback, and is several times slower than the machine.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support import peers

PROGRAM = "linux.uml"
MEMORY = "2G"
HIDDEN = (Path("/dev"), Path("/run"), Path("/tmp"))  # the machine's; the guest has its own

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


class GuestDied(Exception):
    """The guest ended, or had to be ended, before its command did; with what its console shows."""


class Done(NamedTuple):
    code: int
    output: str


def run(
    command: Sequence[str],
    *,
    directory: Path,
    env: Mapping[str, str],
    shown: Iterable[Path] = (),
    seconds: float = 600.0,
) -> Done:
    """Run it there, to its end. Of the machine's /tmp the guest has that directory, and what is `shown`."""
    with tempfile.TemporaryDirectory(prefix="guest-") as place:
        exchange = Path(place)
        (init := exchange / "init").write_text(
            INIT.format(
                shown=shlex.join(map(str, sorted(_hidden([directory, *shown])))),
                exchange=shlex.quote(place),
                directory=shlex.quote(str(directory)),
                environment=shlex.join(f"{name}={value}" for name, value in env.items()),
                command=shlex.join(command),
            )
        )
        init.chmod(0o700)
        _boot(init, exchange, seconds)
        try:
            code = int((exchange / "code").read_text())
        except (FileNotFoundError, ValueError) as error:
            raise GuestDied(_said(exchange)) from error
        return Done(code, (exchange / "output").read_text(errors="replace"))


def _hidden(paths: Iterable[Path]) -> set[Path]:
    return {path for path in paths if any(path.is_relative_to(place) for place in HIDDEN)}


def _boot(init: Path, exchange: Path, seconds: float) -> None:
    arguments = (
        *(f"mem={MEMORY}", "rootfstype=hostfs", "root=/dev/root", "ro", f"init={init}", "quiet"),
        *(f"uml_dir={exchange}/uml", "con=null", "con0=null,fd:1"),
    )
    # Its memory is a file, below TMPDIR if that is set: else in /dev/shm, which is faster.
    env = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    with (exchange / "console").open("wb") as console:
        guest = subprocess.Popen(
            [peers.path(PROGRAM), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # each process of the guest is one of the machine's, in this session
        )
        try:
            guest.wait(seconds)
        except subprocess.TimeoutExpired:
            raise GuestDied(f"not done after {seconds:g}s\n{_said(exchange)}") from None
        finally:
            if guest.poll() is None:
                os.killpg(guest.pid, signal.SIGKILL)
                guest.wait()


def _said(exchange: Path) -> str:
    """The ends of what the kernel and the command have printed."""
    files = [file for name in ("console", "output") if (file := exchange / name).exists()]
    return "\n".join(line for file in files for line in file.read_text(errors="replace").splitlines()[-40:])
