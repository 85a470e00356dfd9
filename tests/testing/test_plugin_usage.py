"""What the plugin says to whoever has said something wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
def test_one(claim):
    claim()

def test_two(pod):
    pod
"""

pytestmark = [pytest.mark.root]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--csi-driver-command", "./no-such-driver"),
            "the cluster did not start: the driver's command `./no-such-driver`: {place}/no-such-driver"
            " does not exist",
        ),
        (
            ("--csi-driver", "no.yaml"),
            "the cluster did not start: {place}/no.yaml: no such file",
        ),
        (
            ("--csi-driver", "a", "--csi-driver-command", "b"),
            "use either csi-driver or csi-driver-command, not both",
        ),
        (("--csi-nodes", "many"), "csi-nodes must be a positive number, not 'many'"),
    ],
    ids=["command", "file", "both", "nodes"],
)
def test_it_is_said_in_a_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    flags = [
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        f"--rootdir={tmp_path}",
        "-p",
        "volplane.testing.plugin",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, *words, "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 errors" in done.stdout, done.stdout + done.stderr
    assert said.format(place=tmp_path) in done.stdout
