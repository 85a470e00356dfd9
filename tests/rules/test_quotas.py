"""What claims use of a quota, and which quotas cover a claim."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim, ResourceQuota
from volplane.controllers.quota.plan import SetQuotaStatus, plan
from volplane.rules import quotas

GIB = 1 << 30
ATTRIBUTES = "VolumeAttributesClass"


def claim(size: str = "1Gi", cls: str = "", allocated: str = "", **more: Any) -> PersistentVolumeClaim:
    spec = {"resources": {"requests": {"storage": size}}, **more}
    status = {"allocatedResources": {"storage": allocated}} if allocated else {}
    if cls:
        spec["storageClassName"] = cls
    return codec.convert(PersistentVolumeClaim, {"metadata": {"name": "c"}, "spec": spec, "status": status})


def quota(*hard: str, status: dict[str, Any] | None = None, **spec: Any) -> ResourceQuota:
    amounts = dict.fromkeys(hard, "10")
    whole = {"metadata": {"name": "q"}, "spec": {"hard": amounts, **spec}, "status": status or {}}
    return codec.convert(ResourceQuota, whole)


def scoped_quota(operator: str, *values: str, scope: str = ATTRIBUTES) -> ResourceQuota:
    expression = {"scopeName": scope, "operator": operator, "values": list(values)}
    return quota("requests.storage", scopeSelector={"matchExpressions": [expression]})


GOLD = claim(volumeAttributesClassName="gold")


def test_a_claim_counts_in_all_and_for_its_class() -> None:
    assert quotas.usage(claim()) == {
        "persistentvolumeclaims": 1,
        "count/persistentvolumeclaims": 1,
        "requests.storage": GIB,
    }
    of_class = quotas.usage(claim(cls="gp3"))
    assert of_class["gp3.storageclass.storage.k8s.io/requests.storage"] == GIB
    assert of_class["gp3.storageclass.storage.k8s.io/persistentvolumeclaims"] == 1


def test_a_shrunk_claim_counts_with_what_was_allocated() -> None:
    assert quotas.usage(claim("1Gi", allocated="3Gi"))["requests.storage"] == 3 * GIB


COVERS = {
    "no scopes": (quota("requests.storage"), claim(), True),
    "a scope of pods": (quota("requests.storage", scopes=["BestEffort"]), claim(), False),
    "the scope, and a class": (quota("requests.storage", scopes=[ATTRIBUTES]), GOLD, True),
    "the scope, and no class": (quota("requests.storage", scopes=[ATTRIBUTES]), claim(), False),
    "a selector of pods": (scoped_quota("In", "high", scope="PriorityClass"), GOLD, False),
    "in": (scoped_quota("In", "gold", "silver"), GOLD, True),
    "in, another": (scoped_quota("In", "silver"), GOLD, False),
    "not in": (scoped_quota("NotIn", "silver"), GOLD, True),
    "not in, but it is": (scoped_quota("NotIn", "gold"), GOLD, False),
    "exists": (scoped_quota("Exists"), GOLD, True),
    "does not exist": (scoped_quota("DoesNotExist"), GOLD, False),
    "does not exist, and has none": (scoped_quota("DoesNotExist"), claim(), True),
    "an unknown operator": (scoped_quota("Near"), GOLD, False),
}


@pytest.mark.parametrize(("of", "which", "covers"), COVERS.values(), ids=COVERS)
def test_scopes(of: ResourceQuota, which: PersistentVolumeClaim, covers: bool) -> None:
    assert quotas.covers(of, which) is covers


def test_a_class_that_is_being_changed_counts_with_its_target() -> None:
    changing = codec.convert(
        PersistentVolumeClaim,
        {"status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "Pending"}}},
    )
    assert quotas.covers(scoped_quota("In", "gold"), changing)


def test_only_what_the_quota_limits_is_counted() -> None:
    limited = quota("requests.storage", "persistentvolumeclaims", "pods")
    assert quotas.compute_used(limited, [claim("1Gi"), claim("2Gi", cls="gp3")]) == {
        "requests.storage": 3 * GIB,
        "persistentvolumeclaims": 2,
    }
    assert quotas.compute_used(quota("pods"), [claim()]) == {}
    elsewhere = quota("requests.storage", scopes=["BestEffort"])
    assert quotas.compute_used(elsewhere, [claim()]) == {"requests.storage": 0}


def test_the_status_is_written_when_it_differs() -> None:
    limited = quota("requests.storage", "persistentvolumeclaims")
    used = {"requests.storage": "1Gi", "persistentvolumeclaims": "1"}
    (step,) = plan(limited, [claim()])
    assert step == SetQuotaStatus(limited.spec.hard, used)
    current = quota(
        "requests.storage", "persistentvolumeclaims", status={"hard": dict(limited.spec.hard), "used": used}
    )
    assert list(plan(current, [claim()])) == []
