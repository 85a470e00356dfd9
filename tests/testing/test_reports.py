"""What a run is shown as: the words of the terminal, JUnit, JSON and the page, from results alone."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

from volplane.csi.tap import Call
from volplane.testing.report import Run, console, machine, page
from volplane.testing.runner import Result, Verdict

CALL = Call(
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


def results() -> list[Result]:
    return [
        Result("identity/name", "CSI: GetPluginInfo", "A name.", Verdict.PASSED, seconds=0.01),
        Result(
            "provision/capacity",
            "CSI: CreateVolume",
            "Enough bytes.",
            Verdict.FAILED,
            "CreateVolume: INTERNAL (no \x00 luck & <script>)",
            1.5,
            calls=[CALL],
            logs={"node-1": "panic: <nil>"},
            began=100.0,
        ),
        Result("clone/data", "CSI: CreateVolume", "A copy.", Verdict.SKIPPED, "not promised: CLONE_VOLUME"),
    ]


def made() -> Run:
    return Run("d.example.com", "1.2", ["CREATE_DELETE_VOLUME"], 42, LINE, 3.25, ["n1"], results())


def test_the_replay_is_one_command_for_a_shell() -> None:
    run = made()
    words = shlex.split(run.replay(run.results[1]))
    assert words == [*LINE, "--focus", "^provision/capacity$", "--seed", "42"]


def test_the_terminal_tells_what_is_wrong_and_what_was_not_promised() -> None:
    run, stream = made(), io.StringIO()
    progress = console.Progress(stream, total=3)
    for result in run.results:
        progress.told(result)
    progress.end(run)
    text = stream.getvalue()
    assert "3/3 - clone/data not promised: CLONE_VOLUME" in text
    assert "demanded: Enough bytes." in text
    assert "0.250 s CreateVolume INTERNAL in 250 ms" in text
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
    assert skipped[0].tag == "skipped"


def test_json_has_the_calls_of_what_failed(tmp_path: Path) -> None:
    machine.write_json(made(), tmp_path / "r.json")
    told = json.loads((tmp_path / "r.json").read_text())
    assert (told["passed"], told["failed"], told["skipped"]) == (1, 1, 1)
    case = told["cases"][1]
    assert (case["calls"][0]["at"], case["calls"][0]["seconds"]) == (0.25, 0.25)
    assert "calls" not in told["cases"][0]


def test_the_page_needs_nothing_else_and_escapes_what_drivers_say() -> None:
    text = page.page(made())
    assert "<script>" not in text
    assert "http" not in text
    assert "no \x00 luck &amp; &lt;script&gt;" in text
    assert "Enough bytes." in text
    assert "CSI: CreateVolume" in text
    assert "panic: &lt;nil&gt;" in text
    assert "left:50.00%;width:50.00%" in text


def test_a_page_without_failures_says_so() -> None:
    run = made()
    run.results = [r for r in run.results if r.verdict is not Verdict.FAILED]
    assert "What is wrong" not in page.page(run)
