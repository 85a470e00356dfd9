"""Each role is killed alone, before and after every write, every RPC and every effect of its own.

Once as `volplane up --separate` divides them, where the driver and its sidecars live in the node's process,
and once with every role a process: API server, controllers, scheduler, provisioner, attacher, the driver's
controller and its service on the node, the node. What died is started again by its keeper, the others go on.
The user's journey comes to the same end: data intact, one disk, never on two nodes, nothing left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import ClassVar

import pytest
from msgspec import Struct

from tests.support.crash import Phase
from tests.support.crash_points import JOURNEY, ROLES, points
from tests.support.crash_trials import Results, Trial, attempt_all

pytestmark = [pytest.mark.root, pytest.mark.slow]

WIDTH = 3  # clusters side by side
SHARES = 2  # of the trials of a form, each on a cluster of its own

AS_UP = [Trial(point.name) for point in JOURNEY]
APART = [Trial(point.name, role) for role, table in ROLES.items() for point in points(Phase.JOURNEY, table)]


class _NONE:  # of a test without parameters
    params: ClassVar[dict[str, object]] = {}


class Runs(Struct):
    results: Results
    stops: list[Future[list[str]]]


@pytest.fixture(scope="module")
def standing(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """All trials that were asked for, several at a time; each test waits for its own."""
    results: Results = {}
    for item in request.session.items:
        if isinstance(trial := getattr(item, "callspec", _NONE).params.get("trial"), Trial):
            results[trial] = Future()
    wanted = [
        (apart, [t for t in trials if t in results]) for apart, trials in ((False, AS_UP), (True, APART))
    ]
    shares = [(apart, trials[i::SHARES]) for apart, trials in wanted for i in range(SHARES)]
    stopping = Event()
    with ThreadPoolExecutor(WIDTH) as pool:
        yield Runs(results, [pool.submit(_work, share, results, stopping, apart) for apart, share in shares])
        stopping.set()


def _work(share: list[Trial], results: Results, stopping: Event, apart: bool) -> list[str]:
    try:
        return asyncio.run(attempt_all(share, results, stopping, apart=apart))
    finally:
        for trial in share:
            results[trial].cancel()  # where nothing was tried, nobody waits


@pytest.mark.parametrize("trial", [*AS_UP, *APART], ids=str)
def test_a_role_dies_and_nothing_changes_in_the_end(standing: Runs, trial: Trial) -> None:
    outcome = standing.results[trial].result()
    reported = "\n".join(
        [f"{trial.role or 'a role'} killed at {trial.name}:", *outcome.problems, outcome.log]
    )
    assert not outcome.problems, reported
    assert outcome.died, "the point was not met"


def test_the_clusters_that_lived_through_it_stop_cleanly(standing: Runs) -> None:
    assert [problem for stop in standing.stops for problem in stop.result()] == []
