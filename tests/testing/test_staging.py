"""A driver that stages and attaches nothing: what its verdicts depend on."""

from __future__ import annotations

import pytest

from tests.support import staging_driver
from volplane.cluster import external_driver
from volplane.testing import driver_run, runner
from volplane.testing.cases import ALL_CASES
from volplane.testing.runner import CaseResult, CaseSettings, CaseVerdict

pytestmark = [pytest.mark.root, pytest.mark.slow]


async def run(focus: str, seconds: float = 0.0) -> list[CaseResult]:
    tested = await driver_run.run_driver_tests(
        external_driver.from_command(staging_driver.command_line(seconds)),
        runner.select_cases(ALL_CASES, focus, ""),
        CaseSettings(seed=1),
        lambda result: None,
    )
    return tested.results


def failures(results: list[CaseResult]) -> dict[str, str]:
    return {r.name: r.reason for r in results if r.verdict is CaseVerdict.FAILED}


async def test_two_nodes_that_stage_one_shared_volume_do_not_block_each_other() -> None:
    results = await run("^cluster/(pods of two nodes|moves to another node)$")
    assert failures(results) == {}
    assert [r.verdict for r in results] == [CaseVerdict.PASSED] * 2


async def test_mounts_are_judged_after_an_unstage_that_takes_a_moment() -> None:
    names = "claim and pods|every answer lost once|driver killed during NodeUnstageVolume"
    results = await run(f"^cluster/({names}|node killed at NodeUnstageVolume)$", seconds=0.3)
    assert failures(results) == {}
    assert [r.verdict for r in results] == [CaseVerdict.PASSED] * 4


async def test_an_unknown_volume_has_the_context_that_a_driver_needs() -> None:
    results = await run("^(stage|publish)/unknown volume$")
    assert [(r.verdict, r.reason) for r in results] == [(CaseVerdict.PASSED, "")] * 2
