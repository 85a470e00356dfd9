"""What a pull request and a README show of a run."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from tests.testing.test_reports import made
from volplane.testing.report import badge, summary
from volplane.testing.report.summary import MAX_FINDINGS
from volplane.testing.runner import CaseResult, CaseVerdict


def test_the_summary_counts_and_names_what_failed() -> None:
    text = summary.summary(made())
    assert text.startswith(
        "### ❌ d.example.com 1.2: CSI driver tests\n\n1 passed, **1 failed**, 1 skipped in 3 s"
    )
    assert "| provision/capacity | CSI: CreateVolume |" in text
    assert "--focus '^provision/capacity$' --seed 42" in text


def test_the_words_of_a_driver_are_no_markup() -> None:
    run = made()
    run.results[1].reason = "CreateVolume: INTERNAL (<b>| @all `x` [a](b)\n# no), expected OK"
    (row,) = [line for line in summary.summary(run).splitlines() if "INTERNAL" in line]
    assert r"\<b\>\| \@all \`x\` \[a\]\(b\)" in row
    assert len(re.findall(r"(?<!\\)\|", row)) == 4


def test_a_long_list_is_cut() -> None:
    run = made()
    run.results = [
        CaseResult(f"a/{'x' * n}", "CSI: X", "", CaseVerdict.FAILED, "y" * n)
        for n in range(1, MAX_FINDINGS + 4)
    ]
    assert "| … and 3 more | | |" in summary.summary(run)


def test_a_run_without_failures_is_short() -> None:
    run = made()
    del run.results[1]
    assert summary.summary(run) == (
        "### ✅ d.example.com 1.2: CSI driver tests\n\n1 passed, 0 failed, 1 skipped in 3 s (seed 42)\n"
    )


def test_an_interrupted_run_says_so() -> None:
    run = made(complete=False)
    assert "**interrupted**" in summary.summary(run)
    assert badge.message(run) == ("interrupted", badge.INTERRUPTED)


def test_the_badge_is_an_image_with_the_result(tmp_path: Path) -> None:
    run = made()
    run.driver = "<d>"
    badge.write(run, tmp_path / "b.svg")
    root = ElementTree.parse(tmp_path / "b.svg").getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["CSI tests", "1 failed, 1 passed"]
    assert badge.BAD in (tmp_path / "b.svg").read_text()
    assert not re.search(r"href|src=|url\(\s*['\"]?http|<style|<script", (tmp_path / "b.svg").read_text())


def test_a_badge_is_green_if_all_failures_are_known() -> None:
    run = made()
    run.results[1].known = "k:1"
    assert badge.message(run) == ("1 passed, 1 known", badge.GOOD)
