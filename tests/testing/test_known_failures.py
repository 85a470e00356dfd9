"""Known failures: which cases may fail, and what is said about entries that are wrong or not needed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from tests.support import sample_driver
from tests.testing.test_reports import made
from volplane.cli.test_driver import command
from volplane.testing import known_failures
from volplane.testing.known_failures import BadKnownFailures, KnownFailures
from volplane.testing.report import DriverTestRun, console, machine, page
from volplane.testing.runner import CaseResult, CaseVerdict

NAMES = ["list/volumes", "killed during/CreateVolume", "killed during/DeleteVolume", "a/b.c"]


def read(place: Path, text: str) -> KnownFailures:
    (place / "known.txt").write_text(text)
    return known_failures.read(str(place / "known.txt"), NAMES)


def result(name: str, verdict: CaseVerdict) -> CaseResult:
    return CaseResult(name, "CSI: X", "It works.", verdict, "bad" if verdict is CaseVerdict.FAILED else "")


def test_entries_are_names_with_wildcards_and_reasons(tmp_path: Path) -> None:
    known = read(tmp_path, "# ours\n\nlist/volumes   # no token\nkilled during/*\na/b.c\nsanity/x [y] #1 z\n")
    assert [entry.pattern for entry in known.entries] == [
        "list/volumes",
        "killed during/*",
        "a/b.c",
        "sanity/x [y]",
    ]
    assert str(known.find("list/volumes")) == f"{tmp_path}/known.txt:3: no token"
    assert str(known.find("killed during/DeleteVolume")) == f"{tmp_path}/known.txt:4"
    assert known.find("a/bxc") is None
    assert known.find("list/volumes too") is None


def test_every_bad_line_is_told_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(BadKnownFailures) as caught:
        read(
            tmp_path,
            "list/volumes\nlist\nlist/volums\nlist/volumes # again\nno/such thing at all\nsanity/any\n",
        )
    file = f"{tmp_path}/known.txt"
    assert str(caught.value).splitlines() == [
        f"{file}:2: 'list' is not the name of a case: GROUP/NAME, as in --list",
        f"{file}:3: 'list/volums' names no case; did you mean 'list/volumes'?",
        f"{file}:4: 'list/volumes' is in line 1 already",
        f"{file}:5: 'no/such thing at all' names no case; --list shows all names",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"\xff\xfe", "is not a text file"),
        (b"nonsense\n", ":1: 'nonsense'"),
    ],
    ids=["missing", "binary", "bad line"],
)
def test_a_file_that_cannot_be_used_is_wrong_usage(content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "k").write_bytes(content)
    done = CliRunner().invoke(command, ["--driver-command", "./b", "--known-failures", str(tmp_path / "k")])
    assert done.exit_code == 2
    assert "--known-failures: " in done.output
    assert said in done.output


def test_entries_that_no_failure_needs_are_told(tmp_path: Path) -> None:
    known = read(tmp_path, "list/volumes\nkilled during/*\na/b.c\nsanity/fails\nsanity/gone\n")
    results = [
        result("list/volumes", CaseVerdict.PASSED),
        result("killed during/CreateVolume", CaseVerdict.PASSED),
        result("killed during/DeleteVolume", CaseVerdict.FAILED),
        result("a/b.c", CaseVerdict.SKIPPED),
        result("sanity/fails", CaseVerdict.FAILED),
        result("sanity/other", CaseVerdict.PASSED),
    ]
    told = [str(one).removeprefix(f"{tmp_path}/") for one in known.find_unneeded(results)]
    assert told == [
        "known.txt:1: list/volumes no longer fails",
        "known.txt:5: sanity/gone names no case",
    ]
    assert known.find_unneeded(results[2:3]) == []  # the others did not run


def test_an_entry_is_needed_until_all_its_cases_have_run(tmp_path: Path) -> None:
    known = read(tmp_path, "killed during/*\n")
    results = [
        result("killed during/CreateVolume", CaseVerdict.PASSED),
        result("killed during/DeleteVolume", CaseVerdict.SKIPPED),
    ]
    assert known.find_unneeded(results[:1]) == []
    assert [one.why for one in known.find_unneeded(results)] == ["no longer fails"]


def test_an_entry_of_all_sanity_specs_is_not_needed_when_they_pass(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("sanity/*\n")
    known = known_failures.read(str(tmp_path / "k"), ["sanity/csi-sanity", *NAMES])
    specs = [result(f"sanity/{name}", CaseVerdict.PASSED) for name in ("a", "b")]
    assert [one.why for one in known.find_unneeded(specs)] == ["no longer fails"]
    assert known.find_unneeded([result("sanity/csi-sanity", CaseVerdict.SKIPPED)]) == []


def known_run(tmp_path: Path) -> DriverTestRun:
    run = made()
    (tmp_path / "k").write_text("provision/capacity # rounds down\nidentity/name\n")
    run.known_failures = known_failures.read(str(tmp_path / "k"), [one.name for one in run.results])
    run.results[1].known = str(run.known_failures.find("provision/capacity"))
    return run


def test_a_known_failure_is_shown_and_is_not_a_failure(tmp_path: Path) -> None:
    run, stream = known_run(tmp_path), io.StringIO()
    assert run.new_failures == []
    display = console.ProgressDisplay(stream, total=3)
    display.case_ended(run.results[1])
    display.end(run)
    text = stream.getvalue()
    assert f"provision/capacity 1.50 s known failure, {tmp_path}/k:1: rounds down" in text
    assert "1 passed, 0 failed, 1 known failure, 1 skipped" in text
    assert "rerun:" not in text
    assert "k:2: identity/name no longer fails" in text
    reported = machine.to_dict(run)
    assert (reported["failed"], reported["known_failures"]) == (1, 1)
    assert reported["unneeded_known_failures"][0]["why"] == "no longer fails"
    assert "known failure, " in page.page(run)
    assert "identity/name no longer fails" in page.page(run)
    machine.write_junit(run, tmp_path / "r.xml")
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "2")
    assert [one.tag for one in suite[1]] == ["skipped"]


@pytest.mark.root
def test_a_run_with_known_failures_succeeds_and_writes_every_report(tmp_path: Path) -> None:
    (tmp_path / "known.txt").write_text("publish/read-only  # a bug\npublish/data\n")
    old = {"driver": "x", "cases": [{"name": "publish/read-only", "verdict": "passed"}]}
    (tmp_path / "old.json").write_text(json.dumps(old))
    words = [
        "--focus",
        "^publish/(read-only|data)$",
        "--known-failures",
        "known.txt",
        "--compare",
        "old.json",
    ]
    words += ["--json", "r.json", "--summary", "r.md", "--badge", "r.svg"]
    driver = sample_driver.command_line("ignores-read-only")
    done = subprocess.run(
        [sys.executable, "-m", "volplane", "test-driver", "--driver-command", driver, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "known.txt:2: publish/data no longer fails" in done.stdout
    reported = json.loads((tmp_path / "r.json").read_text())
    assert (reported["failed"], reported["known_failures"], reported["passed"]) == (1, 1, 1)
    assert reported["comparison"]["newly_failing"] == ["publish/read-only"]
    assert "1 known failure, " in (tmp_path / "r.md").read_text()
    assert "1 passed, 1 known" in (tmp_path / "r.svg").read_text()
