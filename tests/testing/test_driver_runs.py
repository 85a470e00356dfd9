"""A run that does not come to its end has found something none the less."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import blocks
from volplane.cluster import guest
from volplane.testing import driver_run, runner
from volplane.testing.cases import ALL
from volplane.testing.runner import CaseSettings, Result, Verdict

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
HOMESICK = f"[ $NODE_ID != probe ] || {{ echo not in a cluster >&2; exit 3; }}; exec env {blocks.line()}"


async def test_a_driver_that_does_not_start_in_a_cluster_fails_one_case_and_keeps_the_others() -> None:
    told: list[Result] = []
    names = ["identity/name", "cluster/claim and pods", "cluster/subPath"]
    cases = runner.select_cases(ALL, f"^({'|'.join(names)})$", "")
    run = await driver_run.run_driver_tests(
        guest.from_command(HOMESICK), cases, CaseSettings(seed=1), told.append
    )
    assert told == run.results
    assert [(r.name, r.verdict) for r in told] == list(
        zip(names, (Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED), strict=True)
    )
    assert told[1].reason.startswith("a cluster does not start with it: ")
    assert "not in a cluster" in told[1].reason
    assert told[2].reason == "the cluster did not start, see cluster/claim and pods"


def test_whoever_interrupts_it_has_what_was_found_by_then(tmp_path: Path) -> None:
    files = {kind: tmp_path / f"r.{kind}" for kind in ("junit", "json", "html")}
    words = ["--driver-command", blocks.line(), "--focus", "^identity/name$", "--repeat", "1000000"]
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
    assert "stopped before its end: blocks.example.com" in rest
    told = json.loads(files["json"].read_text())
    assert told["complete"] is False
    assert told["passed"] == len(told["cases"]) >= 1
    assert "stopped before its end" in files["html"].read_text()
    assert 'errors="1"' in files["junit"].read_text()
