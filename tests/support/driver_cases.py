"""Run driver test cases in this process, as `volplane test-driver` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from volplane.cluster.external_driver import ExternalDriver
from volplane.testing import driver_run
from volplane.testing.case import Case
from volplane.testing.cases import ALL_CASES, SOCKET_CASES
from volplane.testing.report import DriverTestRun
from volplane.testing.runner import CaseSettings, CaseVerdict

SEED = 5
# Every case is in one of these; csi-sanity is tested separately.
PARTS = {
    "bare": list(SOCKET_CASES),
    "one process": [case for case in ALL_CASES if case.needs_cluster and not case.needs_processes],
    "processes": [case for case in ALL_CASES if case.needs_processes],
}


async def run_cases(
    driver: ExternalDriver,
    directory: Path | None = None,
    *,
    cases: Sequence[Case] = SOCKET_CASES,
    secrets: Mapping[str, str] | None = None,
    mutable: Mapping[str, str] | None = None,
) -> DriverTestRun:
    settings = CaseSettings(seed=SEED, timeout=180.0)
    return await driver_run.run_driver_tests(
        driver, cases, settings, lambda result: None, directory=directory, secrets=secrets, mutable=mutable
    )


def failed_reasons(run: DriverTestRun) -> dict[str, str]:
    return {result.name: result.reason for result in run.failed_results}


def passed_cases(run: DriverTestRun) -> list[str]:
    return [result.name for result in run.results if result.verdict is CaseVerdict.PASSED]
