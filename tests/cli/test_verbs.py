"""How verbs are loaded."""

from __future__ import annotations

import subprocess
import sys

LOADS = """
import gc
from volplane.cli import volplane
assert volplane.get_command(None, "env") is not None
assert volplane.get_command(None, "fly") is None
assert gc.isenabled()
print(gc.get_freeze_count())
"""


def test_what_a_verb_loads_stays_and_garbage_is_looked_for_again() -> None:
    told = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    assert int(told.stdout) > 10_000
