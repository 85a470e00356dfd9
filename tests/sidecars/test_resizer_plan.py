"""Which size is asked for next: every state of a claim, and whether its volume has grown already."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.objects import claim, volume
from volplane.api import codec
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.rules.steps import Wait
from volplane.sidecars.resizer.expand import plan as plans
from volplane.sidecars.resizer.expand.plan import Driver, LastAttempt, plan, target

DRIVER = "ebs.csi.aws.com"
OURS, NODE_ONLY = Driver(DRIVER), Driver(DRIVER, expands=False)
FINAL = LastAttempt(final=True)


def asking(request: int, state: str = "", allocated: int = 0, **status: Any) -> PersistentVolumeClaim:
    made = codec.builtins(claim("data", f"{request}Gi", volumeName="v"))
    made["metadata"]["uid"] = "u"
    made["status"] = {"phase": "Bound", "capacity": {"storage": "1Gi"}, **status}
    if state:
        made["status"]["allocatedResourceStatuses"] = {"storage": state}
    if allocated:
        made["status"]["allocatedResources"] = {"storage": f"{allocated}Gi"}
    return codec.convert(PersistentVolumeClaim, made)


def sized(size: int, **spec: Any) -> PersistentVolume:
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": "u"}
    return volume("v", f"{size}Gi", claimRef=ref, **spec)


# state, allocated, what is remembered → asked for; the claim asks for 5, its volume has 1.
SMALL = [
    ("", 0, LastAttempt(), 5),
    ("", 3, LastAttempt(), 5),
    ("ControllerResizeInProgress", 3, LastAttempt(), 3),  # open: finished first
    ("ControllerResizeInProgress", 3, FINAL, 5),
    ("ControllerResizeInProgress", 9, LastAttempt(), 9),  # the request was lowered
    ("ControllerResizeInProgress", 9, FINAL, 5),
    ("ControllerResizeInfeasible", 9, LastAttempt(), 5),
    ("NodeResizePending", 3, LastAttempt(), 3),
    ("NodeResizeInProgress", 3, LastAttempt(), 3),
    ("NodeResizeInfeasible", 3, LastAttempt(), 3),
    ("NewerWord", 3, LastAttempt(), 5),
]
# The same where the volume has the 5 already.
GROWN = [
    ("", 0, OURS, 5),
    ("", 5, OURS, 5),
    ("ControllerResizeInProgress", 5, OURS, 5),
    ("ControllerResizeInfeasible", 7, OURS, 7),
    ("NodeResizePending", 5, OURS, None),
    ("NodeResizeInProgress", 5, OURS, None),
    ("NodeResizeInfeasible", 6, OURS, 6),
    ("NodeResizeInfeasible", 6, NODE_ONLY, 5),
]


@pytest.mark.parametrize(("state", "allocated", "last", "expected"), SMALL)
def test_the_volume_is_smaller_than_the_request(
    state: str, allocated: int, last: LastAttempt, expected: int
) -> None:
    assert target(asking(5, state, allocated), sized(1), OURS, last) == expected << 30


@pytest.mark.parametrize(("state", "allocated", "driver", "expected"), GROWN)
def test_the_volume_has_grown(state: str, allocated: int, driver: Driver, expected: int | None) -> None:
    wanted = None if expected is None else expected << 30
    assert target(asking(5, state, allocated), sized(5), driver, LastAttempt()) == wanted


def test_a_node_that_has_its_size_is_left_alone() -> None:
    assert target(asking(5, "NodeResizePending", 3), sized(3), OURS, LastAttempt()) is None


def test_an_older_resizer_handed_it_to_the_node_without_a_note() -> None:
    pending = [{"type": "FileSystemResizePending", "status": "True"}]
    assert target(asking(5, conditions=pending), sized(5), OURS, LastAttempt()) is None


def test_an_infeasible_size_is_not_asked_for_again_before_its_time() -> None:
    claim = asking(5, "ControllerResizeInfeasible", 5)
    (step,) = plan(claim, sized(1), OURS, LastAttempt(final=True, slow=100.0))
    assert isinstance(step, Wait)
    assert step.seconds == 100.0
    smaller = asking(4, "ControllerResizeInfeasible", 5)
    assert not isinstance(next(plan(smaller, sized(1), OURS, LastAttempt(final=True, slow=100.0))), Wait)


def test_only_our_own_bound_claims_grow() -> None:
    assert list(plan(asking(5, phase="Lost"), sized(1), OURS, LastAttempt())) == []
    assert list(plan(asking(1), sized(1), OURS, LastAttempt())) == []
    other = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": "another"}
    assert list(plan(asking(5), volume("v", claimRef=other), OURS, LastAttempt())) == []
    assert list(plan(asking(5), sized(1), Driver("other.example.com"), LastAttempt())) == []


def test_a_volume_that_is_not_seen_yet_is_waited_for() -> None:
    (step,) = plan(asking(5), None, OURS, LastAttempt())
    assert isinstance(step, Wait)
    assert list(plan(asking(1), None, OURS, LastAttempt())) == []


def test_what_we_write_is_no_news_and_what_the_node_writes_is() -> None:
    facts = plans.relevant_fields
    assert facts(asking(5)) == facts(asking(5, "ControllerResizeInProgress", 5))
    assert facts(asking(5)) == facts(asking(5, "ControllerResizeInfeasible", 5))
    assert facts(asking(5)) != facts(asking(5, "NodeResizeInfeasible", 5))
    assert facts(asking(5)) != facts(asking(6))
