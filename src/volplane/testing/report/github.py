"""Failures as workflow commands of GitHub Actions, which shows them beside the run and the pull request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from volplane.testing.report import DriverTestRun
from volplane.testing.report.findings import Finding

MAX_ANNOTATIONS = 10  # of one level, which is all that GitHub shows for one step


def write(run: DriverTestRun, path: str | Path) -> None:
    Path(path).write_text("".join(f"{line}\n" for line in annotate(run)), encoding="utf-8")


def annotate(run: DriverTestRun) -> Iterator[str]:
    """An error for each cause of failures, and warnings for what can be removed from the known failures."""
    findings = [finding for finding in run.findings() if not finding.is_known]
    for finding in findings[: MAX_ANNOTATIONS - 1]:
        yield _command("error", _title(finding), _message(run, finding))
    if more := findings[MAX_ANNOTATIONS - 1 :]:
        text = f"{len(more)} more causes of failures; see the report: {', '.join(_title(f) for f in more)}"
        yield _command("error", "more failures", text)
    if not run.complete:
        yield _command("error", "interrupted", "the run was interrupted: cases are missing in the report")
    for entry in run.unneeded_entries()[:MAX_ANNOTATIONS]:
        yield _command("warning", "known failures", str(entry))


def _title(finding: Finding) -> str:
    more = f" and {len(finding.names) - 1} more" if len(finding.names) > 1 else ""
    return f"{finding.names[0]}{more}"


def _message(run: DriverTestRun, finding: Finding) -> str:
    again = run.replay(finding.results[0])
    return f"{finding.cause}\n{finding.section}\nrun it again: {again}"


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_escape_property(title)}::{_escape(message)}"


def _escape(text: str) -> str:
    """A message is one line; drivers choose the words of their errors."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")
