"""The results of a soak run: terminal, JSON, and the replay of a life that has failed."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any, TextIO

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from volplane.csi.services import METHODS
from volplane.testing.case import SPEC
from volplane.testing.report.console import WIDTH
from volplane.testing.soak.run import SoakFailure, SoakRun
from volplane.testing.soak.steps import NEEDS, Life
from volplane.testing.soak.violation import Violation

PROGRESS_INTERVAL = 10.0  # seconds between two lines of progress without a terminal


class BadReplay(ValueError):
    """A file that is not a life; the message says why."""


class SoakDisplay:
    """Prints the progress of a run; on a terminal in one line that is updated."""

    def __init__(self, stream: TextIO, *, seconds: float) -> None:
        self.console = Console(file=stream, highlight=False, soft_wrap=True)
        if not self.console.is_terminal:
            self.console = Console(file=stream, highlight=False, soft_wrap=True, width=WIDTH)
        self._seconds, self._last = seconds, time.monotonic()
        self._running = self.console.status("") if self.console.is_terminal else None

    def start(self, run: SoakRun) -> None:
        name = escape(f"{run.driver} {run.version}".strip())
        self.console.print(f"{name}, seed {run.seed}\n  {', '.join(run.capabilities)}\n")
        if self._running is not None:
            self._running.start()

    def life_ended(self, run: SoakRun) -> None:
        text = f"{run.seconds:5.0f} s of {self._seconds:.0f} s: {summarize(run)}"
        if self._running is not None:
            self._running.update(text)
        elif time.monotonic() - self._last >= PROGRESS_INTERVAL:
            self._last = time.monotonic()
            self.console.print(text)

    def violation_found(self, violation: Violation, number: int) -> None:
        self.console.print(f"[bold red]life {number}[/bold red]: {escape(violation.text)}")
        self.console.print("[dim]searching for a shorter sequence …[/dim]")

    def end(self, run: SoakRun) -> None:
        if self._running is not None:
            self._running.stop()
        self.console.print()
        if run.failure is not None:
            self._print_failure(run, run.failure)
        self.console.print(counts_table(run))
        failed = run.failure is not None
        color = "red" if failed or not run.complete else "green"
        result = "a life failed" if failed else "no life failed"
        early = "" if run.complete else ", interrupted"
        self.console.print(
            f"\n[bold {color}]{result}[/bold {color}]: {summarize(run)} in {run.seconds:.1f} s{early},"
            f" seed {run.seed}"
        )

    def _print_failure(self, run: SoakRun, failure: SoakFailure) -> None:
        out, violation = self.console, failure.violation
        out.print(f"[bold red]{violation.rule}[/bold red]  {escape(section(violation))}")
        out.print(f"  found:    {escape(violation.text)}")
        if failure.number:
            steps = f"life {failure.number} of {len(failure.found.steps())} steps"
            out.print(f"  from:     {steps}, {describe_reruns(failure)}")
        out.print("  steps:")
        for line in failure.trace:
            number = "end" if line.moment < 0 else str(line.moment + 1)
            out.print(f"    {number:>3}  {escape(line.step)}  [dim]{escape(line.answer)}[/dim]")
        out.print("  replay:   save the next line as life.json, and run")
        again = shlex.join([*run.command, "--replay", "life.json"])
        out.print(f"            {escape(again)}")
        out.print(escape(encode_life(failure.life)), soft_wrap=True)
        out.print()


def describe_reruns(failure: SoakFailure) -> str:
    if not failure.reruns:
        return "not rerun"
    same = "" if failure.is_reproduced else ": none failed in this way, so it is not shortened"
    return f"{failure.reruns} reruns{same}"


def summarize(run: SoakRun) -> str:
    counts = run.statistics
    return (
        f"{counts.lives} lives, {counts.calls.total()} calls, {counts.faults.total()} faults,"
        f" {counts.mistakes.total()} wrong arguments, {counts.checks} checks of data"
    )


def counts_table(run: SoakRun) -> Table:
    made = Table(box=None, pad_edge=False)
    made.add_column("call")
    made.add_column("calls", justify="right")
    made.add_column("answer")
    made.add_column("calls", justify="right")
    made.add_column("fault")
    made.add_column("calls", justify="right")
    counts = run.statistics
    columns = [counter.most_common() for counter in (counts.calls, counts.answers, counts.faults)]
    for row in range(max((len(column) for column in columns), default=0)):
        cells = [column[row] if row < len(column) else ("", "") for column in columns]
        made.add_row(*(str(value) for cell in cells for value in cell))
    return made


def section(violation: Violation) -> str:
    known = violation.call in METHODS or violation.call.startswith("Supervised")
    return f"{SPEC}: {violation.call}" if known else violation.call


def write_json(run: SoakRun, path: str) -> None:
    """Write the run; the file can be given to --replay."""
    Path(path).write_text(json.dumps(to_dict(run), indent=2) + "\n")


def to_dict(run: SoakRun) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(run)
    if run.failure is not None:
        made["failure"]["section"] = section(run.failure.violation)
        made["failure"]["replay"] = [*run.command, "--replay", "life.json"]
    return made


def encode_life(life: Life) -> str:
    """One line."""
    return msgspec.json.encode(life).decode()


def read_life(path: str) -> Life:
    """Read a life, or that of a run's JSON. Raises BadReplay and OSError."""
    try:
        content = json.loads(Path(path).read_text())
    except ValueError as error:
        raise BadReplay(f"{path} is not JSON: {error}") from error
    if isinstance(content, dict) and "statistics" in content:
        if not content.get("failure"):
            raise BadReplay(f"{path} has no failure: nothing to replay")
        content = content["failure"]["life"]
    try:
        life = msgspec.convert(content, Life)
    except msgspec.ValidationError as error:
        raise BadReplay(f"{path} is not a life: {error}") from error
    if wrong := check_life(life):
        raise BadReplay(f"{path} is not a life: {wrong}")
    return life


def check_life(life: Life) -> str:
    """What is wrong with a life that was written by hand; "" if nothing is."""
    if not life.volumes:
        return "volumes is empty"
    for at, moment in enumerate(life.moments):
        for step in moment:
            where = f"moments[{at}]: {step.call}"
            if step.call not in NEEDS:
                return f"{where} is not a call; known are {', '.join(NEEDS)}"
            for field, limit in (("volume", len(life.volumes)), ("origin", len(life.volumes))):
                if not 0 <= getattr(step, field) < limit:
                    return f"{where}: {field} is {getattr(step, field)}, and there are {limit} volumes"
            for field in ("node", "target"):
                if getattr(step, field) not in (0, 1):
                    return f"{where}: {field} is {getattr(step, field)}, not 0 or 1"
            if step.snapshot < 0 or step.size < 0 or step.delay < 0:
                return f"{where}: snapshot, size and delay are 0 or more"
    return ""
