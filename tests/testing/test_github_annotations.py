"""Failures as workflow commands of GitHub Actions."""

from __future__ import annotations

from tests.testing.test_reports import made
from volplane.testing.report.github import MAX_ANNOTATIONS, annotate
from volplane.testing.runner import CaseResult, CaseVerdict


def test_a_failure_is_an_error_with_its_command() -> None:
    (line,) = annotate(made())
    assert line.startswith("::error title=provision/capacity::")
    assert "%0Arun it again: " in line
    assert "--focus '^provision/capacity$' --seed 42" in line


def test_the_words_of_a_driver_are_no_commands() -> None:
    run = made()
    run.results[1].reason = "100%\r\n::set-env name=X::y"
    (line,) = annotate(run)
    assert "\n" not in line
    assert "\r" not in line
    assert "100%25" in line


def test_a_known_failure_is_none() -> None:
    run = made()
    run.results[1].known = "known.txt:1"
    assert list(annotate(run)) == []


def test_an_interrupted_run_is_an_error() -> None:
    run = made(complete=False)
    del run.results[1]
    assert [line.partition("::the")[0] for line in annotate(run)] == ["::error title=interrupted"]


def test_many_causes_fit_into_what_is_shown() -> None:
    run = made()
    run.results = [
        CaseResult(f"a/{'x' * n}", "CSI: X", "", CaseVerdict.FAILED, "y" * n) for n in range(1, 15)
    ]
    lines = list(annotate(run))
    assert len(lines) == MAX_ANNOTATIONS
    assert "title=more failures::5 more causes of failures" in lines[-1]
