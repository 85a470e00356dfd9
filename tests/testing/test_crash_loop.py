"""A driver that ends by itself after each start is found; one that was killed or starts late is not."""

from __future__ import annotations

import pytest

from volplane.api.core import ContainerStatus, Pod, PodStatus
from volplane.api.core.status import ContainerState, ContainerStateRunning, ContainerStateTerminated
from volplane.api.meta import ObjectMeta
from volplane.testing.crash_loop import CrashLoopDetector
from volplane.testing.kill_driver import NAME

Look = tuple[float, int, int | None]  # seconds, restarts, exit code of the last end; None: it runs


def make_pod(restarts: int, exit_code: int | None, *, container: str = NAME) -> Pod:
    ended = ContainerStateTerminated(exit_code=exit_code or 0)
    running = ContainerState(running=ContainerStateRunning())
    status = ContainerStatus(
        name=container,
        restart_count=restarts,
        state=running if exit_code is None else ContainerState(terminated=ended),
    )
    return Pod(metadata=ObjectMeta(name="node-1", uid="1"), status=PodStatus(container_statuses=(status,)))


def find_reason(looks: list[Look], container: str = NAME) -> str:
    detector = CrashLoopDetector(lambda pod: "no state")
    for seconds, restarts, exit_code in looks:
        detector.observe(make_pod(restarts, exit_code, container=container), seconds)
    return detector.reason


def ends(exit_code: int, *, first: float = 0.0, interval: float = 1.0) -> list[Look]:
    return [(first + number * interval, number, exit_code) for number in range(7)]


def test_a_driver_that_ends_by_itself_again_and_again_is_found() -> None:
    reason = find_reason(ends(1)[:6])
    assert reason.endswith("in pod node-1 it has ended 5 times by itself, with code 1: no state")


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param(ends(137), id="killed"),
        pytest.param(ends(143), id="stopped"),
        pytest.param(ends(1, interval=0.2), id="for a moment only"),
        pytest.param(ends(1)[:5], id="a few times only"),
        pytest.param(
            [*ends(1)[:4], (4.0, 4, None), (8.0, 4, None), (9.0, 5, 1), (10.0, 6, 1)], id="it ran in between"
        ),
    ],
)
def test_other_ends_are_no_loop(looks: list[Look]) -> None:
    assert find_reason(looks) == ""


def test_other_containers_do_not_count() -> None:
    assert find_reason(ends(1), container="csi-provisioner") == ""
