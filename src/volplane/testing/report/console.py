"""Terminal output: a line per case, then each failure with the command to rerun it, then a table."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from volplane.testing.report import DriverTestRun, is_cleaning
from volplane.testing.runner import CaseResult, CaseVerdict

MARKS = {
    CaseVerdict.PASSED: "[green]✓[/green]",
    CaseVerdict.FAILED: "[bold red]✗[/bold red]",
    CaseVerdict.SKIPPED: "[dim]-[/dim]",
}
LAST = 8  # calls shown before the verdict
WIDTH = 110  # without a terminal


class ProgressDisplay:
    """Prints results as cases end; on a terminal the last line shows the running case."""

    def __init__(self, stream: TextIO, *, total: int) -> None:
        self.console = Console(file=stream, highlight=False, soft_wrap=True)
        if not self.console.is_terminal:
            self.console = Console(file=stream, highlight=False, soft_wrap=True, width=WIDTH)
        self._total, self._done = total, 0
        self._running = self.console.status("") if self.console.is_terminal else None

    def case_starts(self, name: str) -> None:
        if self._running is not None:
            self._running.update(f"{self._count(self._done + 1)} {escape(name)}")
            self._running.start()

    def _count(self, number: int) -> str:
        total = max(self._total, number)  # the number of csi-sanity's specs is not known before
        return f"[dim]{number:>{len(str(total))}}/{total}[/dim]"

    def case_ended(self, result: CaseResult) -> None:
        self._done += 1
        text = f"{self._count(self._done)} {MARKS[result.verdict]} {escape(result.name)}"
        if result.round > 1:
            text += f" [dim](round {result.round})[/dim]"
        if result.verdict is CaseVerdict.SKIPPED:
            text += f" [dim]{escape(result.reason)}[/dim]"
        else:
            text += f" [dim]{result.seconds:.2f} s[/dim]"
        if result.repeated:
            text += f" [dim]({result.repeated} calls repeated)[/dim]"
        if result.verdict is CaseVerdict.FAILED:
            text += f"\n      [red]{escape(result.reason)}[/red]"
        self.console.print(text)

    def end(self, run: DriverTestRun) -> None:
        if self._running is not None:
            self._running.stop()
        self.console.print()
        for result in run.failed_results:
            self._failure(run, result)
        self.console.print(table(run))
        self.console.print(verdict(run))

    def _failure(self, run: DriverTestRun, result: CaseResult) -> None:
        out = self.console
        out.print(f"[bold red]{escape(result.name)}[/bold red]  {escape(result.section)}")
        out.print(f"  required: {escape(result.demands)}")
        out.print(f"  found:    {escape(result.reason)}")
        for call in [call for call in result.calls if not is_cleaning(result, call)][-LAST:]:
            at = call.start - result.began
            line = f"{at:7.3f} s {call.method} {call.code or 'in flight'} in {call.seconds * 1000:.0f} ms"
            out.print(f"    [dim]{escape(line)} {escape(call.message[:120])}[/dim]")
        out.print(f"  rerun:    {escape(run.replay(result))}\n")


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
    failed = run.count(CaseVerdict.FAILED)
    counts_text = (
        f"{run.count(CaseVerdict.PASSED)} passed, {failed} failed, {run.count(CaseVerdict.SKIPPED)} skipped"
    )
    color = "green" if run.complete and not failed else "red"
    name = escape(f"{run.driver} {run.version}".strip())
    early = "" if run.complete else ", interrupted"
    return (
        f"\n[bold {color}]{counts_text}[/bold {color}] in {run.seconds:.1f} s{early}: {name}, seed {run.seed}"
    )
