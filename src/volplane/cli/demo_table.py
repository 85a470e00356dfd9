"""The steps of a volume as a table: component, start and duration of each."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from volplane.base.trace import Span, Trace
from volplane.cli.demo_script import DemoScript


class DemoTable:
    """The spans of a cluster between the first request and the last byte."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def table(self, script: DemoScript) -> Table:
        shown = Table(box=None, pad_edge=False, header_style="dim")
        for name, justify in (
            ("since start", "right"),
            ("took", "right"),
            ("component", "left"),
            ("step", "left"),
        ):
            shown.add_column(name, justify="right" if justify == "right" else "left", no_wrap=True)
        for span in self._select_spans(script):
            shown.add_row(*_row(span, script.began))
        total = (script.written - script.began) / 1e6
        shown.add_row(f"[bold]{total:.1f} ms[/bold]", "", "you", "see that the pod has succeeded")
        return shown

    def _select_spans(self, script: DemoScript) -> Iterator[Span]:
        """The spans of this claim and pod, in order of their start."""
        # Of the API server's steps only the user's two: the others are part of the caller's step.
        own = {f"pvc/{script.claim}", f"pod/{script.writer}"}
        for span in self._trace.spans():
            if not script.began <= span.start <= script.written or span.subject.startswith("node/"):
                continue
            if span.component == "driver":
                continue  # part of the caller's step
            if span.component == "apiserver":
                if span.step != "create" or span.subject not in own:
                    continue
                own.remove(span.subject)
            if "Conflict" not in span.error:  # a conflict is retried at once
                yield span


def _row(span: Span, began: int) -> tuple[str, str, str, str]:
    length = (span.end - span.start) / 1e6
    took = f"{length:.1f} ms" if span.end > span.start else "·"
    text = f"{span.step}  [dim]{_subject(span.subject)}[/dim]"
    text += f"  [red]{span.error}[/red]" if span.error else ""
    return f"{(span.start - began) / 1e6:.1f} ms", took, span.component, text


def _subject(subject: str) -> str:
    return subject if len(subject) <= 40 else f"{subject[:16]}…{subject[-8:]}"
