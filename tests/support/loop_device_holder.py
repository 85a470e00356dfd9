"""A loop device that a process in another mount namespace, like a container, attaches and holds open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOUNTED = "/mnt"  # where that process sees the file's directory
_WORK = f"""
import os, sys
from volplane.host import devices, mounts
directory, name = os.path.split(sys.argv[1])
mounts.bind(directory, "{MOUNTED}", readonly=False, recursive=False)
device = devices.loop_attach(os.path.join("{MOUNTED}", name))
held = os.open(device, os.O_RDONLY)
print(device, flush=True)
sys.stdin.read()
"""


@contextmanager
def bind_in_namespace(file: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The device and the process; the device remains attached when the process has ended."""
    command = ["unshare", "--mount", sys.executable, "-c", _WORK, str(file)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            device = process.stdout.readline().strip()
            assert device, "nothing was bound"
            yield device, process
        finally:
            process.stdin.close()
