"""The wait reports of the running roles, and which of them belong to a wait of a plan.

A plan that is run here yields the same waits as in the role. A report belongs to a wait if role, key, reason
and data are the same; sentences are never compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct, structs

from volplane.explain.result import ExplanationStep
from volplane.loops import wait_reports
from volplane.loops.wait_reports import Question, WaitReport
from volplane.rules.waits import Wait

T = TypeVar("T")

NOT_ASKED = (
    "timers, backoff and mounts: only the running roles know them; use --data-dir on the machine of "
    "`volplane up`"
)


class UnknownRole(ValueError):
    """What the user asked for does not exist."""


class RoleReports(Struct, frozen=True):
    reports: Sequence[WaitReport] = ()
    silent: Sequence[str] = ()  # roles that have a socket and do not answer
    asked: bool = False

    def find(self, role: str, key: str) -> list[WaitReport]:
        """The reports of a controller (or of `node/worker-1`) about a key, the longest wait first."""
        found = (report for report in self.reports if report.role == role and report.key == key)
        return sorted(found, key=lambda report: report.since)

    def add_times(self, step: ExplanationStep, role: str, key: str, wait: Wait) -> ExplanationStep:
        """The step with the times that the role reports for this wait."""
        report = next((report for report in self.find(role, key) if report.is_about(wait)), None)
        if report is None:
            return step
        return structs.replace(step, since=report.since, until=report.next_try or step.until)


class RoleAnswers(Struct, Generic[T], frozen=True):
    """What all roles with a socket have answered to a question."""

    found: Sequence[T] = ()
    silent: Sequence[str] = ()  # roles that have a socket and do not answer
    asked: bool = False  # whether any role has answered


async def ask_all(directory: Path, question: Question, type: type[T]) -> RoleAnswers[T]:
    """Ask all roles with a socket in the directory."""
    paths = _sockets(directory)
    answers = await asyncio.gather(
        *(wait_reports.ask(str(path), question, type) for path in paths), return_exceptions=True
    )
    silent: list[str] = []
    found: list[T] = []
    for path, answer in zip(paths, answers, strict=True):
        if isinstance(answer, BaseException):
            silent.append(path.name.removesuffix(wait_reports.SUFFIX))
        else:
            found.extend(answer)
    return RoleAnswers(found, silent, asked=len(silent) < len(paths))


async def read_all_reports(directory: Path) -> RoleReports:
    """The wait reports of all roles with a socket in the directory."""
    answers = await ask_all(directory, Question.WAITS, WaitReport)
    return RoleReports(_drop_duplicates(answers.found), answers.silent, asked=answers.asked)


def _sockets(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{wait_reports.SUFFIX}"))


def _drop_duplicates(reports: Iterable[WaitReport]) -> list[WaitReport]:
    """Two replicas of a sidecar in one process may report the same wait."""
    return list(dict.fromkeys(reports))
