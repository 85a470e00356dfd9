"""Spans of any process become one journey: lanes, phases, outcomes, attempts."""

from __future__ import annotations

import pytest

from tests.explain.journey.spans import (
    ATTACHMENT,
    BACK,
    CLAIM,
    DELETE,
    FORWARDS,
    HANDLE,
    POD,
    TRACE,
    UID,
    VOLUME,
    stored,
    write,
)
from volplane.base.span_store import StoredSpan
from volplane.explain.journey.join import complete_traces, find_traces, join_journey
from volplane.explain.journey.model import JourneyOutcome, Lane, Phase, StepOutcome
from volplane.explain.journey.select import select_back

OTHER = "f" * 32


def test_a_journey_names_everything_that_belongs_to_the_claim() -> None:
    journey = join_journey((*FORWARDS, *BACK, *DELETE), TRACE)
    assert (journey.subject, journey.uid, journey.trace) == (CLAIM, UID, TRACE)
    assert journey.volumes == (VOLUME.removeprefix("pv/"),)
    assert journey.attachments == (ATTACHMENT.removeprefix("va/"),)
    assert journey.pods == ("default/web",)
    assert journey.disks == ("vol-1",)
    assert journey.nodes == ("worker-1",)


@pytest.mark.parametrize(
    ("spans", "outcome"),
    [
        pytest.param(FORWARDS[:5], JourneyOutcome.PENDING, id="the volume is being created"),
        pytest.param(FORWARDS[:14], JourneyOutcome.PROVISIONED, id="the claim is bound"),
        pytest.param(FORWARDS[:20], JourneyOutcome.MOVING, id="the disk is attached"),
        pytest.param(FORWARDS, JourneyOutcome.IN_USE, id="the container runs"),
        pytest.param((*FORWARDS, *BACK), JourneyOutcome.RELEASED, id="the pod is gone"),
        pytest.param((*FORWARDS, *BACK, *DELETE), JourneyOutcome.DELETED, id="the claim is gone"),
    ],
)
def test_the_outcome_is_how_far_the_volume_has_come(
    spans: tuple[StoredSpan, ...], outcome: JourneyOutcome
) -> None:
    assert join_journey(spans, TRACE).outcome is outcome


@pytest.mark.parametrize(
    ("span", "lane", "to", "phase"),
    [
        (write(0, "create", CLAIM, {"exists": ("", "yes")}), Lane.USER, Lane.APISERVER, Phase.PROVISION),
        (
            stored(0, 1, "csi-provisioner", "CreateVolume", CLAIM),
            Lane.PROVISIONER,
            Lane.DRIVER_CONTROLLER,
            "provision",
        ),
        (
            stored(0, 1, "driver", "CreateVolume", HANDLE),
            Lane.DRIVER_CONTROLLER,
            Lane.DRIVER_CONTROLLER,
            "provision",
        ),
        (
            stored(0, 1, "ebs-plugin", "AttachVolume", HANDLE),
            Lane.DRIVER_CONTROLLER,
            Lane.CLOUD,
            Phase.ATTACH,
        ),
        (stored(0, 1, "cloud", "AttachVolume", HANDLE), Lane.CLOUD, Lane.CLOUD, Phase.ATTACH),
        (stored(0, 1, "csi-attacher", "attached", ATTACHMENT), Lane.ATTACHER, Lane.APISERVER, Phase.ATTACH),
        (stored(0, 1, "kubelet", "NodeStageVolume", HANDLE), Lane.KUBELET, Lane.DRIVER_NODE, Phase.STAGE),
        (stored(0, 1, "driver", "NodeStageVolume", HANDLE), Lane.DRIVER_NODE, Lane.DRIVER_NODE, Phase.STAGE),
        (stored(0, 1, "kubelet", "StartContainer", POD), Lane.KUBELET, Lane.CONTAINER, Phase.START),
        (
            stored(0, 0, "default-scheduler", "filter and score", POD),
            Lane.SCHEDULER,
            Lane.SCHEDULER,
            "schedule",
        ),
        (stored(0, 1, "flexvolume", "mountdevice", POD), Lane.DRIVER_NODE, Lane.DRIVER_NODE, Phase.STAGE),
        (
            write(0, "patch", "node/w", {"status.volumesAttached[x]": ("", "yes")}),
            Lane.ATTACH_DETACH,
            Lane.APISERVER,
            Phase.ATTACH,
        ),
        (
            write(0, "patch", "node/w", {"status.volumesInUse[x]": ("yes", "")}),
            Lane.KUBELET,
            Lane.APISERVER,
            Phase.DETACH,
        ),
        (
            write(0, "patch", CLAIM, {"exists": ("yes", "")}, manager="kube-controller-manager"),
            Lane.CONTROLLERS,
            Lane.APISERVER,
            Phase.DELETE,
        ),
        (
            write(
                0,
                "patch",
                POD,
                {"status.phase": ("Pending", "Running")},
                user="system:node:worker-1",
                manager="x",
            ),
            Lane.KUBELET,
            Lane.APISERVER,
            Phase.START,
        ),
    ],
)
def test_a_step_has_its_lane_target_and_phase(span: StoredSpan, lane: Lane, to: Lane, phase: str) -> None:
    (step,) = join_journey([span], TRACE).steps
    assert (step.lane, step.to, step.phase) == (lane, to, phase)


def test_a_write_within_a_step_goes_from_the_api_server_to_the_store() -> None:
    journey = join_journey(FORWARDS, TRACE)
    inner = next(step for step in journey.steps if step.subject == VOLUME and step.what == "create")
    assert (inner.lane, inner.to, inner.phase, inner.depth) == (
        Lane.APISERVER,
        Lane.STORE,
        Phase.PROVISION,
        1,
    )


def test_the_removal_of_the_claim_is_on_the_way_back_whoever_removes_the_last_finalizer() -> None:
    """A provisioner removes its intent from a claim that is being deleted already."""
    around = stored(0, 9, "csi-provisioner", "remove order", CLAIM, id="intent")
    changes = {"metadata.finalizers[x]": ("yes", ""), "exists": ("yes", "")}
    removal = write(2, "patch", CLAIM, changes, parent="intent")
    journey = join_journey((around, removal), TRACE)
    assert [step.phase for step in journey.steps] == [Phase.PROVISION, Phase.DELETE]
    assert [step.what for step in select_back(journey.steps)] == ["patch"]


def test_work_on_the_host_belongs_to_the_call_around_it() -> None:
    (mkfs,) = (step for step in join_journey(FORWARDS, TRACE).steps if step.what == "mkfs")
    assert (mkfs.lane, mkfs.phase, mkfs.node) == (Lane.KUBELET, Phase.STAGE, "worker-1")


def test_a_repeated_step_counts_its_attempts() -> None:
    first = stored(
        0, 1, "csi-attacher", "ControllerPublishVolume", ATTACHMENT, id="1", error="CallError: busy"
    )
    second = stored(5, 1, "csi-attacher", "ControllerPublishVolume", ATTACHMENT, id="2")
    steps = join_journey([second, first], TRACE).steps
    assert [(step.attempt, step.outcome) for step in steps] == [(1, StepOutcome.FAILED), (2, StepOutcome.OK)]


@pytest.mark.parametrize(
    ("cut_off", "outcome"), [(True, StepOutcome.CUT_OFF), (False, StepOutcome.IN_PROGRESS)]
)
def test_a_step_without_an_end_is_in_progress_or_was_cut_off(cut_off: bool, outcome: StepOutcome) -> None:
    (step,) = join_journey(
        [stored(0, -1, "kubelet", "NodeStageVolume", HANDLE, cut_off=cut_off)], TRACE
    ).steps
    assert (step.outcome, step.seconds) == (outcome, None)


def test_spans_of_other_claims_are_left_out() -> None:
    foreign = stored(1, 1, "csi-attacher", "attached", "va/other", traces=(OTHER,))
    assert join_journey([FORWARDS[0], foreign], TRACE).attachments == ()


def test_a_pod_of_two_claims_is_in_both_journeys() -> None:
    start = stored(1, 1, "kubelet", "StartContainer", POD, traces=(TRACE, OTHER))
    assert len(join_journey([start], TRACE).steps) == len(join_journey([start], OTHER).steps) == 1


def test_the_newest_claim_of_a_name_comes_last() -> None:
    spans = [stored(5, 1, "x", "y", CLAIM), stored(9, 1, "x", "y", CLAIM, traces=(OTHER,))]
    assert find_traces(spans, CLAIM) == [TRACE, OTHER]


def test_a_span_of_a_restarted_process_gets_the_trace_that_others_know() -> None:
    lost = stored(9, 1, "kubelet", "NodeUnstageVolume", HANDLE, traces=())
    spans = complete_traces([*FORWARDS, lost])
    assert join_journey(spans, TRACE).steps[-1].what in {"NodeUnstageVolume", "StartContainer"}
    assert any(step.what == "NodeUnstageVolume" for step in join_journey(spans, TRACE).steps)


@pytest.mark.parametrize("changes", [7, ["exists"], [["exists", "yes"]], [[1, 2, 3, 4]]])
def test_damaged_changes_are_left_out(changes: object) -> None:
    (step,) = join_journey([stored(0, 1, "apiserver", "patch", CLAIM, changes=changes)], TRACE).steps
    assert step.changes == ()
