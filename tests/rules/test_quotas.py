"""What claims use of a namespace's quotas."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim, ResourceQuota
from volplane.rules import quotas

GIB = 1 << 30


def claim(
    size: str = "1Gi", *, cls: str | None = None, attributes: str | None = None, **status: Any
) -> PersistentVolumeClaim:
    spec: dict[str, Any] = {"resources": {"requests": {"storage": size}}}
    if cls is not None:
        spec["storageClassName"] = cls
    if attributes is not None:
        spec["volumeAttributesClassName"] = attributes
    return codec.convert(PersistentVolumeClaim, {"metadata": {"name": "c"}, "spec": spec, "status": status})


def quota(hard: dict[str, str] | None = None, **spec: Any) -> ResourceQuota:
    return codec.convert(ResourceQuota, {"metadata": {"name": "q"}, "spec": {"hard": hard or {}, **spec}})


def selector(operator: str, *values: str, scope: str = "VolumeAttributesClass") -> dict[str, Any]:
    need = {"scopeName": scope, "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [need]}}


def test_a_claim_counts_in_all_and_for_its_class() -> None:
    assert quotas.usage(claim("2Gi")) == {
        "persistentvolumeclaims": 1,
        "count/persistentvolumeclaims": 1,
        "requests.storage": 2 * GIB,
    }
    of_class = quotas.usage(claim("2Gi", cls="fast"))
    assert of_class["fast.storageclass.storage.k8s.io/requests.storage"] == 2 * GIB
    assert of_class["fast.storageclass.storage.k8s.io/persistentvolumeclaims"] == 1


def test_a_claim_that_was_shrunk_counts_with_its_allocated_size() -> None:
    shrunk = claim("2Gi", allocatedResources={"storage": "5Gi"})
    assert quotas.usage(shrunk)["requests.storage"] == 5 * GIB


MODIFIED: dict[str, Any] = {
    "modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "InProgress"}
}


@pytest.mark.parametrize(
    ("spec", "of", "covers"),
    [
        pytest.param({}, claim(), True, id="no scope"),
        pytest.param({"scopes": ["Terminating"]}, claim(), False, id="a scope of pods"),
        pytest.param({"scopes": ["VolumeAttributesClass"]}, claim(), False, id="scope, no class"),
        pytest.param(
            {"scopes": ["VolumeAttributesClass"]}, claim(attributes="gold"), True, id="scope, a class"
        ),
        pytest.param(selector("In", "gold"), claim(attributes="gold"), True, id="in"),
        pytest.param(selector("In", "gold"), claim(attributes="tin"), False, id="not in the list"),
        pytest.param(selector("In", "gold"), claim(**MODIFIED), True, id="the target of a modification"),
        pytest.param(
            selector("In", "gold"), claim(currentVolumeAttributesClassName="gold"), True, id="the current one"
        ),
        pytest.param(selector("NotIn", "gold"), claim(attributes="gold"), False, id="not in"),
        pytest.param(selector("NotIn", "gold"), claim(), True, id="not in, no class"),
        pytest.param(selector("Exists"), claim(attributes="tin"), True, id="exists"),
        pytest.param(selector("DoesNotExist"), claim(attributes="tin"), False, id="does not exist"),
        pytest.param(selector("Near"), claim(attributes="tin"), False, id="unknown operator"),
        pytest.param(
            selector("Exists", scope="PriorityClass"), claim(attributes="tin"), False, id="another scope"
        ),
    ],
)
def test_a_quota_covers_claims_by_its_scopes(
    spec: dict[str, Any], of: PersistentVolumeClaim, covers: bool
) -> None:
    assert quotas.covers(quota(**spec), of) is covers


def test_only_resources_of_claims_are_computed() -> None:
    hard = {"requests.storage": "10Gi", "persistentvolumeclaims": "5", "pods": "3"}
    assert quotas.compute_used(quota(hard), [claim("1Gi"), claim("2Gi")]) == {
        "requests.storage": 3 * GIB,
        "persistentvolumeclaims": 2,
    }
    assert quotas.compute_used(quota({"pods": "3"}), [claim()]) == {}
    assert quotas.compute_used(quota(hard, scopes=["Terminating"]), [claim()])["requests.storage"] == 0


def test_amounts_are_quantities() -> None:
    assert quotas.format_amounts({"requests.storage": 3 * GIB, "persistentvolumeclaims": 2}) == {
        "requests.storage": "3Gi",
        "persistentvolumeclaims": "2",
    }
