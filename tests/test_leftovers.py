"""Leftovers of a cluster: mounts that its own processes hold count, the copies of other tests do not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import machine
from volplane.host import syscalls

pytestmark = pytest.mark.root


@pytest.mark.parametrize(("ours", "counted"), [(True, True), (False, False)])
def test_a_copied_mount_counts_for_a_process_of_this_run_only(
    tmp_path: Path, ours: bool, counted: bool
) -> None:
    place = tmp_path / "cluster"
    (place / "n").mkdir(parents=True)
    environment = os.environ | {"TMPDIR": str(tmp_path if ours else tmp_path / "other")}
    syscalls.mount("tmpfs", str(place / "n"), "tmpfs")
    try:
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo there; read line"]
        with subprocess.Popen(
            command, env=environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"there\n"
            assert (process.pid in machine.processes(place)) is counted
            process.stdin.close()
    finally:
        syscalls.umount(str(place / "n"))
