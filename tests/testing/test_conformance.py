"""Conformance by capability: what was promised, exercised, and with which faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from tests.support import sample_driver
from tests.testing.test_reports import CALL, made
from volplane.cluster import external_driver
from volplane.csi.services import METHODS
from volplane.testing import driver_run, runner
from volplane.testing.capabilities import CAPABILITY_NAMES
from volplane.testing.cases import ALL_CASES
from volplane.testing.report import machine, page
from volplane.testing.report.conformance import (
    CAPABILITIES,
    EVERY_DRIVER,
    CapabilityUse,
    MethodUse,
    use_by_capability,
)
from volplane.testing.runner import CallCount, CaseResult, CaseSettings, CaseVerdict, count_calls

PASSED, FAILED, SKIPPED = CaseVerdict.PASSED, CaseVerdict.FAILED, CaseVerdict.SKIPPED


def result(
    name: str, verdict: CaseVerdict, needs: tuple[str, ...] | None, reason: str = "", **counts: CallCount
) -> CaseResult:
    return CaseResult(name, "CSI: X", "", verdict, reason, needs=needs, call_counts=counts)


def used(name: str, *results: CaseResult, promised: tuple[str, ...] = ()) -> CapabilityUse:
    (found,) = [use for use in use_by_capability(promised, results) if use.capability == name]
    return found


def test_the_table_has_every_call_and_every_need_of_a_capability() -> None:
    called = {method for info in CAPABILITIES.values() for method in info.methods}
    served = {name for name, method in METHODS.items() if method.service.startswith("csi.")}
    assert called == served
    needed = {need for info in CAPABILITIES.values() for need in info.needs}
    # Found out in other ways, or part of a capability that is in the table.
    others = {"secrets", "nodes", "block", "shared", "inline", "expand", "expand-online", "expand-claim"}
    assert CAPABILITY_NAMES.keys() - others == needed


def test_cases_count_for_what_they_need() -> None:
    results = [
        result("snapshot/a", PASSED, ("create", "snapshot")),
        result("snapshot/b", FAILED, ("create", "snapshot")),
        result("snapshot/c", SKIPPED, ("snapshot",), "not supported: no disk"),
        result("publish/a", PASSED, ("create",)),
        result("sanity/a", FAILED, None),
    ]
    found = used("CREATE_DELETE_SNAPSHOT", *results)
    assert (found.passed, found.failed, found.skipped) == (1, ["snapshot/b"], {"no disk": 1})
    assert used("CREATE_DELETE_VOLUME", *results).passed == 2
    assert used(EVERY_DRIVER, *results).passed == 1


def test_calls_and_faults_are_counted_by_method() -> None:
    results = [
        result("publish/data", PASSED, (), NodePublishVolume=CallCount(ok=3, failed=1)),
        result(
            "twice/NodePublishVolume", PASSED, (), NodePublishVolume=CallCount(ok=2), Probe=CallCount(ok=1)
        ),
        result(
            "killed after/questions", PASSED, (), Probe=CallCount(ok=2), NodePublishVolume=CallCount(ok=1)
        ),
        result(
            "cluster/driver killed during NodePublishVolume",
            PASSED,
            (),
            NodePublishVolume=CallCount(failed=1),
        ),
        result(
            "cluster/every answer lost once",
            PASSED,
            (),
            NodePublishVolume=CallCount(ok=1, failed=1, notes={"cut after the driver's answer": 1}),
        ),
    ]
    found = used(EVERY_DRIVER, *results).methods
    assert found["NodePublishVolume"] == MethodUse(
        7, 3, {"twice": 1, "driver killed during": 1, "answer lost": 1}
    )
    assert found["Probe"] == MethodUse(3, 0, {"killed after": 1})


@pytest.mark.parametrize(
    ("name", "results", "exercised"),
    [
        ("GET_CAPACITY", [result("a/b", PASSED, ("capacity",))], False),
        ("GET_CAPACITY", [result("a/b", PASSED, (), GetCapacity=CallCount(failed=1))], True),
        ("CLONE_VOLUME", [result("a/b", SKIPPED, ("clone",))], False),
        ("CLONE_VOLUME", [result("a/b", FAILED, ("clone",))], True),
    ],
    ids=["no call", "a call", "no case", "a case"],
)
def test_a_promise_that_nobody_exercises_is_seen(
    name: str, results: list[CaseResult], exercised: bool
) -> None:
    assert used(name, *results, promised=(name,)).is_exercised is exercised


def test_a_capability_that_is_newer_than_ours_is_listed() -> None:
    found = used("node 99", promised=("node 99",))
    assert (found.promised, found.is_exercised) == (True, False)


def test_calls_are_counted_by_their_answer_and_what_was_done_to_them() -> None:
    calls = [
        structs.replace(CALL, code="OK"),
        structs.replace(CALL, code="OK", note="sent twice"),
        structs.replace(CALL, code="INTERNAL"),
        structs.replace(CALL, code="OK", method="Probe"),
    ]
    assert count_calls(calls) == {
        "CreateVolume": CallCount(2, 1, {"sent twice": 1}),
        "Probe": CallCount(1),
    }


def test_page_and_json_show_what_was_exercised() -> None:
    run = made()
    run.capabilities = ["CREATE_DELETE_VOLUME", "GET_CAPACITY"]
    run.results[1].needs, run.results[1].call_counts = ("create",), {"CreateVolume": CallCount(4, 2)}
    text = page.page(run)
    assert "CREATE_DELETE_VOLUME<span><b class='failed'>1 failed</b>, 6 calls</span>" in text
    assert "GET_CAPACITY<span><b class='failed'>not exercised</b></span>" in text
    assert "Not promised: CONTROLLER_SERVICE, " in text
    reported = {one["capability"]: one for one in machine.to_dict(run)["capabilities"]}
    assert reported["CREATE_DELETE_VOLUME"]["calls"]["CreateVolume"] == {"ok": 4, "failed": 2, "faults": {}}
    assert reported["GET_CAPACITY"]["exercised"] is False
    assert reported["LIST_VOLUMES"]["promised"] is False


@pytest.mark.root
@pytest.mark.slow
async def test_a_run_counts_its_calls_without_those_that_clean_up(tmp_path: Path) -> None:
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line()),
        runner.select_cases(ALL_CASES, "^(publish/never published|twice/NodePublishVolume)$", ""),
        CaseSettings(seed=1),
        lambda result: None,
        directory=tmp_path / "s",
    )
    uses = {use.capability: use for use in run.capability_uses()}
    assert uses["CREATE_DELETE_VOLUME"].methods["DeleteVolume"].ok == 1  # of the lifecycle
    assert uses[EVERY_DRIVER].methods["NodePublishVolume"].ok == 3
    assert uses[EVERY_DRIVER].faults == {"twice": 1}
    assert uses["node STAGE_UNSTAGE_VOLUME"].promised
