"""Generic ephemeral volumes: situation → steps."""

from __future__ import annotations

import pytest

from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.api.meta import ObjectMeta
from volplane.controllers.ephemeral.plan import CreateEphemeralClaim, ReportClaimConflict, plan
from volplane.rules.workloads import owner_reference

TEMPLATE = {
    "metadata": {"labels": {"kind": "scratch"}, "annotations": {"a": "b"}},
    "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "gp3"},
}


def pod(*volumes: str, going: bool = False) -> Pod:
    given = [{"name": v, "ephemeral": {"volumeClaimTemplate": TEMPLATE}} for v in volumes]
    stamp = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if going else {}
    metadata = {"name": "web", "namespace": "ns", "uid": "u", **stamp}
    return codec.convert(Pod, {"metadata": metadata, "spec": {"volumes": [*given, {"name": "plain"}]}})


MINE = PersistentVolumeClaim(
    metadata=ObjectMeta(name="web-a", namespace="ns", owner_references=(owner_reference(pod()),))
)
FOREIGN = PersistentVolumeClaim(metadata=ObjectMeta(name="web-a", namespace="ns"))


@pytest.mark.parametrize(
    ("given", "claims", "expected"),
    [
        pytest.param(pod("a", "b"), {}, ["make web-a", "make web-b"], id="a claim per volume"),
        pytest.param(pod("a", "b"), {"web-a": MINE}, ["make web-b"], id="one is there"),
        pytest.param(pod("a"), {"web-a": FOREIGN}, ["refuse a"], id="a namesake is not taken over"),
        pytest.param(pod("a", going=True), {}, [], id="a pod that goes needs no more"),
        pytest.param(pod(), {}, [], id="no ephemeral volume"),
    ],
)
def test_what_a_pod_needs(given: Pod, claims: dict[str, PersistentVolumeClaim], expected: list[str]) -> None:
    said = [
        f"make {step.claim.name}" if isinstance(step, CreateEphemeralClaim) else f"refuse {step.volume}"
        for step in plan(given, claims)
    ]
    assert said == expected


def test_the_claim_is_the_template_owned_by_the_pod() -> None:
    (step,) = plan(pod("a"), {})
    assert isinstance(step, CreateEphemeralClaim)
    meta = step.claim.metadata
    assert (meta.namespace, meta.labels, meta.annotations) == ("ns", {"kind": "scratch"}, {"a": "b"})
    (owner,) = meta.owner_references
    reference = (owner.api_version, owner.kind, owner.name, owner.uid)
    assert reference == ("v1", "Pod", "web", "u")
    assert owner.controller
    assert owner.block_owner_deletion
    assert step.claim.spec.storage_class_name == "gp3"


def test_the_refusal_is_said_in_the_words_users_know() -> None:
    (step,) = plan(pod("a"), {"web-a": FOREIGN})
    assert step == ReportClaimConflict("a", "PVC ns/web-a was not created for pod ns/web (pod is not owner)")
