"""A driver put through cases, as `volplane test-driver` does it, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from volplane.cluster.guest import Guest
from volplane.testing import session
from volplane.testing.case import Case
from volplane.testing.cases import ALL, BARE
from volplane.testing.report import Run
from volplane.testing.runner import Settings, Verdict

SEED = 5
# Every case is in one of these; csi-sanity has tests of its own.
PARTS = {
    "bare": list(BARE),
    "one process": [case for case in ALL if case.whole and not case.apart],
    "processes": [case for case in ALL if case.apart],
}


async def driven(
    brought: Guest,
    directory: Path | None = None,
    *,
    cases: Sequence[Case] = BARE,
    secrets: Mapping[str, str] | None = None,
    mutable: Mapping[str, str] | None = None,
) -> Run:
    settings = Settings(seed=SEED, timeout=180.0)
    return await session.drive(
        brought, cases, settings, lambda result: None, directory=directory, secrets=secrets, mutable=mutable
    )


def wrong(run: Run) -> dict[str, str]:
    return {result.name: result.reason for result in run.failed}


def passed(run: Run) -> list[str]:
    return [result.name for result in run.results if result.verdict is Verdict.PASSED]
