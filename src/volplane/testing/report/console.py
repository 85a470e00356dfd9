"""Terminal output: a line per case, then each cause of failures with a command to rerun it, then a table."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from volplane.testing.report import DriverTestRun, is_cleaning
from volplane.testing.report.calls import about
from volplane.testing.report.findings import Finding
from volplane.testing.runner import CaseResult, CaseVerdict

MARKS = {
    CaseVerdict.PASSED: "[green]✓[/green]",
    CaseVerdict.FAILED: "[bold red]✗[/bold red]",
    CaseVerdict.SKIPPED: "[dim]-[/dim]",
}
PLAIN_MARKS = {  # where the terminal has no other letters
    CaseVerdict.PASSED: "[green]ok[/green]",
    CaseVerdict.FAILED: "[bold red]FAILED[/bold red]",
    CaseVerdict.SKIPPED: "[dim]-[/dim]",
}
SANITY = "sanity/"  # prefix of csi-sanity's specs
LAST = 8  # calls shown before the verdict
WIDTH = 110  # without a terminal
MAX_ID = 40  # characters of a volume's id


class ProgressDisplay:
    """Prints results as cases end; on a terminal the last line shows the running case."""

    def __init__(self, stream: TextIO, *, total: int) -> None:
        self.console = Console(file=stream, highlight=False, soft_wrap=True)
        if not self.console.is_terminal:
            self.console = Console(file=stream, highlight=False, soft_wrap=True, width=WIDTH)
        self._marks = MARKS if _can_encode(stream, "✓✗") else PLAIN_MARKS
        self._total, self._done, self._sanity = total, 0, False
        self._running = self.console.status("") if self.console.is_terminal else None

    def case_starts(self, name: str) -> None:
        if self._running is not None:
            self._running.update(f"{self._count(self._done + 1)} {escape(name)}")
            self._running.start()

    def _count(self, number: int) -> str:
        return f"[dim]{number:>{len(str(self._total))}}/{self._total}[/dim]"

    def case_ended(self, result: CaseResult) -> None:
        if not (self._sanity and result.name.startswith(SANITY)):
            self._done += 1
        self._sanity = result.name.startswith(SANITY)  # one case, whatever the number of its specs
        text = f"{self._count(self._done)} {self._marks[result.verdict]} {escape(result.name)}"
        if result.round > 1:
            text += f" [dim](round {result.round})[/dim]"
        if result.verdict is CaseVerdict.SKIPPED:
            text += f" [dim]{escape(result.reason)}[/dim]"
        else:
            text += f" [dim]{result.seconds:.2f} s[/dim]"
        if result.repeated:
            text += f" [dim]({result.repeated} calls repeated)[/dim]"
        if result.verdict is CaseVerdict.FAILED:
            if result.known:
                text += f" [dim]known failure, {escape(result.known)}[/dim]"
            text += f"\n      [red]{escape(result.reason)}[/red]"
        self.console.print(text)

    def end(self, run: DriverTestRun) -> None:
        if self._running is not None:
            self._running.stop()
        self.console.print()
        for finding in run.findings():
            self._finding(run, finding)
        self.console.print(table(run))
        self._changes(run)
        self.console.print(verdict(run))

    def _finding(self, run: DriverTestRun, finding: Finding) -> None:
        """The first case of a finding, with the names of its other cases; a known one in a line."""
        out, first = self.console, finding.results[0]
        if finding.is_known:
            out.print(f"[dim]known:[/dim] {escape(finding.cause)}")
            self._names(finding.names)
            out.print()
            return
        if len(finding.names) > 1:
            out.print(f"[bold red]{len(finding.names)} cases:[/bold red] {escape(finding.cause)}")
        self._failure(run, first)
        if len(finding.names) > 1:
            out.print("  the same in:")
            self._names(finding.names[1:])
        out.print()

    def _names(self, names: list[str]) -> None:
        for name in names:
            self.console.print(f"    {escape(name)}")

    def _changes(self, run: DriverTestRun) -> None:
        out = self.console
        if run.comparison is not None:
            out.print(f"\ncompared with {escape(run.comparison.before)}")
            changes = list(run.comparison.lines())
            for heading, names in changes:
                out.print(f"  {heading}:")
                self._names(names)
            if not changes:
                out.print("  no change")
        if unneeded := run.unneeded_entries():
            out.print("\n[yellow]known failures that can be removed, unless they passed by chance:[/yellow]")
            self._names([str(one) for one in unneeded])

    def _failure(self, run: DriverTestRun, result: CaseResult) -> None:
        out = self.console
        out.print(f"[bold red]{escape(result.name)}[/bold red]  {escape(result.section)}")
        out.print(f"  required: {escape(result.demands)}")
        out.print(f"  found:    {escape(result.reason)}")
        for call in [call for call in result.calls if not is_cleaning(result, call)][-LAST:]:
            at = call.start - result.began
            answer = f"{call.code or 'in flight'} in {call.seconds * 1000:.0f} ms"
            line = f"{at:7.3f} s {call.method} {_shorten(about(call))} {answer}"
            out.print(f"    [dim]{escape(line)} {escape(call.message[:120])}[/dim]")
        out.print(f"  rerun:    {escape(run.replay(result))}")


def _shorten(id: str) -> str:
    return id if len(id) <= MAX_ID else f"{id[: MAX_ID - 1]}…"


def _can_encode(stream: TextIO, letters: str) -> bool:
    try:
        letters.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def table(run: DriverTestRun) -> Table:
    made = Table(box=None, pad_edge=False)
    made.add_column("cases")
    for verdict_ in CaseVerdict:
        made.add_column(str(verdict_), justify="right")
    made.add_column("seconds", justify="right")
    made.add_column("reason for skipping", overflow="fold")
    for name, results in run.groups().items():
        counts = [sum(r.verdict is v for r in results) for v in CaseVerdict]
        reasons = dict.fromkeys(
            r.reason.removeprefix("not supported: ") for r in results if r.verdict is CaseVerdict.SKIPPED
        )
        cells = [str(c) if c else "[dim]·[/dim]" for c in counts]
        cells[1] = f"[bold red]{cells[1]}[/bold red]" if counts[1] else cells[1]
        why = escape(next(iter(reasons), ""))
        if len(reasons) > 1:
            others = len(reasons) - 1
            why += f" [dim](and {others} other reason{'s' * (others > 1)})[/dim]"
        made.add_row(escape(name), *cells, f"{sum(r.seconds for r in results):.1f}", why)
    return made


def verdict(run: DriverTestRun) -> str:
    failed, known = len(run.new_failures), len(run.failed_results) - len(run.new_failures)
    causes = sum(not finding.is_known for finding in run.findings())
    counts_text = ", ".join(
        [
            f"{run.count(CaseVerdict.PASSED)} passed",
            f"{failed} failed" + (f" ({causes} cause{'s' * (causes > 1)})" if failed > 1 else ""),
            *[f"{known} known failure{'s' * (known > 1)}"] * bool(known),
            f"{run.count(CaseVerdict.SKIPPED)} skipped",
        ]
    )
    color = "green" if run.complete and not failed else "red"
    name = escape(f"{run.driver} {run.version}".strip())
    early = "" if run.complete else ", interrupted"
    return (
        f"\n[bold {color}]{counts_text}[/bold {color}] in {run.seconds:.1f} s{early}: {name}, seed {run.seed}"
    )
