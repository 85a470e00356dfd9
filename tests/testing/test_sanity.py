"""csi-sanity with a driver that leaves mounts: the failing specs fail, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import sample_driver
from volplane.cluster import external_driver
from volplane.host.mounts import read_table
from volplane.testing import driver_run, runner
from volplane.testing.cases import ALL_CASES
from volplane.testing.runner import CaseSettings, CaseVerdict

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("csi-sanity")]


@pytest.mark.parametrize(("mutant", "most"), [("leaks-a-mount", 1), ("wrong-error-code", 3)])
async def test_what_one_spec_leaves_does_not_fail_the_next(mutant: str, most: int, tmp_path: Path) -> None:
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line(mutant)),
        runner.select_cases(ALL_CASES, "^sanity/", ""),
        CaseSettings(seed=1),
        lambda result: None,
        directory=tmp_path / "s",
        secrets={"key": "sesame"},
    )
    failed = [result.name for result in run.results if result.verdict is CaseVerdict.FAILED]
    assert len(run.results) > 50
    assert len(failed) <= most, failed
    assert not any("\n" in result.reason for result in run.results)
    verdicts = {result.name: result.verdict for result in run.results}
    assert verdicts["sanity/NodeUnpublishVolume should remove target path"] is not CaseVerdict.SKIPPED
    assert not read_table().under(str(tmp_path))
