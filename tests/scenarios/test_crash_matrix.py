"""The journey of a volume, killed with SIGKILL before and after every write, every RPC and every effect.

A claim and a pod that writes onto the volume; the pod goes, its attachment goes, another pod reads on another
node; everything is deleted. Wherever the kill comes, the next start goes on to the same end: data intact, one
disk, never on two nodes, nothing left. Here the whole process dies; single roles in test_crash_roles.py.

`VOLPLANE_CRASH_ALL=1` takes every occurrence of every point, in one process and with `--separate`: an hour.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from msgspec import Struct

from tests.support.crash import CrashRun, Outcome, Phase, Point, list_points, selected_params
from tests.support.crash_points import AGAIN, JOURNEY, START, STOP, points

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
]

WIDTH = 3  # clusters side by side: a start waits as often as it works
ALL = os.environ.get("VOLPLANE_CRASH_ALL") == "1"


TABLE = {Phase.START: START, Phase.JOURNEY: JOURNEY, Phase.STOP: STOP}
# A life that recovers is killed again where the one before was.
TWICE = points(
    Phase.JOURNEY,
    """
    write:patch:persistentvolumeclaims             after
    rpc:CreateVolume                               served
    cloud:AttachVolume                             effect
    rpc:ControllerPublishVolume                    after
    rpc:NodeStageVolume                            before
    host:mount                                     after
    container:start                                after
    write:patch:pods/status                        before
    rpc:NodeUnstageVolume                          served
    cloud:DetachVolume                             intent
    rpc:DeleteVolume                               before
    """,
)
# What is passed on a journey and is no part of it.
BESIDE = {
    "file:etc-hosts",
    "file:resolv.conf",
    "file:suspended",
    "rpc:NodeGetCapabilities",
    "rpc:GroupControllerGetCapabilities",
}
_MANY = re.compile("^write:[a-z]+:(events|leases.coordination.k8s.io)$")
ONE_PROCESS = [*JOURNEY, *AGAIN, *START[::4], *STOP[::3]]
SEPARATE = [*START[1::16], *STOP[1::8]]  # on the journey every role dies alone: test_crash_roles.py


class Case(Struct, frozen=True):
    point: Point
    separate: bool = False
    deaths: int = 1

    def __str__(self) -> str:
        return f"{self.point}{'-separate' * self.separate}{'-twice' * (self.deaths > 1)}"

    def run(self) -> Outcome:
        return asyncio.run(CrashRun(self.point, separate=self.separate, deaths=self.deaths).run())


CASES = [
    *map(Case, ONE_PROCESS),
    *(Case(point, deaths=2) for point in TWICE),
    *(Case(point, separate=True) for point in SEPARATE),
]

Runs = dict[Case, Future[Outcome]]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """All crashes that were asked for, several at a time; each test waits for its own."""
    with ThreadPoolExecutor(WIDTH) as pool:
        yield {case: pool.submit(case.run) for case in selected_params(request, "case")}
        pool.shutdown(cancel_futures=True)


# That separate roles meet the points of the journey is seen where they die at each of them.
@pytest.mark.parametrize(
    ("phase", "separate"),
    [*((phase, False) for phase in Phase), (Phase.START, True), (Phase.STOP, True)],
    ids=lambda value: {False: "one process", True: "separate"}.get(value, str(value)),
)
async def test_every_point_of_the_table_is_met(phase: Phase, separate: bool) -> None:
    expected = {point.name for point in TABLE[phase]}
    met = {point.name for point in await list_points(phase, separate=separate, expected=expected)}
    assert expected - met == set()
    if phase is Phase.JOURNEY:
        assert left_out(met) == set(), "nobody is killed there"


def left_out(met: set[str]) -> set[str]:
    """Points that a journey passes and no table has, but for those that are not of a volume."""
    known = {_place(point.name) for point in (*JOURNEY, *START)} | BESIDE
    return {place for place in map(_place, met) if place not in known and not _MANY.search(place)}


def _place(name: str) -> str:
    return name.rpartition(":")[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kill_changes_nothing_in_the_end(runs: Runs, case: Case) -> None:
    outcome = runs[case].result()
    assert not outcome.problems, _told(outcome)
    assert outcome.died, "the point was not met"


@pytest.mark.parametrize(
    "step",
    ["pod writer is ready", "pod writer is gone", "pod reader is ready", "no PersistentVolume is left"],
)
async def test_separate_roles_end_with_the_process_that_keeps_them(step: str) -> None:
    outcome = await CrashRun(Point(Phase.JOURNEY, "none"), separate=True, kill_at=step).run()
    assert not outcome.problems, _told(outcome)


@pytest.mark.skipif(not ALL, reason="an hour; VOLPLANE_CRASH_ALL=1")
@pytest.mark.parametrize("separate", [False, True], ids=["one process", "separate"])
@pytest.mark.parametrize("phase", list(Phase))
async def test_every_occurrence_of_every_point(phase: Phase, separate: bool) -> None:
    rest = [p for p in await list_points(phase, separate=separate) if Case(p, separate) not in CASES]
    turns = asyncio.Semaphore(WIDTH)

    async def run(point: Point) -> Outcome:
        async with turns:
            return await CrashRun(point, separate=separate).run()

    outcomes = await asyncio.gather(*map(run, rest))
    assert not [_told(outcome) for outcome in outcomes if outcome.problems]
    # How often a status is written depends on the machine's mood, so the last occurrences may not be met.
    assert sum(outcome.died for outcome in outcomes) >= len(rest) * 0.8


def _told(outcome: Outcome) -> str:
    return "\n".join([f"killed at {outcome.point}:", *outcome.problems, outcome.log])
