"""The order of the contract, and which steps are shown."""

from __future__ import annotations

import pytest
from msgspec import structs

from tests.explain.journey.spans import BACK, DELETE, FORWARDS, POD, TRACE, stored, write
from volplane.base.span_store import StoredSpan
from volplane.explain.journey import order
from volplane.explain.journey.join import join_journey
from volplane.explain.journey.model import JourneyStep
from volplane.explain.journey.order import Milestone, find_order_problems
from volplane.explain.journey.select import hide_details, select_back, select_forwards
from volplane.explain.journey.transitions import list_transitions

UP = (*order.PROVISION, *order.LATE_BINDING, *order.FORWARDS)


def steps_of(*spans: StoredSpan) -> tuple[JourneyStep, ...]:
    return join_journey(spans, TRACE).steps


@pytest.mark.parametrize(
    ("spans", "milestones"),
    [
        pytest.param((*FORWARDS, stored(11, 1, "driver", "CreateVolume", "volume/x")), UP, id="forwards"),
        pytest.param(BACK, order.BACK, id="back"),
        pytest.param(DELETE, order.DELETE, id="delete"),
    ],
)
def test_a_complete_journey_has_the_order_of_the_contract(
    spans: tuple[StoredSpan, ...], milestones: tuple[Milestone, ...]
) -> None:
    assert find_order_problems(steps_of(*spans), milestones) == []


@pytest.mark.parametrize("missing", range(len(BACK)))
def test_a_missing_step_is_found(missing: int) -> None:
    spans = [span for number, span in enumerate(BACK) if number != missing]
    (problem,) = find_order_problems(steps_of(*spans), order.BACK)
    assert problem.endswith(": missing")


def test_a_step_that_comes_too_early_is_found() -> None:
    early = structs.replace(BACK[3].span, start=BACK[0].span.start, end=BACK[0].span.start + 1)
    spans = [*BACK[:3], structs.replace(BACK[3], span=early), *BACK[4:]]
    assert find_order_problems(steps_of(*spans), order.BACK) == [
        "NodeUnstageVolume: before NodeUnpublishVolume"
    ]


def test_a_step_that_begins_before_the_call_it_needs_has_ended_is_found() -> None:
    overlapping = structs.replace(BACK[3].span, start=BACK[2].span.start)
    spans = [*BACK[:3], structs.replace(BACK[3], span=overlapping), *BACK[4:]]
    assert find_order_problems(steps_of(*spans), order.BACK) == [
        "NodeUnstageVolume: before NodeUnpublishVolume"
    ]


def test_a_watcher_may_act_on_a_write_before_its_request_has_ended() -> None:
    late_answer = structs.replace(BACK[0].span, end=BACK[1].span.end + 1)
    assert (
        find_order_problems(steps_of(structs.replace(BACK[0], span=late_answer), *BACK[1:]), order.BACK) == []
    )


def test_forwards_shows_the_newest_pod_only() -> None:
    again = [
        write(300, "create", "pod/default/second", {"exists": ("", "yes")}),
        stored(310, 1, "csi-attacher", "ControllerPublishVolume", "va/csi-2", id="t9"),
        stored(320, 1, "kubelet", "StartContainer", "pod/default/second", id="k9"),
    ]
    shown = select_forwards(steps_of(*FORWARDS, *BACK, *again))
    assert {step.subject for step in shown if step.subject.startswith("pod/")} == {"pod/default/second"}
    assert [step.what for step in shown].count("ControllerPublishVolume") == 1
    assert "CreateVolume" in [step.what for step in shown]
    assert "StopContainer" not in [step.what for step in shown]


def test_back_begins_when_the_last_pod_stops() -> None:
    again = [
        stored(300, 1, "kubelet", "StartContainer", POD, id="k8"),
        stored(310, 1, "kubelet", "StopContainer", POD, id="k9"),
        stored(320, 1, "kubelet", "NodeUnpublishVolume", "volume/vol-1", id="k10"),
    ]
    shown = select_back(steps_of(*FORWARDS, *BACK, *again))
    assert [step.what for step in shown] == ["StopContainer", "NodeUnpublishVolume"]


def test_the_other_side_of_a_call_is_a_detail() -> None:
    shown = [(step.component, step.what) for step in hide_details(steps_of(*FORWARDS))]
    assert ("csi-provisioner", "CreateVolume") in shown
    assert ("cloud", "CreateVolume") in shown
    assert ("driver", "CreateVolume") not in shown


def test_transitions_name_before_event_and_after() -> None:
    history = list_transitions([join_journey((*FORWARDS, *DELETE), TRACE)], "pvc/default/data")
    rows = [(each.field, each.before, each.event, each.after) for each in history.transitions]
    assert rows == [
        ("exists", "", "kubectl: create", "yes"),
        ("status.phase", "", "kubectl: create", "Pending"),
        ("spec.volumeName", "", "persistentvolume-controller: volumeName", rows[2][3]),
        ("status.phase", "Pending", "persistentvolume-controller: claim Bound", "Bound"),
        ("metadata.deletionTimestamp", "", "kubectl: delete", "2026-11-18T08:00:00Z"),
        ("exists", "yes", "kubectl: patch", ""),
    ]


def test_a_failed_write_is_no_transition() -> None:
    failed = write(0, "patch", "pvc/default/data", {"status.phase": ("Pending", "Bound")})
    span = structs.replace(failed.span, error="StaleRevision: 7")
    journey = join_journey([structs.replace(failed, span=span)], TRACE)
    assert list_transitions([journey]).transitions == ()
