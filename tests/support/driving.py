"""A driver put through cases, as `volplane test-driver` does it, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from volplane.cluster.guest import Guest
from volplane.testing import driver_run
from volplane.testing.case import Case
from volplane.testing.cases import ALL, BARE
from volplane.testing.report import DriverTestRun
from volplane.testing.runner import CaseSettings, Verdict

SEED = 5
# Every case is in one of these; csi-sanity has tests of its own.
PARTS = {
    "bare": list(BARE),
    "one process": [case for case in ALL if case.needs_cluster and not case.needs_processes],
    "processes": [case for case in ALL if case.needs_processes],
}


async def driven(
    brought: Guest,
    directory: Path | None = None,
    *,
    cases: Sequence[Case] = BARE,
    secrets: Mapping[str, str] | None = None,
    mutable: Mapping[str, str] | None = None,
) -> DriverTestRun:
    settings = CaseSettings(seed=SEED, timeout=180.0)
    return await driver_run.run_driver_tests(
        brought, cases, settings, lambda result: None, directory=directory, secrets=secrets, mutable=mutable
    )


def wrong(run: DriverTestRun) -> dict[str, str]:
    return {result.name: result.reason for result in run.failed}


def passed(run: DriverTestRun) -> list[str]:
    return [result.name for result in run.results if result.verdict is Verdict.PASSED]
