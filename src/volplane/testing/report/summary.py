"""A short Markdown summary, for a comment on a pull request or for $GITHUB_STEP_SUMMARY."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from volplane.testing.report import DriverTestRun
from volplane.testing.report.findings import Finding
from volplane.testing.runner import CaseVerdict

MAX_FINDINGS = 20
MAX_NAMES = 5  # of one finding, or of one kind of change


def write(run: DriverTestRun, path: str | Path) -> None:
    Path(path).write_text(summary(run), encoding="utf-8")


def summary(run: DriverTestRun) -> str:
    return "\n".join(_lines(run)) + "\n"


def _lines(run: DriverTestRun) -> Iterator[str]:
    new, known = len(run.new_failures), len(run.failed_results) - len(run.new_failures)
    mark = "⚠️" if not run.complete else "❌" if new else "✅"
    counts = [f"{run.count(CaseVerdict.PASSED)} passed", f"**{new} failed**" if new else "0 failed"]
    counts += [f"{known} known failure{'s' * (known > 1)}"] * bool(known) + [
        f"{run.count(CaseVerdict.SKIPPED)} skipped"
    ]
    yield f"### {mark} {_escape(f'{run.driver} {run.version}'.strip())}: CSI driver tests"
    yield ""
    yield f"{', '.join(counts)} in {run.seconds:.0f} s (seed {run.seed})" + (
        "" if run.complete else ", **interrupted**"
    )
    if findings := run.findings():
        yield from ["", "| failure | cases | section |", "|---|---|---|"]
        yield from map(_finding, findings[:MAX_FINDINGS])
        if len(findings) > MAX_FINDINGS:
            yield f"| … and {len(findings) - MAX_FINDINGS} more | | |"
        first = findings[0].results[0]
        yield from ["", "Rerun the first:", "", *_code(run.replay(first))]
    if run.comparison is not None:
        yield from ["", f"Compared with {_escape(run.comparison.before)}:", ""]
        changes = [f"- {heading}: {_names(names)}" for heading, names in run.comparison.lines()]
        yield from changes or ["- no change"]
    if unneeded := run.unneeded_entries():
        yield from ["", "Known failures that can be removed:", ""]
        yield from (f"- {_escape(str(one))}" for one in unneeded)


def _finding(finding: Finding) -> str:
    names = [f"{name} (known)" if finding.is_known else name for name in finding.names]
    return f"| {_escape(finding.cause)} | {_names(names)} | {_escape(finding.section)} |"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(map(_escape, names[:MAX_NAMES])) + more


def _code(text: str) -> list[str]:
    """A code block that the text cannot end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [fence, text, fence]


def _escape(text: str) -> str:
    """Text as text: drivers choose the words of their errors."""
    return re.sub(r"([\\`*_{}\[\]<>()#|!~@])", r"\\\1", " ".join(text.split()))
