"""The page that leads from a red test to a green one does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = str(ROOT / "src")
PATIENCE = 600  # seconds: other tests may have the machine

pytestmark = [pytest.mark.root, pytest.mark.slow]


def blocks(name: str) -> list[str]:
    text = (ROOT / "docs" / "pytest-plugin.md").read_text()
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [block for block in found if block.startswith(f"# {name}\n")]


def outcome_of(place: Path) -> str:
    """The last lines of a pytest with the plugin of this tree."""
    path = os.pathsep.join((SOURCES, sysconfig.get_path("purelib")))
    line = f"PYTHONPATH={path} {sys.executable} forgetful.py $CSI_ENDPOINT $NODE_ID $SHARED_DIR"
    flags = [
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        f"--rootdir={place}",
        "-p",
        "volplane.testing.plugin",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, "--csi-driver-command", line, "test_forgetful.py"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": SOURCES, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_page_leads_from_red_to_green(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "04-your-own-driver" / "driver.py", tmp_path)
    first, fix = blocks("forgetful.py")
    (tests,) = blocks("test_forgetful.py")
    (tmp_path / "test_forgetful.py").write_text(tests)
    (tmp_path / "forgetful.py").write_text(first)
    red = outcome_of(tmp_path)
    assert "FAILED test_forgetful.py::test_asked_twice_it_makes_one_volume" in red
    assert "1 failed, 1 passed" in red
    method = re.compile(r"    async def create_volume.*?\n\n", re.DOTALL)
    fixed = method.sub(fix.partition("\n")[2].rstrip() + "\n\n", first)
    assert fixed != first
    (tmp_path / "forgetful.py").write_text(fixed)
    green = outcome_of(tmp_path)
    assert "2 passed" in green, green
