"""The journey of a volume on nodes with a container runtime, killed around every call of the runtime.

The runtime goes on, and may have done what the killed process did not hear of. `VOLPLANE_CRASH_ALL=1` takes
every point of the table.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.support.crash import CrashRun, Outcome, Phase, Point, selected_params
from tests.support.crash_points import points
from tests.support.cri.containerd import Containerd

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("crictl")]

WIDTH = 2
ALL = os.environ.get("VOLPLANE_CRASH_ALL") == "1"
SOME = points(
    Phase.JOURNEY,
    """
    cri:RunPodSandbox     before after
    cri:CreateContainer   after
    cri:StartContainer    before after
    cri:StopContainer     after
    cri:StopPodSandbox    after
    cri:RemovePodSandbox  before
    """,
)
OTHERS = points(
    Phase.JOURNEY,
    """
    cri:PullImage          before after
    cri:CreateContainer    before
    cri:StopContainer      before
    cri:StopPodSandbox     before
    cri:RemoveContainer    before after
    cri:RemovePodSandbox   after
    container:start        before after
    container:stop         before asked after
    container:remove       before after
    rpc:NodeStageVolume    before after
    rpc:NodePublishVolume  before after
    rpc:NodeUnpublishVolume  before after
    rpc:NodeUnstageVolume  before after
    host:mount             before after
    host:unmount           before after
    write:patch:pods/status  before after
    """,
)
STOP = points(Phase.STOP, "cri:StopContainer before after\ncri:StopPodSandbox after")
CASES = [*SOME, STOP[-1], *([*OTHERS, *STOP[:-1]] if ALL else [])]

Runs = dict[Point, Future[Outcome]]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, containerd: Containerd) -> Iterator[Runs]:
    """All crashes that were asked for, several at a time; each test waits for its own."""

    def run(point: Point) -> Outcome:
        return asyncio.run(CrashRun(point, runtime=containerd).run())

    with ThreadPoolExecutor(WIDTH) as pool:
        yield {point: pool.submit(run, point) for point in selected_params(request, "point")}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("point", CASES, ids=str)
def test_a_kill_around_a_call_of_the_runtime_changes_nothing_in_the_end(runs: Runs, point: Point) -> None:
    outcome = runs[point].result()
    assert not outcome.problems, "\n".join([f"killed at {point}:", *outcome.problems, outcome.log])
    assert outcome.died, "the point was not met"
