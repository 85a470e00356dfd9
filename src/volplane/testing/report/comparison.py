"""Compare a run with the JSON report of an earlier one: what fails or passes now and did not before.

Times are information only: another machine, or a busy one, changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from volplane.testing.runner import CaseResult, CaseVerdict

MIN_DIFFERENCE = 1.0  # seconds; smaller differences are noise
MIN_FACTOR = 2.0
_WORST_FIRST = (CaseVerdict.FAILED, CaseVerdict.PASSED, CaseVerdict.SKIPPED)


class BadReport(Exception):
    """The file is not a JSON report of an earlier run."""


class OldCase(Struct, frozen=True):
    name: str
    verdict: CaseVerdict
    seconds: float = 0.0


class OldReport(Struct, frozen=True):
    driver: str
    cases: list[OldCase]
    version: str = ""
    started: str = ""


class TimeChange(Struct, frozen=True):
    name: str
    before: float  # seconds
    now: float

    def __str__(self) -> str:
        return f"{self.name} {self.before:.1f} s → {self.now:.1f} s"


class Comparison(Struct, frozen=True):
    """Names of cases, in the order of the run."""

    before: str  # the earlier run: driver, version and time
    newly_failing: list[str] = []
    newly_passing: list[str] = []
    newly_skipped: list[str] = []
    new: list[str] = []
    gone: list[str] = []
    slower: list[TimeChange] = []
    faster: list[TimeChange] = []

    def lines(self) -> Iterator[tuple[str, list[str]]]:
        """What has changed, with its heading."""
        for heading, changes in (
            ("newly failing", self.newly_failing),
            ("newly passing", self.newly_passing),
            ("newly skipped", self.newly_skipped),
            ("new", self.new),
            ("gone", self.gone),
            ("slower", list(map(str, self.slower))),
            ("faster", list(map(str, self.faster))),
        ):
            if changes:
                yield heading, changes


def read(path: str) -> OldReport:
    """Read a report that `--json` has written. Raises BadReport."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=OldReport)
    except OSError as error:
        raise BadReport(f"{path}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadReport(f"{path} is not a report of --json: {error}") from error


def compare(
    old: OldReport,
    results: Iterable[CaseResult],
    *,
    complete: bool,
    is_selected: Callable[[str], bool] = lambda name: True,
) -> Comparison:
    """Compare with the cases of the earlier run that are selected in this one.

    In an interrupted run no case counts as gone.
    """
    before = _by_name(case for case in old.cases if is_selected(case.name))
    now = _by_name(results)
    both = [name for name in now if name in before]

    def changed_to(verdict: CaseVerdict) -> list[str]:
        return [name for name in both if now[name][0] is verdict is not before[name][0]]

    passed = [n for n in both if now[n][0] is before[n][0] is CaseVerdict.PASSED]
    times = [TimeChange(name, before[name][1], now[name][1]) for name in passed]
    return Comparison(
        before=" ".join(filter(None, (old.driver, old.version, old.started))),
        newly_failing=changed_to(CaseVerdict.FAILED),
        newly_passing=changed_to(CaseVerdict.PASSED),
        newly_skipped=changed_to(CaseVerdict.SKIPPED),
        new=[name for name in now if name not in before],
        gone=[name for name in before if name not in now] if complete else [],
        slower=[one for one in times if _is_longer(one.now, one.before)],
        faster=[one for one in times if _is_longer(one.before, one.now)],
    )


def _is_longer(first: float, second: float) -> bool:
    return first - second >= MIN_DIFFERENCE and first >= MIN_FACTOR * second


def _by_name(cases: Iterable[OldCase | CaseResult]) -> dict[str, tuple[CaseVerdict, float]]:
    """The worst verdict and the mean time of each case's rounds."""
    rounds: dict[str, list[OldCase | CaseResult]] = {}
    for case in cases:
        rounds.setdefault(case.name, []).append(case)
    return {
        name: (
            min((c.verdict for c in found), key=_WORST_FIRST.index),
            sum(c.seconds for c in found) / len(found),
        )
        for name, found in rounds.items()
    }
