"""Failures with one cause are one finding, and a call is named by its volume."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec import structs

from tests.testing.test_reports import CALL, made
from volplane.testing.report import calls, console, machine, page
from volplane.testing.report.findings import Finding, group_by_cause
from volplane.testing.runner import CaseResult, CaseVerdict


def failed(name: str, reason: str, section: str = "CSI: NodeStageVolume") -> CaseResult:
    return CaseResult(name, section, "It works.", CaseVerdict.FAILED, reason)


def grouped(*reasons: str) -> list[Finding]:
    return group_by_cause(failed(f"group/{n}", reason) for n, reason in enumerate(reasons))


@pytest.mark.parametrize(
    "reasons",
    [
        (
            "NodeStageVolume: INTERNAL (volume '1e70454d-e30b-11f1-99b2-ce3e582d57fc' is not attached),"
            " expected OK",
            "NodeStageVolume repeated after the driver was killed during it: INTERNAL (volume"
            " '7aa0454d-e30b-11f1-99b2-ce3e582d57fc' is not attached), expected OK",
            "NodeStageVolume failed 3 times with the same error: INTERNAL (volume"
            " '338f48ee-e30b-11f1-9936-ce3e582d57fc' is not attached)",
            "csi-sanity: INTERNAL (volume 'fake-vol-id-2b0cc187-c' is not attached), expected OK (a.go:26)",
            "not within 60 s: pod pod-0a1b2c3d runs (pod/default/pod-0a1b2c3d waits: MountVolume.MountDevice"
            " failed: rpc error: code = Internal desc = volume 'pvc-d57fc338f48ee123' is not attached",
        ),
        (
            "/tmp/vtd-abc/node-1/pods/a/kubernetes.io~csi/pvc-dc6e6c956ac5b2ba/mount is still mounted",
            "/tmp/vtd-xyz/node-2/pods/b/kubernetes.io~csi/pvc-1f388632cf9c49aa/mount is still mounted",
        ),
        (
            "the data is not what was written, after NodeStageVolume was disturbed: 0 bytes,"
            " sha256 e3b0c44298fc1c14",
            "the data is not what was written, after CreateVolume was disturbed, on the next node: 7 bytes,"
            " sha256 a3b0c44298fc1c19",
        ),
        (
            "ControllerPublishVolume of an unknown volume: INTERNAL (no volume x-12), expected NOT_FOUND",
            "csi-sanity: NodeExpandVolume: INTERNAL (no volume x-13), expected NOT_FOUND (node.go:752)",
        ),
    ],
    ids=["an error of the driver", "a mount", "data", "a wrong code"],
)
def test_one_cause_is_one_finding(reasons: tuple[str, ...]) -> None:
    (finding,) = grouped(*reasons)
    assert len(finding.results) == len(reasons)


@pytest.mark.parametrize(
    "reasons",
    [
        (
            "NodeStageVolume: INTERNAL (no disk), expected OK",
            "NodeStageVolume: INTERNAL (no key), expected OK",
        ),
        (
            "NodeStageVolume: INTERNAL (no disk), expected OK",
            "NodeStageVolume: ABORTED (no disk), expected OK",
        ),
        ("DeleteVolume: OK, expected FAILED_PRECONDITION", "CreateVolume: OK, expected FAILED_PRECONDITION"),
        ("CreateVolume: UNKNOWN (), expected OK", "DeleteVolume: UNKNOWN (), expected OK"),
        ("a volume is too small", "a snapshot is too small"),
    ],
    ids=["messages", "codes", "calls without an error", "errors without a message", "texts"],
)
def test_different_causes_are_different_findings(reasons: tuple[str, ...]) -> None:
    assert len(grouped(*reasons)) == 2


def test_a_finding_names_all_its_calls_and_short_paths() -> None:
    (finding,) = grouped(
        "NodeStageVolume: INTERNAL (no disk below /tmp/vtd-1/node-1/state/disk), expected OK",
        "NodePublishVolume again: INTERNAL (no disk below /tmp/vtd-1/node-1/state/disk), expected OK",
    )
    assert finding.cause == "NodeStageVolume, NodePublishVolume: INTERNAL (no disk below …/disk)"


def test_the_cause_with_most_cases_is_first() -> None:
    causes = [finding.cause for finding in grouped("rare", "often", "often")]
    assert causes == ["often", "rare"]


def test_rounds_of_one_case_count_once() -> None:
    (finding,) = group_by_cause([failed("a/b", "often"), failed("a/b", "often")])
    assert finding.names == ["a/b"]


def test_every_report_shows_a_finding_once_and_all_its_cases(tmp_path: Path) -> None:
    run = made()
    run.results += [failed("killed/one", run.results[1].reason), failed("killed/two", "something else")]
    stream = io.StringIO()
    console.ProgressDisplay(stream, total=5).end(run)
    text = stream.getvalue()
    assert "2 cases: CreateVolume: INTERNAL (no \x00 luck & <script>)" in text
    assert "  the same in:\n    killed/one\n" in text
    assert text.count("rerun:") == 2
    assert "3 failed (2 causes)" in text
    findings = machine.to_dict(run)["findings"]
    assert [one["cases"] for one in findings] == [["provision/capacity", "killed/one"], ["killed/two"]]
    written = page.page(run)
    assert written.count("<article") == 2
    assert "2 cases with this cause" in written
    assert written.count("--focus &#x27;^killed/one$&#x27;") == 1
    machine.write_junit(run, tmp_path / "r.xml")
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()[0]
    assert len(suite) == 5  # a row for each case
    assert suite.get("failures") == "3"


@pytest.mark.parametrize(
    ("method", "request_", "response", "shown"),
    [
        ("CreateVolume", '{"name":"pvc-1"}', '{"volume":{"volume_id":"vol-1"}}', "vol-1"),
        ("CreateVolume", '{"name":"pvc-1"}', "", "pvc-1"),
        ("NodeStageVolume", '{"volume_id":"vol-1"}', "{}", "vol-1"),
        ("DeleteSnapshot", '{"snapshot_id":"snap-1"}', "{}", "snap-1"),
        (
            "CreateSnapshot",
            '{"name":"s","source_volume_id":"vol-1"}',
            '{"snapshot":{"snapshot_id":"x"}}',
            "x",
        ),
        ("Probe", "{}", "{}", "node-1"),
        ("Probe", "not json", "", "node-1"),
    ],
)
def test_a_call_is_about_its_volume(method: str, request_: str, response: str, shown: str) -> None:
    call = structs.replace(CALL, method=method, request=request_, response=response)
    assert calls.about(call) == shown
    run = made()
    run.results[1].calls = [call]
    assert f"<summary>{shown}</summary>" in page.page(run)
