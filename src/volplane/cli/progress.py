"""The progress of a verb that may take longer than a second, on standard error."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Self

import click

FIRST = 1.0  # seconds after which something is shown
TERMINAL, LOG = 0.2, 10.0  # seconds between two updates


class ProgressLine:
    """One line that is replaced on a terminal, or a new line every ten seconds."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + FIRST
        self._shown = 0  # length of the line

    def update(self, text: str, done: int = 0, total: int = 0) -> None:
        """`done`, `total`: bytes."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (TERMINAL if self._is_terminal else LOG)
        line = f"{text}: {describe_bytes(done)} of {describe_bytes(total)}" if total else text
        if self._is_terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
            click.echo(f"\r{line.ljust(self._shown)}", nl=False, err=True)
            self._shown = len(line)
        else:
            click.echo(line, err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._shown:
            click.echo(f"\r{' ' * self._shown}\r", nl=False, err=True)


def describe_bytes(size: int) -> str:
    """As people read it: `512 B`, `1.4 GiB`."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def describe_count(number: int, noun: str) -> str:
    """`1 disk`, `2 disks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
