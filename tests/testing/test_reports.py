"""What a run is shown as: the words of the terminal, JUnit, JSON and the page, from results alone."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec import structs

from volplane.csi.call_interceptor import CsiCall
from volplane.testing.report import DriverTestRun, console, machine, page
from volplane.testing.runner import CaseResult, CaseVerdict

CALL = CsiCall(
    number=1,
    method="CreateVolume",
    caller="test-driver",
    address="/tmp/x/node-1/csi.sock",
    request='{"name":"<pvc>"}',
    start=100.25,
    end=100.5,
    code="INTERNAL",
    message="no \x00 luck & <script>",
)
LINE = ["volplane", "test-driver", "--driver-command", "./driver --node=$NODE_ID"]


def results() -> list[CaseResult]:
    return [
        CaseResult("identity/name", "CSI: GetPluginInfo", "A name.", CaseVerdict.PASSED, seconds=0.01),
        CaseResult(
            "provision/capacity",
            "CSI: CreateVolume",
            "Enough bytes.",
            CaseVerdict.FAILED,
            "CreateVolume: INTERNAL (no \x00 luck & <script>)",
            1.5,
            calls=[CALL],
            logs={"node-1": "panic: <nil>"},
            began=100.0,
        ),
        CaseResult(
            "clone/data", "CSI: CreateVolume", "A copy.", CaseVerdict.SKIPPED, "not supported: CLONE_VOLUME"
        ),
    ]


def made(*, complete: bool = True) -> DriverTestRun:
    run = DriverTestRun("d.example.com", "1.2", ["CREATE_DELETE_VOLUME"], 42, LINE, 3.25, ["n1"], results())
    run.complete = complete
    return run


def test_the_replay_is_one_command_for_a_shell() -> None:
    run = made()
    words = shlex.split(run.replay(run.results[1]))
    assert words == [*LINE, "--focus", "^provision/capacity$", "--seed", "42"]


def test_what_failed_in_a_later_round_is_run_up_to_that_round() -> None:
    run = made()
    run.results[1].round = 7
    assert run.replay(run.results[1]).endswith("--seed 42 --repeat 7")


def test_a_run_that_was_stopped_says_so_everywhere(tmp_path: Path) -> None:
    run = made(complete=False)
    assert "in 3.2 s, interrupted: d.example.com" in console.verdict(run)
    assert "interrupted" in page.page(run)
    assert machine.to_dict(run)["complete"] is False
    machine.write_junit(run, tmp_path / "r.xml")
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("errors")) == ("4", "1")
    assert [found.get("message") for found in suite.iter("error")] == ["interrupted"]


def test_calls_that_only_clean_up_are_not_taken_for_the_reason(tmp_path: Path) -> None:
    run, stream = made(), io.StringIO()
    failed = run.results[1]
    failed.verdict_at = 100.6
    failed.calls = [CALL, *(structs.replace(CALL, method="DeleteVolume", start=101.0 + n) for n in range(9))]
    console.ProgressDisplay(stream, total=3).end(run)
    assert "CreateVolume <pvc> INTERNAL" in stream.getvalue()
    assert "DeleteVolume" not in stream.getvalue()
    failures = page.page(run).partition("<h2>Capabilities")[0]
    first, _, rest = failures.partition("Cleanup after the case")
    assert (first.count("DeleteVolume"), rest.count("DeleteVolume")) == (0, 9)
    reported = machine.to_dict(run)["cases"][1]["calls"]
    assert [call["cleaning"] for call in reported] == [False] + [True] * 9


def test_a_terminal_shows_the_case_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen, file = Terminal(), io.StringIO()
    for stream in (screen, file):
        progress = console.ProgressDisplay(stream, total=3)
        progress.case_starts("provision/slow one")
        progress.end(made())
    assert "provision/slow one" in screen.getvalue()
    assert "slow one" not in file.getvalue()


def test_the_terminal_tells_what_is_wrong_and_what_was_not_promised() -> None:
    run, stream = made(), io.StringIO()
    progress = console.ProgressDisplay(stream, total=3)
    for result in run.results:
        progress.case_ended(result)
    progress.end(run)
    text = stream.getvalue()
    assert "3/3 - clone/data not supported: CLONE_VOLUME" in text
    assert "required: Enough bytes." in text
    assert "0.250 s CreateVolume <pvc> INTERNAL in 250 ms" in text
    assert run.replay(run.results[1]) in text
    assert "1 passed, 1 failed, 1 skipped in 3.2 s: d.example.com 1.2, seed 42" in text


def test_junit_is_what_machines_read(tmp_path: Path) -> None:
    machine.write_junit(made(), tmp_path / "r.xml")
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    passed, failed, skipped = suite
    assert (passed.get("classname"), passed.get("name"), len(passed)) == ("d.example.com.identity", "name", 0)
    assert failed[0].get("type") == "CSI: CreateVolume"
    assert "--focus" in (failed[0].text or "")
    assert failed[1].text == "node-1:\npanic: <nil>"
    assert skipped[0].tag == "skipped"


def test_json_has_the_calls_of_what_failed(tmp_path: Path) -> None:
    machine.write_json(made(), tmp_path / "r.json")
    reported = json.loads((tmp_path / "r.json").read_text())
    assert (reported["passed"], reported["failed"], reported["skipped"]) == (1, 1, 1)
    case = reported["cases"][1]
    assert (case["calls"][0]["at"], case["calls"][0]["seconds"]) == (0.25, 0.25)
    assert case["calls"][0]["volume"] == "<pvc>"
    assert "calls" not in reported["cases"][0]


def test_the_page_needs_nothing_else_and_escapes_what_drivers_say() -> None:
    text = page.page(made())
    assert "<script>" not in text
    assert not re.search(r"\ssrc=|url\(|@import|<link|<iframe|\son\w+=", text)
    assert "no \x00 luck &amp; &lt;script&gt;" in text
    assert "Enough bytes." in text
    assert "CSI: CreateVolume" in text
    assert "panic: &lt;nil&gt;" in text
    assert "left:50.00%;width:50.00%" in text


def test_a_section_of_the_specification_leads_there() -> None:
    run = made()
    run.results[1].section = "CSI: CreateVolume Errors"
    run.results[2].section = "Kubernetes: volume cloning"
    links = re.findall(r"href='(.*?)'", page.page(run))
    assert links == [
        f"{page.SPECIFICATION}#{heading}"
        for heading in ("createvolume-errors", "getplugininfo", "createvolume-errors")
    ]


def test_several_failures_have_a_list_that_leads_to_each() -> None:
    run = made()
    assert "wrong-1" not in "".join(re.findall(r"href='(.*?)'", page.page(run)))
    run.results += results()
    run.results[-2].reason = "another one"
    text = page.page(run)
    for anchor in ("wrong-1", "wrong-2"):
        assert text.count(f"href='#{anchor}'") == text.count(f"id='{anchor}'") == 1


def test_groups_are_open_where_something_failed() -> None:
    groups = re.findall(r"<details class='group'( open)?><summary>(\w+)", page.page(made()))
    assert groups == [("", "identity"), (" open", "provision"), ("", "clone")]


def test_a_page_without_failures_says_so() -> None:
    run = made()
    run.results = [r for r in run.results if r.verdict is not CaseVerdict.FAILED]
    assert "Failures" not in page.page(run)
    assert "2 cases in 3.2 s on 1 node, seed 42" in page.page(run)
    del run.results[1:]
    assert "1 case in 3.2 s" in page.page(run)


def test_a_terminal_without_utf8_gets_verdicts_that_it_can_show() -> None:
    raw = io.BytesIO()
    display = console.ProgressDisplay(io.TextIOWrapper(raw, "ascii", errors="replace"), total=2)
    for name, verdict in (("a/good", CaseVerdict.PASSED), ("a/bad", CaseVerdict.FAILED)):
        display.case_ended(CaseResult(name, "CSI: X", "It must.", verdict))
    display.console.file.flush()
    assert "ok a/good" in raw.getvalue().decode("ascii")
    assert "FAILED a/bad" in raw.getvalue().decode("ascii")


def test_the_specs_of_csi_sanity_count_as_one_case() -> None:
    stream = io.StringIO()
    display = console.ProgressDisplay(stream, total=3)
    for name in ("a/one", "sanity/x", "sanity/y", "b/two"):
        display.case_ended(CaseResult(name, "CSI: X", "It must.", CaseVerdict.PASSED))
    counts = re.findall(r"\d/\d", stream.getvalue())
    assert counts == ["1/3", "2/3", "2/3", "3/3"]
