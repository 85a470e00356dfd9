"""When a finalizer goes on and when it comes off: contract provisioning B."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.finalizers import VAC_PROTECTION_FINALIZER
from volplane.api.storage import VolumeAttributesClass
from volplane.controllers.protection.plan import (
    AddFinalizer,
    RemoveFinalizer,
    Step,
    VerifyUnused,
    classes_of,
    plan_attributes,
    plan_claim,
    plan_volume,
)
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait, WaitData, WaitReason

CLAIM, VOLUME = "kubernetes.io/pvc-protection", "kubernetes.io/pv-protection"


def metadata(deleting: bool, *finalizers: str, name: str = "c") -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "namespace": "default", "uid": "u-c", "finalizers": finalizers}
    return {**meta, "deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else meta


def claim(deleting: bool, *finalizers: str, owner: str = "", name: str = "c") -> PersistentVolumeClaim:
    meta = metadata(deleting, *finalizers, name=name)
    if owner:
        meta["ownerReferences"] = [
            {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": owner, "controller": True}
        ]
    return codec.convert(PersistentVolumeClaim, {"metadata": meta})


def volume(deleting: bool, phase: str, *finalizers: str) -> PersistentVolume:
    spec = {"claimRef": {"namespace": "default", "name": "c"}}
    whole = {"metadata": metadata(deleting, *finalizers), "spec": spec, "status": {"phase": phase}}
    return codec.convert(PersistentVolume, whole)


def pod(node: str = "n1", phase: str = "Running", ephemeral: bool = False, **meta: Any) -> Pod:
    source = (
        {"name": "c", "ephemeral": {}}
        if ephemeral
        else {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    )
    name = "" if ephemeral else "p"  # the claim of an ephemeral volume is called <pod>-<volume>
    meta = {"name": name, "namespace": "default", "uid": "u-p", **meta}
    spec = {"nodeName": node, "volumes": [source]}
    return codec.convert(Pod, {"metadata": meta, "spec": spec, "status": {"phase": phase}})


USED = Wait(WaitReason.CLAIM_IN_USE, WaitData(pods=("default/p",)))

CLAIMS: dict[str, tuple[PersistentVolumeClaim, list[Pod], list[Step | CommonStep]]] = {
    "new": (claim(False), [], [AddFinalizer((CLAIM,))]),
    "stripped by a user": (claim(False, "mine"), [pod()], [AddFinalizer(("mine", CLAIM))]),
    "protected": (claim(False, CLAIM), [pod()], []),
    "going, used": (claim(True, CLAIM), [pod()], [USED]),
    "going, its pod has ended": (claim(True, CLAIM), [pod(phase="Succeeded")], [USED]),
    "going, its pod has no node": (claim(True, CLAIM), [pod(node="")], [VerifyUnused()]),
    "going, unused": (claim(True, CLAIM), [], [VerifyUnused()]),
    "going, another component's finalizer": (claim(True, "mine"), [], []),
}


@pytest.mark.parametrize(("of", "users", "steps"), CLAIMS.values(), ids=CLAIMS.keys())
def test_claim(of: PersistentVolumeClaim, users: list[Pod], steps: list[Step | CommonStep]) -> None:
    assert list(plan_claim(of, users)) == steps


def test_a_claim_is_let_go_only_when_the_server_knows_no_pod_either() -> None:
    going = claim(True, "mine", CLAIM)
    assert list(plan_claim(going, [], proven=True)) == [RemoveFinalizer(("mine",))]
    assert list(plan_claim(going, [pod()], proven=True)) == [USED]


@pytest.mark.parametrize(
    ("user", "owner", "held"),
    [
        pytest.param(pod(ephemeral=True, name="x"), "u-p", False, id="another name"),
        pytest.param(pod(ephemeral=True), "u-p", True, id="its own"),
        pytest.param(pod(ephemeral=True), "u-q", False, id="not its own"),
        pytest.param(
            pod(ephemeral=True, deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=0),
            "u-p",
            False,
            id="killed outright",
        ),
        pytest.param(
            pod(ephemeral=True, deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=30),
            "u-p",
            True,
            id="shutting down",
        ),
    ],
)
def test_claims_of_ephemeral_volumes(user: Pod, owner: str, held: bool) -> None:
    made = claim(True, CLAIM, owner=owner, name="-c")
    (step,) = plan_claim(made, [user], proven=True)
    assert isinstance(step, Wait) is held


VOLUMES: dict[str, tuple[PersistentVolume, list[Step | CommonStep]]] = {
    "new": (volume(False, "Pending"), [AddFinalizer((VOLUME,))]),
    "protected": (volume(False, "Bound", VOLUME), []),
    "going, bound": (
        volume(True, "Bound", VOLUME),
        [Wait(WaitReason.VOLUME_BOUND, WaitData(claim="default/c"))],
    ),
    "going, released": (volume(True, "Released", VOLUME, "mine"), [RemoveFinalizer(("mine",))]),
    "going, not ours to hold": (volume(True, "Bound", "mine"), []),
}


@pytest.mark.parametrize(("of", "steps"), VOLUMES.values(), ids=VOLUMES.keys())
def test_volume(of: PersistentVolume, steps: list[Step | CommonStep]) -> None:
    assert list(plan_volume(of)) == steps


def attributes_class(*finalizers: str, deleting: bool = False) -> VolumeAttributesClass:
    meta = {**metadata(deleting, *finalizers), "namespace": ""}
    return codec.convert(VolumeAttributesClass, {"metadata": meta})


ATTRIBUTES: dict[str, tuple[VolumeAttributesClass, list[str], bool, list[Step | CommonStep]]] = {
    "new": (attributes_class(), [], False, [AddFinalizer((VAC_PROTECTION_FINALIZER,))]),
    "protected": (attributes_class(VAC_PROTECTION_FINALIZER), [], False, []),
    "going, used": (
        attributes_class(VAC_PROTECTION_FINALIZER, deleting=True),
        ["volume pv", "claim default/c"],
        True,
        [Wait(WaitReason.ATTRIBUTES_CLASS_IN_USE, WaitData(names=("claim default/c", "volume pv")))],
    ),
    "going, not used as far as the caches show": (
        attributes_class(VAC_PROTECTION_FINALIZER, deleting=True),
        [],
        False,
        [VerifyUnused()],
    ),
    "going, not used": (
        attributes_class(VAC_PROTECTION_FINALIZER, deleting=True),
        [],
        True,
        [RemoveFinalizer(())],
    ),
    "going, not ours to hold": (attributes_class(deleting=True), [], True, []),
}


@pytest.mark.parametrize(("of", "users", "proven", "steps"), ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_attributes_class(
    of: VolumeAttributesClass, users: list[str], proven: bool, steps: list[Step]
) -> None:
    assert list(plan_attributes(of, users, proven=proven)) == steps


def test_classes_that_claims_and_volumes_refer_to() -> None:
    named = {"spec": {"volumeAttributesClassName": "gold"}}
    assert classes_of(codec.convert(PersistentVolume, named)) == ["gold"]
    assert classes_of(PersistentVolume()) == []
    assert classes_of(PersistentVolumeClaim()) == []
    status = {
        "currentVolumeAttributesClassName": "silver",
        "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "Pending"},
    }
    changing = codec.convert(PersistentVolumeClaim, {"status": status})
    assert sorted(classes_of(changing)) == ["gold", "silver"]
