"""docs/test-your-driver.md: a driver with one line forgotten is red, and green with it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from volplane.cluster import external_driver
from volplane.testing import driver_run, runner
from volplane.testing.cases import ALL_CASES
from volplane.testing.report import DriverTestRun
from volplane.testing.runner import CaseSettings, CaseVerdict

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
LINE = ", readonly=request.readonly"


def typed(place: Path, *, lines: int) -> None:
    """What the page has its reader type: the driver is put together, and a word of it forgotten."""
    text = (ROOT / "docs" / "test-your-driver.md").read_text()
    block = re.search(r"^```\n(awk .*?)^```$", text, re.M | re.S)
    assert block is not None
    wanted = block[1].splitlines()[:lines]
    assert len(wanted) == lines
    for line in wanted:
        subprocess.run(["sh", "-c", line.replace("docs/", f"{ROOT}/docs/")], cwd=place, check=True)


async def run(program: Path, focus: str) -> DriverTestRun:
    line = f"PYTHONPATH={ROOT / 'src'} {sys.executable} {program} $SHARED_DIR $CSI_SOCKET $NODE_ID"
    cases = runner.select_cases(ALL_CASES, focus, "")
    return await driver_run.run_driver_tests(
        external_driver.from_command(line), cases, CaseSettings(seed=1, timeout=120.0), lambda result: None
    )


async def test_from_red_to_green(tmp_path: Path) -> None:
    program = tmp_path / "directories.py"
    typed(tmp_path, lines=2)
    assert LINE not in program.read_text()
    red = await run(program, "^publish/read-only$")
    assert [(r.name, r.verdict, r.section) for r in red.results] == [
        ("publish/read-only", CaseVerdict.FAILED, "CSI: NodePublishVolume")
    ]
    typed(tmp_path, lines=1)
    assert program.read_text().count(LINE) == 1
    groups = "identity|publish|provision|stage|delete|twice|unpublish|validate|stats|snapshot|leaks"
    green = await run(program, f"^({groups})/")
    assert {r.name: r.reason for r in green.failed_results} == {}
    assert {
        "publish/read-only",
        "publish/data",
        "twice/CreateVolume",
        "snapshot/files and their attributes",
    } <= {r.name for r in green.results if r.verdict is CaseVerdict.PASSED}
