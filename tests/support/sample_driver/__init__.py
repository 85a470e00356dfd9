"""A correct driver, and variants with one bug each, to test the driver test cases with."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def command_line(mutant: str = "none") -> str:
    """For --driver-command."""
    python = f"PYTHONPATH={ROOT / 'src'}:{ROOT} {sys.executable} -m tests.support.sample_driver"
    return f"{python} $CSI_ENDPOINT $SHARED_DIR $NODE_ID {mutant}"
