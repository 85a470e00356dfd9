"""A run compared with an earlier one: what has changed, from two lists of results."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.testing.test_reports import made
from volplane.cli.test_driver import command
from volplane.testing.report import comparison, console, machine, page, summary
from volplane.testing.report.comparison import OldCase, OldReport, compare
from volplane.testing.runner import CaseResult, CaseVerdict

PASSED, FAILED, SKIPPED = CaseVerdict.PASSED, CaseVerdict.FAILED, CaseVerdict.SKIPPED


def old(**verdicts: CaseVerdict) -> OldReport:
    return OldReport("d", [OldCase(name, verdict) for name, verdict in verdicts.items()], "1", "yesterday")


def now(**verdicts: CaseVerdict) -> list[CaseResult]:
    return [CaseResult(name, "CSI: X", "", verdict) for name, verdict in verdicts.items()]


def test_what_has_changed_is_told_by_kind() -> None:
    found = compare(
        old(a=PASSED, b=FAILED, c=PASSED, d=SKIPPED, e=FAILED, gone=PASSED),
        now(a=FAILED, b=PASSED, c=SKIPPED, d=PASSED, e=FAILED, fresh=PASSED),
        complete=True,
    )
    assert dict(found.lines()) == {
        "newly failing": ["a"],
        "newly passing": ["b", "d"],
        "newly skipped": ["c"],
        "new": ["fresh"],
        "gone": ["gone"],
    }
    assert found.before == "d 1 yesterday"


def test_a_case_that_was_not_selected_is_not_gone() -> None:
    before = old(a=PASSED, b=PASSED)
    assert compare(before, now(a=PASSED), complete=True, is_selected=lambda n: n == "a").gone == []
    assert compare(before, now(a=PASSED), complete=False).gone == []


def test_the_worst_round_counts() -> None:
    results = [*now(a=PASSED), *now(a=FAILED)]
    assert compare(old(a=PASSED), results, complete=True).newly_failing == ["a"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(0.2, 1.3, ["slower"]), (4.0, 1.5, ["faster"]), (0.1, 0.9, []), (10.0, 12.0, [])],
    ids=["slower", "faster", "too small to tell", "almost the same"],
)
def test_times_are_told_when_they_differ_much(before: float, after: float, expected: list[str]) -> None:
    results = [CaseResult("a", "CSI: X", "", PASSED, seconds=after)]
    found = compare(OldReport("d", [OldCase("a", PASSED, before)]), results, complete=True)
    assert [heading for heading, _ in found.lines()] == expected


def test_a_report_can_be_compared_with_itself_and_every_report_says_so(tmp_path: Path) -> None:
    run = made()
    machine.write_json(run, tmp_path / "old.json")
    before = comparison.read(str(tmp_path / "old.json"))
    run.comparison = compare(before, run.results, complete=True)
    assert list(run.comparison.lines()) == []
    assert "no change" in summary.summary(run)
    run.results[0].verdict = FAILED
    run.comparison = compare(before, run.results, complete=True)
    stream = io.StringIO()
    console.ProgressDisplay(stream, total=3).end(run)
    assert "compared with d.example.com 1.2\n  newly failing:\n    identity/name\n" in stream.getvalue()
    assert machine.to_dict(run)["comparison"]["newly_failing"] == ["identity/name"]
    assert "<dt>newly failing</dt><dd>identity/name</dd>" in page.page(run)
    assert "- newly failing: identity/name\n" in summary.summary(run)
    msgspec.json.encode(machine.to_dict(run))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"<html>", "is not a report of --json: JSON is malformed"),
        (b'{"driver": "\xff", "cases": []}', "is not a report of --json: "),
        (b'{"driver": "x"}', "is not a report of --json: Object missing required field `cases`"),
        (b'{"driver": "x", "cases": [{"name": 1}]}', "`$.cases[0].name`"),
    ],
    ids=["missing", "not JSON", "not UTF-8", "no cases", "wrong type"],
)
def test_a_report_that_cannot_be_used_is_wrong_usage(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "old").write_bytes(content)
    done = CliRunner().invoke(command, ["--driver-command", "./b", "--compare", str(tmp_path / "old")])
    assert done.exit_code == 2
    assert "--compare: " in done.output
    assert said in done.output
