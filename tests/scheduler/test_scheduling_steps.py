"""The steps for one pod: reserve a node, write the bindings, bind, or wait and give up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.scheduler.test_scheduler_plan import claim, make_snapshot, node, pod
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.rules.steps import Requeue
from volplane.rules.waits import Wait
from volplane.scheduler import prebind
from volplane.scheduler.plan import (
    AbortReservation,
    BindPod,
    MarkUnschedulable,
    Placement,
    ReleaseReservation,
    Reservation,
    ReserveNode,
    SchedulingView,
    Unschedulable,
    WriteBindings,
    decide,
    plan,
)
from volplane.scheduler.volumes import Bindings

NODE = node("n")
SELECTED = claim("c", notes={SELECTED_NODE_ANNOTATION: "n"})


def reservation(*, uid: str = "u-p", bindings: Bindings = Bindings(), **more: Any) -> Reservation:  # noqa: B008 (frozen)
    return Reservation(uid, "n", bindings, more.pop("deadline", 100.0), **more)


def view(pairs: Sequence[prebind.ClaimBinding] = (), **more: Any) -> SchedulingView:
    nodes = {each.name: each for each in more.pop("nodes", [NODE])}
    return SchedulingView(
        key="default/p",
        pod=more.pop("pod", pod()),
        snapshot=make_snapshot(*nodes.values()),
        node=nodes.get,
        claim_bindings=lambda bindings: pairs,
        **more,
    )


UNBOUND = prebind.ClaimBinding("c", SELECTED)
GONE = prebind.ClaimBinding("c", None)
GATED = pod(schedulingGates=[{"name": "quota"}])

CASES: dict[str, tuple[SchedulingView, list[type]]] = {
    "a node fits": (view(), [ReserveNode, BindPod]),
    "no node fits": (view(nodes=[]), [Wait, MarkUnschedulable]),
    "refused a moment ago": (view(pause=5.0), [Wait]),
    "the pod is gone": (view(pod=None), []),
    "the pod is gone, its node is reserved": (
        view(pod=None, reservation=reservation()),
        [ReleaseReservation, Requeue],
    ),
    "another pod of the same name": (
        view(reservation=reservation(uid="old")),
        [ReleaseReservation, Requeue],
    ),
    "gates hold the pod": (view(pod=GATED), [Wait]),
    "gates were added after the reservation": (
        view(pod=GATED, reservation=reservation()),
        [ReleaseReservation, Requeue, Wait],
    ),
    "the reserved node is gone": (view(nodes=[], reservation=reservation()), [AbortReservation]),
    "the claim has no selected node yet": (
        view(reservation=reservation(bindings=Bindings(dynamic=(claim("c"),)))),
        [WriteBindings, Requeue],
    ),
    "the selected node is written already": (
        view([UNBOUND], reservation=reservation(bindings=Bindings(dynamic=(SELECTED,)))),
        [Wait],
    ),
    "the claim is not bound in time": (
        view([UNBOUND], now=100.0, reservation=reservation(written=True)),
        [AbortReservation],
    ),
    "the provisioner removed the selected node": (
        view([prebind.ClaimBinding("c", claim("c"))], reservation=reservation(written=True)),
        [AbortReservation],
    ),
    "all claims are bound": (view(reservation=reservation(written=True)), [BindPod]),
    "the pod is bound": (view(reservation=reservation(written=True, bound=True)), []),
}


@pytest.mark.parametrize(("of", "steps"), CASES.values(), ids=CASES)
def test_the_steps_of_a_pod(of: SchedulingView, steps: list[type]) -> None:
    assert [type(step) for step in plan(of)] == steps


def test_a_pod_goes_to_the_node_that_was_cleared_for_it() -> None:
    snapshot = make_snapshot(node("a"), node("b", cpu="1"))
    waiting = pod(cpu="1")
    snapshot.node_cache.nominate(waiting, "b")
    assert decide(waiting, snapshot) == Placement("b", Bindings(), 0)


def test_a_pod_does_not_take_the_place_of_a_nominated_one() -> None:
    snapshot = make_snapshot(node("a", cpu="1"))
    snapshot.node_cache.nominate(pod("first", cpu="1"), "a")
    assert isinstance(decide(pod("second", cpu="1"), snapshot), Unschedulable)
