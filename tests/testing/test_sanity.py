"""csi-sanity with a driver that leaves mounts: the failing specs fail, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import sample_driver
from volplane.cluster import external_driver
from volplane.host.mounts import read_table, unmount
from volplane.testing import driver_run, runner, sanity
from volplane.testing.cases import ALL_CASES
from volplane.testing.runner import CaseSettings, CaseVerdict

pytestmark = [pytest.mark.root, pytest.mark.slow]

SECRET = "sesame"


@pytest.mark.peer("csi-sanity")
@pytest.mark.parametrize(("mutant", "most"), [("leaks-a-mount", 1), ("wrong-error-code", 3)])
async def test_what_one_spec_leaves_does_not_fail_the_next(mutant: str, most: int, tmp_path: Path) -> None:
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line(mutant)),
        runner.select_cases(ALL_CASES, "^sanity/", ""),
        CaseSettings(seed=1),
        lambda result: None,
        directory=tmp_path / "s",
        secrets={"key": SECRET},
    )
    failed = [result.name for result in run.results if result.verdict is CaseVerdict.FAILED]
    assert len(run.results) > 50
    assert len(failed) <= most, failed
    assert not any("\n" in result.reason for result in run.results)
    verdicts = {result.name: result.verdict for result in run.results}
    assert verdicts["sanity/NodeUnpublishVolume should remove target path"] is not CaseVerdict.SKIPPED
    assert not read_table().under(str(tmp_path))


@pytest.mark.parametrize("name", ["plain", "two words", "100%d of\\040it", "tab\tand 1"])
def test_mounts_below_any_path_are_removed(name: str, tmp_path: Path) -> None:
    place, beside = tmp_path / name, tmp_path / f"{name}er"
    inner = place / "a b" / "1"
    remove = tmp_path / "remove"
    remove.write_text(sanity.REMOVE_PATH)
    inner.mkdir(parents=True)
    beside.mkdir()
    for target in (place, beside):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(target)], check=True)
    try:
        inner.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(inner)], check=True)
        subprocess.run(["/bin/sh", str(remove), str(place)], check=True)
        assert not place.exists()
        assert [entry.target for entry in read_table().under(str(tmp_path))] == [str(beside)]
    finally:
        for entry in reversed(read_table().under(str(tmp_path))):
            unmount(entry.target)


async def test_secrets_in_a_message_of_the_suite_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = {"Message": f"rpc error: code = Internal desc = the key {SECRET} is wrong"}
    spec = {"LeafNodeType": "It", "LeafNodeText": "works", "State": "failed", "Failure": failure}
    report = json.dumps([{"SpecReports": [{**spec, "ContainerHierarchyTexts": ["Node Service"]}]}])
    suite = tmp_path / "bin" / sanity.PROGRAM
    suite.parent.mkdir()
    suite.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "place = next(w for w in sys.argv if w.startswith('--ginkgo.json-report=')).partition('=')[2]\n"
        f"open(place, 'w').write({report!r})\n"
    )
    suite.chmod(0o755)
    monkeypatch.setenv("PATH", f"{suite.parent}:{os.environ['PATH']}")
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line()),
        runner.select_cases(ALL_CASES, "^sanity/", ""),
        CaseSettings(seed=1),
        lambda result: None,
        secrets={"key": SECRET},
        nodes=1,
    )
    assert [result.name for result in run.results] == ["sanity/works"]
    assert run.results[0].reason == "csi-sanity: INTERNAL (the key ***stripped*** is wrong), expected OK"
