"""What a claim that names another VolumeAttributesClass needs next, in every state."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.objects import DRIVER, claim, volume
from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim, SecretReference
from volplane.api.meta import ObjectMeta
from volplane.api.storage import VolumeAttributesClass
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait
from volplane.sidecars.resizer.modify import plan as plans
from volplane.sidecars.resizer.modify.plan import (
    MODIFYING,
    CancelModification,
    LastModification,
    MarkModifyPending,
    ModifyVolume,
    RecordTargetClass,
    plan,
)

FAST, SLOW = (
    VolumeAttributesClass(metadata=ObjectMeta(name=name), driver_name=DRIVER, parameters={"iops": "3"})
    for name in ("fast", "slow")
)
CLASSES = {"fast": FAST, "slow": SLOW}
CURRENT = "slow"
NO_ATTEMPT = LastModification()


def claim_naming(
    wanted: str | None, state: str = "", target: str = "", **status: Any
) -> PersistentVolumeClaim:
    made = codec.to_dict(claim("data", volumeName="v", volumeAttributesClassName=wanted))
    made["status"] = {"phase": "Bound", "currentVolumeAttributesClassName": CURRENT, **status}
    if state:
        made["status"]["modifyVolumeStatus"] = {"status": state, "targetVolumeAttributesClassName": target}
    return codec.convert(PersistentVolumeClaim, made)


def steps(made: PersistentVolumeClaim, last: LastModification = NO_ATTEMPT, **options: Any) -> list[object]:
    found = plan(made, options.get("volume", volume("v")), DRIVER, last, options.get("classes", CLASSES).get)
    return [type(step) if isinstance(step, RecordEvent | Wait) else step for step in found]


CANCELLED = {"conditions": [{"type": MODIFYING, "status": "True"}]}
CASES: dict[str, tuple[PersistentVolumeClaim, list[object]]] = {
    "names another class": (
        claim_naming("fast"),
        [RecordTargetClass("fast"), RecordEvent, ModifyVolume(FAST)],
    ),
    "has its class": (claim_naming("slow"), []),
    "is not bound": (claim_naming("fast", phase="Pending"), []),
    "names a class that does not exist": (
        claim_naming("gold"),
        [RecordEvent, MarkModifyPending(), Wait],
    ),
    "still waits for its class": (claim_naming("gold", "Pending", "gold"), [Wait]),
    "in progress": (claim_naming("fast", "InProgress", "fast"), [ModifyVolume(FAST)]),
    "in progress, and names another class by now": (
        claim_naming("slow", "InProgress", "fast"),
        [ModifyVolume(FAST)],
    ),
    "in progress, and its class is gone": (
        claim_naming("fast", "InProgress", "gold"),
        [RecordEvent, Wait],
    ),
    "in progress, and names no class any more": (
        claim_naming(None, "InProgress", "fast"),
        [ModifyVolume(FAST)],
    ),
    "names no class any more": (
        claim_naming(None, "Infeasible", "fast", **CANCELLED),
        [RecordEvent, CancelModification()],
    ),
    "was cancelled": (claim_naming(None, "Infeasible", "fast"), []),
}


@pytest.mark.parametrize("case", CASES)
def test_claims(case: str) -> None:
    made, expected = CASES[case]
    assert steps(made) == expected


def test_after_a_final_error_the_class_that_the_claim_names_by_now_is_the_target() -> None:
    failed = claim_naming("slow", "InProgress", "fast")
    assert steps(failed, LastModification(is_final=True)) == [
        RecordTargetClass("slow"),
        RecordEvent,
        ModifyVolume(SLOW),
    ]


def test_an_infeasible_class_is_not_tried_again_before_its_time() -> None:
    slow = LastModification(is_final=True, retry_after=100.0)
    assert steps(claim_naming("fast", "Infeasible", "fast"), slow) == [Wait]
    assert steps(claim_naming("fast", "Infeasible", "gold"), slow)[-1] == ModifyVolume(FAST)
    assert plans.is_same_target(claim_naming("fast", "Infeasible", "fast"))
    assert not plans.is_same_target(claim_naming("fast"))


def test_volumes_of_other_drivers_are_left_alone() -> None:
    other = volume("v", csi={"driver": "other", "volumeHandle": "h"})
    assert steps(claim_naming("fast"), volume=other) == []
    assert steps(claim_naming("fast"), volume=None) == []


def test_the_secret_for_modifications_comes_before_the_one_for_expansions() -> None:
    notes = {plans.SECRET_NAME: "m", plans.SECRET_NAMESPACE: "ns"}
    annotated = volume("v", metadata={"annotations": notes})
    assert plans.secret_reference(annotated) == SecretReference(name="m", namespace="ns")
    expands = {
        "driver": DRIVER,
        "volumeHandle": "h",
        "controllerExpandSecretRef": {"name": "e", "namespace": "ns"},
    }
    assert plans.secret_reference(volume("v", csi=expands)) == SecretReference(name="e", namespace="ns")
    assert plans.secret_reference(volume("v", csi=None)) is None


def test_names_of_claim_and_volume_are_sent_if_asked_for() -> None:
    made = claim_naming("fast")
    assert plans.mutable_parameters(made, volume("v"), FAST, extra=False) == {"iops": "3"}
    sent = plans.mutable_parameters(made, volume("v"), FAST, extra=True)
    assert sent["csi.storage.k8s.io/pvc/name"] == "data"
    assert sent["csi.storage.k8s.io/pv/name"] == "v"


def test_a_claim_is_found_by_the_classes_that_it_waits_for() -> None:
    assert plans.attributes_classes(claim_naming("fast", "InProgress", "gold")) == ["fast", "gold"]
    assert plans.attributes_classes(claim_naming(None)) == []


def test_our_own_writes_do_not_wake_the_claim() -> None:
    assert plans.relevant_fields(None) is None
    written = claim_naming("fast", "InProgress", "fast")
    assert plans.relevant_fields(claim_naming("fast")) == plans.relevant_fields(written)
