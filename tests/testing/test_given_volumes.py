"""Drivers that do not create volumes: their cases run on volumes that are given, or inline in a pod."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import inline_driver, sample_driver, static_driver
from volplane.cli.test_driver import command
from volplane.cluster import external_driver
from volplane.cluster.errors import CannotStart
from volplane.host.mounts import read_table
from volplane.testing import driver_run, runner
from volplane.testing.cases import ALL_CASES
from volplane.testing.given_volumes import GivenVolumes
from volplane.testing.runner import CaseResult, CaseSettings, CaseVerdict

ON_NODE = (
    "^((publish|stage)/.*|(twice|killed after)/(Node|Create|DeleteVol).*|leaks/.*|provision/capacity"
    "|stats/follow.*)$"
)
GIVEN = GivenVolumes(ids=("vol-1",), context={"tier": "gold"})


async def run_cases(line: str, focus: str, given: GivenVolumes, place: Path) -> dict[str, CaseResult]:
    run = await driver_run.run_driver_tests(
        external_driver.from_command(line),
        runner.select_cases(ALL_CASES, focus, ""),
        CaseSettings(seed=1),
        lambda result: None,
        directory=place / "s",
        secrets={"key": "open sesame"},
        given_volumes=given,
    )
    assert not read_table().under(str(place))
    return {result.name: result for result in run.results}


def names(results: dict[str, CaseResult], verdict: CaseVerdict) -> set[str]:
    return {name for name, result in results.items() if result.verdict is verdict}


@pytest.mark.root
@pytest.mark.slow
async def test_a_driver_without_a_controller_is_tested_with_a_given_volume(tmp_path: Path) -> None:
    results = await run_cases(static_driver.command_line(), ON_NODE, GIVEN, tmp_path)
    assert names(results, CaseVerdict.FAILED) == set()
    assert names(results, CaseVerdict.PASSED) >= {
        "publish/data",
        "publish/read-only",
        "stage/keeps the data",
        "twice/NodeStageVolume",
        "twice/NodeUnpublishVolume",
        "killed after/NodePublishVolume",
        "leaks/mounts",
    }
    # What the driver does not do is not tested, in whichever way the case finds out.
    reason = "not supported: CREATE_DELETE_VOLUME is not among its controller capabilities"
    for name in (
        "twice/CreateVolume",
        "killed after/DeleteVolume",
        "provision/capacity",
        "stats/follow what is written",
    ):
        assert (results[name].verdict, results[name].reason) == (CaseVerdict.SKIPPED, reason)
    assert (
        "more than the given volumes (--volume-id): vol-1" in results["publish/many volumes at once"].reason
    )


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "case", "found"),
    [
        ("leaks", "leaks/mounts", "still mounted"),
        ("once", "twice/NodeStageVolume", "INTERNAL (vol-1 is staged)"),
        ("logs", "secrets/not in logs and errors", "the log of node-1 has the value of a secret"),
        ("forgets", "killed after/NodePublishVolume", "FAILED_PRECONDITION (vol-1 is not staged)"),
    ],
)
async def test_a_bug_of_such_a_driver_is_found(bug: str, case: str, found: str, tmp_path: Path) -> None:
    results = await run_cases(static_driver.command_line(bug), f"^{case}$", GIVEN, tmp_path)
    assert results[case].verdict is CaseVerdict.FAILED
    assert found in results[case].reason


@pytest.mark.root
@pytest.mark.slow
async def test_a_driver_may_ignore_ids(tmp_path: Path) -> None:
    """It publishes its own volume, with the data of an earlier run, and no directory of others."""
    (own := tmp_path / "volumes" / "gold").mkdir(parents=True)
    (own / "data").write_text("of an earlier run")
    line = static_driver.command_line("by-context", str(own.parent))
    results = await run_cases(line, "^publish/path in an id$", GIVEN, tmp_path)
    assert names(results, CaseVerdict.PASSED) == {"publish/path in an id"}


@pytest.mark.root
@pytest.mark.slow
async def test_more_volumes_can_be_given(tmp_path: Path) -> None:
    given = GivenVolumes(ids=tuple(f"vol-{n}" for n in range(6)), context={"tier": "gold"})
    results = await run_cases(static_driver.command_line(), "^publish/many volumes at once$", given, tmp_path)
    assert names(results, CaseVerdict.PASSED) == {"publish/many volumes at once"}


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("bug", ["", "writable"])
async def test_a_read_only_volume_is_never_written(bug: str, tmp_path: Path) -> None:
    given = GivenVolumes(ids=("vol-1",), context={"tier": "gold"}, read_only=True)
    focus = "^((publish|unpublish|unstage|stats)/.*|killed after/N.*)$"
    (volumes := tmp_path / "volumes").mkdir()
    results = await run_cases(static_driver.command_line(bug, str(volumes)), focus, given, tmp_path)
    # What publish/read-only tries to write.
    assert os.listdir(volumes / "vol-1") == (["other"] if bug else [])
    if bug:
        failed = {name for name in names(results, CaseVerdict.FAILED) if name.startswith("publish/")}
        assert failed == {"publish/read-only"}
        assert "and a file could be written there" in results["publish/read-only"].reason
        return
    assert names(results, CaseVerdict.FAILED) == set()
    assert {"publish/data", "killed after/NodePublishVolume"} <= names(results, CaseVerdict.PASSED)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("read_only", [False, True], ids=["written", "read-only"])
async def test_inline_volumes_are_tested_like_others(read_only: bool, tmp_path: Path) -> None:
    given = GivenVolumes(inline=True, attributes={"class": "x"}, read_only=read_only)
    line = inline_driver.command_line("needs=class")
    focus = "^(publish/.*|(twice|killed after)/NodeUnpublishVolume|leaks/mounts|cluster/inline)$"
    results = await run_cases(line, focus, given, tmp_path)
    assert names(results, CaseVerdict.FAILED) == set()
    assert names(results, CaseVerdict.PASSED) >= {
        "publish/data",
        "publish/read-only",
        "publish/many volumes at once",
        "twice/NodeUnpublishVolume",
        "killed after/NodeUnpublishVolume",
        "leaks/mounts",
        "cluster/inline",
    }
    assert results["publish/two pods of one node"].reason == "not supported: an inline volume has one pod"


@pytest.mark.root
@pytest.mark.slow
async def test_an_inline_volume_that_stays_mounted_is_found(tmp_path: Path) -> None:
    results = await run_cases(
        inline_driver.command_line("keeps"),
        "^twice/NodeUnpublishVolume$",
        GivenVolumes(inline=True),
        tmp_path,
    )
    assert "INTERNAL (it stays mounted)" in results["twice/NodeUnpublishVolume"].reason


@pytest.mark.root
@pytest.mark.slow
async def test_claims_of_a_cluster_are_bound_to_the_given_volume(tmp_path: Path) -> None:
    focus = "^cluster/(claim and pods|clone|inline|every call twice|driver killed after NodeStageVolume)$"
    results = await run_cases(static_driver.command_line(), focus, GIVEN, tmp_path)
    assert names(results, CaseVerdict.FAILED) == set()
    assert names(results, CaseVerdict.SKIPPED) == {"cluster/clone", "cluster/inline"}


@pytest.mark.root
async def test_a_driver_that_creates_volumes_is_given_none(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="--volume-id is for drivers that do not create volumes"):
        await run_cases(sample_driver.command_line(), "^identity/name$", GIVEN, tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--volume-id", "v", "--inline"), "--volume-id and --inline exclude each other"),
        (("--volume-id", "v", "--volume-id", "v"), "--volume-id: an id is empty, or there twice"),
        (("--volume-context", "a=b"), "--volume-context needs --volume-id"),
        (("--volume-id", "v", "--volume-context", "a"), "--volume-context is KEY=VALUE, not 'a'"),
        (("--inline-attribute", "a"), "--inline-attribute is KEY=VALUE, not 'a'"),
        (("--read-only",), "--read-only needs --volume-id or --inline"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(command, ["--driver-command", "./b", *words])
    assert done.exit_code == 2
    assert said in done.output
