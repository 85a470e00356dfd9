"""What the running roles told of their waits, and which of it belongs to what a plan says.

A plan that is run here yields the same words as in the role, so the role's note of them is found by the
words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, structs

from volplane.explain.result import ExplanationStep
from volplane.loops import wait_reports
from volplane.loops.wait_reports import WaitReport

NOT_ASKED = (
    "timers, backoff and mounts: only the running roles know them, and they tell on the machine of a "
    "`volplane up` (--data-dir)"
)


class RoleReports(Struct, frozen=True):
    reports: Sequence[WaitReport] = ()
    silent: Sequence[str] = ()  # roles that have a socket and do not answer
    asked: bool = False

    def of(self, role: str, key: str) -> list[WaitReport]:
        """Those of a controller (or of `node/worker-1`) about a key, the longest wait first."""
        found = (t for t in self.reports if t.role == role and t.key == key)
        return sorted(found, key=lambda t: t.since)

    def add_times(self, step: ExplanationStep, role: str, key: str) -> ExplanationStep:
        """The step with the times that the role has for these very words."""
        note = next((t for t in self.of(role, key) if t.why and t.why in (step.why, *step.details)), None)
        if note is None:
            return step
        return structs.replace(step, since=note.since, until=note.next_try or step.until)


async def read_all_reports(directory: Path) -> RoleReports:
    """All roles with a socket in the directory."""
    paths = _sockets(directory)
    answers = await asyncio.gather(
        *(wait_reports.read_wait_reports(str(path)) for path in paths), return_exceptions=True
    )
    silent: list[str] = []
    found: list[WaitReport] = []
    for path, answer in zip(paths, answers, strict=True):
        if isinstance(answer, BaseException):
            silent.append(path.name.removesuffix(wait_reports.SUFFIX))
        else:
            found.extend(answer)
    return RoleReports(_drop_duplicates(found), silent, asked=bool(found) or len(silent) < len(paths))


def _sockets(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{wait_reports.SUFFIX}"))


def _drop_duplicates(told: Iterable[WaitReport]) -> list[WaitReport]:
    """Two replicas of a sidecar in one process may both have something to say; one of them only once."""
    return list(dict.fromkeys(told))
