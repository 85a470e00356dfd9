"""A run that does not come to its end has found something none the less."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import sample_driver
from volplane.cluster import external_driver
from volplane.testing import driver_run, runner
from volplane.testing.cases import ALL_CASES
from volplane.testing.runner import CaseResult, CaseSettings, CaseVerdict

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
HOMESICK = (
    "[ $NODE_ID != probe ] || { echo not in a cluster >&2; exit 3; }; "
    f"exec env {sample_driver.command_line()}"
)


async def test_a_driver_that_does_not_start_in_a_cluster_fails_one_case_and_keeps_the_others() -> None:
    reported: list[CaseResult] = []
    names = ["identity/name", "cluster/claim and pods", "cluster/subPath"]
    cases = runner.select_cases(ALL_CASES, f"^({'|'.join(names)})$", "")
    run = await driver_run.run_driver_tests(
        external_driver.from_command(HOMESICK), cases, CaseSettings(seed=1), reported.append
    )
    assert reported == run.results
    assert [(r.name, r.verdict) for r in reported] == list(
        zip(names, (CaseVerdict.PASSED, CaseVerdict.FAILED, CaseVerdict.SKIPPED), strict=True)
    )
    assert reported[1].reason.startswith("the cluster did not start: ")
    assert "not in a cluster" in reported[1].reason
    assert reported[2].reason == "the cluster did not start, see cluster/claim and pods"


def test_whoever_interrupts_it_has_what_was_found_by_then(tmp_path: Path) -> None:
    files = {kind: tmp_path / f"r.{kind}" for kind in ("junit", "json", "html")}
    words = [
        "--driver-command",
        sample_driver.command_line(),
        "--focus",
        "^identity/name$",
        "--repeat",
        "1000000",
    ]
    words += [word for kind, file in files.items() for word in (f"--{kind}", str(file))]
    with subprocess.Popen(
        [sys.executable, "-m", "volplane", "test-driver", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            while "✓ identity/name" not in (line := process.stdout.readline()):
                assert line, "it has ended before its first case"
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
            assert process.wait() == 130
        finally:
            process.kill()
    assert "interrupted: blocks.example.com" in rest
    reported = json.loads(files["json"].read_text())
    assert reported["complete"] is False
    assert reported["passed"] == len(reported["cases"]) >= 1
    assert "interrupted" in files["html"].read_text()
    assert 'errors="1"' in files["junit"].read_text()
