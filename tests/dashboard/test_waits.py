"""Which objects are worth explaining, and in which order what waits is listed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.controllers import objects
from tests.explain.explain_objects import NOW, bound_pair, change
from volplane.api import codec
from volplane.api.snapshot import VolumeSnapshot
from volplane.api.storage import VolumeAttachment
from volplane.dashboard.views.waits import EXPECTED, FAILING, WaitSeverity, judge, list_waits, may_wait
from volplane.explain.result import ExplainResult, ExplanationStep, StepState
from volplane.rules.waits import WaitReason

CLAIM, VOLUME = bound_pair("data", "pv-1")
DELETING = {"metadata": {"deletionTimestamp": "2026-05-04T03:00:00Z"}}
READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


def attachment(**status: Any) -> VolumeAttachment:
    return codec.convert(VolumeAttachment, {"metadata": {"name": "va"}, "spec": {}, "status": status})


def snapshot(**more: Any) -> VolumeSnapshot:
    return codec.convert(VolumeSnapshot, {"metadata": {"name": "s"}, "spec": {"source": {}}, **more})


@pytest.mark.parametrize(
    ("obj", "waits"),
    [
        pytest.param(CLAIM, False, id="bound claim"),
        pytest.param(objects.claim("new"), True, id="new claim"),
        pytest.param(change(CLAIM, **DELETING), True, id="deleted claim"),
        pytest.param(
            change(CLAIM, status={"conditions": [{"type": "Resizing", "status": "True"}]}),
            True,
            id="resizing claim",
        ),
        pytest.param(VOLUME, False, id="bound volume"),
        pytest.param(change(VOLUME, status={"phase": "Available"}), False, id="available volume"),
        pytest.param(change(VOLUME, status={"phase": "Released"}), True, id="released volume"),
        pytest.param(objects.pod("web"), True, id="new pod"),
        pytest.param(change(objects.pod("web"), **READY), False, id="ready pod"),
        pytest.param(change(objects.pod("web"), status={"phase": "Succeeded"}), False, id="ended pod"),
        pytest.param(attachment(attached=True), False, id="attached"),
        pytest.param(attachment(attached=False), True, id="attaching"),
        pytest.param(objects.node("n"), False, id="ready node"),
        pytest.param(objects.node("n", ready=False), True, id="lost node"),
        pytest.param(snapshot(), True, id="new snapshot"),
        pytest.param(snapshot(status={"readyToUse": True}), False, id="ready snapshot"),
        pytest.param(objects.driver(), False, id="kind that never waits"),
    ],
)
def test_only_objects_that_may_wait_are_explained(obj: Any, waits: bool) -> None:
    assert may_wait(obj) is waits


def waiting(subject: str, reason: str, seconds: float | None = 0.0) -> ExplainResult:
    since = None if seconds is None else NOW - timedelta(seconds=seconds)
    step = ExplanationStep(StepState.WAITS, "be bound", why="because", since=since, reason=reason)
    return ExplainResult(subject, True, "because", NOW, (step,))


@pytest.mark.parametrize(
    ("subject", "reason", "severity"),
    [
        ("node/n1", "", WaitSeverity.NODE),
        ("pvc/default/a", WaitReason.RETRY, WaitSeverity.FAILING),
        ("pod/default/a", WaitReason.ATTACHED_TO_OTHER_NODE, WaitSeverity.FAILING),
        ("pod/default/a", WaitReason.ATTACH, WaitSeverity.WAITING),
        ("pod/default/a", "SomethingNew", WaitSeverity.WAITING),
        ("pvc/default/a", WaitReason.FIRST_CONSUMER, WaitSeverity.EXPECTED),
    ],
)
def test_a_wait_is_judged_by_its_reason(subject: str, reason: str, severity: WaitSeverity) -> None:
    assert judge(waiting(subject, reason)) is severity


def test_the_worst_stand_first_and_the_longest_of_them() -> None:
    results = [
        waiting("pvc/default/idle", WaitReason.FIRST_CONSUMER, 9999),
        waiting("pod/default/new", WaitReason.ATTACH, 1),
        waiting("pod/default/old", WaitReason.ATTACH, 100),
        waiting("pod/default/unknown", WaitReason.ATTACH, None),
        waiting("pvc/default/bad", WaitReason.RETRY, 1),
        waiting("node/worker-1", "", 1),
        ExplainResult("pvc/default/fine", False, "bound", NOW),
    ]
    assert [wait.result.subject for wait in list_waits(results)] == [
        "node/worker-1",
        "pvc/default/bad",
        "pod/default/old",
        "pod/default/new",
        "pod/default/unknown",
        "pvc/default/idle",
    ]


def test_no_reason_is_both_failing_and_expected() -> None:
    assert not FAILING & EXPECTED
