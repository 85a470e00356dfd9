"""`volplane demo` on a machine that lacks a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
ALLOWED = 120  # seconds until a demo that hangs is killed


def link_programs(directory: Path, *, without: str) -> str:
    """A directory for PATH with all programs of this machine but some."""
    directory.mkdir()
    for place in (*os.environ["PATH"].split(":"), "/usr/sbin", "/sbin"):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = directory / program.name
            if not program.name.startswith(without) and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


def test_the_demo_without_mkfs_ends_with_the_reason(tmp_path: Path) -> None:
    path = link_programs(tmp_path / "bin", without="mkfs.")
    done = subprocess.run(
        [sys.executable, "-m", "volplane", "demo"],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=ALLOWED,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "pod/default/demo-writer waits:" in done.stderr
    assert "mkfs.ext4 failed with code 127: not installed on this machine" in done.stderr
    assert "timed out" not in done.stderr
