"""`make soak`: random lives on our own drivers, each with what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def soak(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.soak", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("driver", ["page", "ebs", "efs"])
def test_a_driver_of_ours_passes_random_lives(driver: str) -> None:
    done = soak(driver, "--soak", "2s", "--seed", "5")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "no life failed" in done.stdout


def test_an_unknown_driver_is_an_error() -> None:
    done = soak("ceph")
    assert done.returncode == 2
    assert "no such driver: ceph; there are page, disks, go, efs, ebs" in done.stderr
