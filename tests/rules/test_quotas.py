"""What objects use of a quota, which quotas cover them, and upstream's messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim, Pod, ResourceQuota, Service
from volplane.rules.quotas.amounts import format_amounts, read_amounts
from volplane.rules.quotas.limits import QuotaLimits, limits_of
from volplane.rules.quotas.pods import describe_unnamed
from volplane.rules.quotas.usage import ObjectUsage, greater_usage, limited_resource, usage_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ATTRIBUTES = "VolumeAttributesClass"


def claim(size: str = "1Gi", cls: str = "", allocated: str = "", **more: Any) -> PersistentVolumeClaim:
    spec = {"resources": {"requests": {"storage": size} if size else {}}, **more}
    status = {"allocatedResources": {"storage": allocated}} if allocated else {}
    if cls:
        spec["storageClassName"] = cls
    return codec.convert(PersistentVolumeClaim, {"metadata": {"name": "c"}, "spec": spec, "status": status})


def container(name: str = "c", **resources: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, "image": "i", "resources": resources}


def pod(*containers: dict[str, Any], status: dict[str, Any] | None = None, **spec: Any) -> Pod:
    meta = {"name": "p", **spec.pop("metadata", {})}
    spec = {"containers": list(containers or [container()]), **spec}
    return codec.convert(Pod, {"metadata": meta, "spec": spec, "status": status or {}})


def quota(*hard: str, amount: str = "10", **spec: Any) -> QuotaLimits:
    whole = {"metadata": {"name": "q"}, "spec": {"hard": dict.fromkeys(hard, amount), **spec}}
    return limits_of(codec.convert(ResourceQuota, whole))


def scoped(operator: str, *values: str, scope: str = ATTRIBUTES) -> QuotaLimits:
    expression = {"scopeName": scope, "operator": operator, "values": list(values)}
    return quota("requests.storage", "pods", scopeSelector={"matchExpressions": [expression]})


def used(resource: str, obj: object, now: datetime = NOW) -> dict[str, str]:
    return format_amounts(usage_of(resource, obj).at(now))


# What objects use


def test_a_claim_counts_in_all_and_for_its_class() -> None:
    whole = {"persistentvolumeclaims": "1", "count/persistentvolumeclaims": "1", "requests.storage": "1Gi"}
    assert used("persistentvolumeclaims", claim()) == whole
    of_class = {
        "gp3.storageclass.storage.k8s.io/requests.storage": "1Gi",
        "gp3.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
    }
    assert used("persistentvolumeclaims", claim(cls="gp3")) == whole | of_class


@pytest.mark.parametrize(
    ("asked", "allocated", "counted"),
    [("1Gi", "3Gi", "3Gi"), ("5Gi", "3Gi", "5Gi"), ("1500m", "", "2"), ("", "3Gi", None)],
    ids=["allocated more", "allocated less", "a fraction of a byte", "no request"],
)
def test_a_claim_counts_with_the_greater_of_request_and_allocation(
    asked: str, allocated: str, counted: str | None
) -> None:
    assert (
        used("persistentvolumeclaims", claim(asked, allocated=allocated)).get("requests.storage") == counted
    )


PODS: dict[str, tuple[Pod, dict[str, str]]] = {
    "requests and limits": (
        pod(container(requests={"cpu": "100m", "memory": "64Mi"}, limits={"cpu": "1", "memory": "128Mi"})),
        {"cpu": "100m", "requests.cpu": "100m", "limits.cpu": "1"}
        | {"memory": "64Mi", "requests.memory": "64Mi", "limits.memory": "128Mi"},
    ),
    "two containers": (
        pod(container(requests={"cpu": "500m"}), container("d", requests={"cpu": "500m"})),
        {"cpu": "1", "requests.cpu": "1"},
    ),
    "an init container that needs more": (
        pod(container(requests={"cpu": "1"}), initContainers=[container("i", requests={"cpu": "3"})]),
        {"cpu": "3", "requests.cpu": "3"},
    ),
    "a sidecar": (
        pod(
            container(requests={"cpu": "1"}),
            initContainers=[
                {**container("s", requests={"cpu": "1"}), "restartPolicy": "Always"},
                container("i", requests={"cpu": "500m"}),
            ],
        ),
        {"cpu": "2", "requests.cpu": "2"},
    ),
    "overhead, and limits only where there are limits": (
        pod(
            container(requests={"cpu": "1"}, limits={"memory": "1Gi"}),
            overhead={"cpu": "250m", "memory": "1Gi"},
        ),
        {"cpu": "1250m", "requests.cpu": "1250m", "limits.memory": "2Gi"}
        | {"memory": "1Gi", "requests.memory": "1Gi"},
    ),
    "resources of the whole pod": (
        pod(
            container(requests={"cpu": "1", "ephemeral-storage": "1Gi"}),
            resources={"requests": {"cpu": "2"}, "limits": {"cpu": "3", "other.io/x": "1"}},
        ),
        {"cpu": "2", "requests.cpu": "2", "limits.cpu": "3"}
        | {"ephemeral-storage": "1Gi", "requests.ephemeral-storage": "1Gi"},
    ),
    "huge pages and extended resources": (
        pod(container(requests={"hugepages-2Mi": "4Mi", "example.com/gpu": "2"})),
        {"hugepages-2Mi": "4Mi", "requests.hugepages-2Mi": "4Mi", "requests.example.com/gpu": "2"},
    ),
    "while it is resized": (
        pod(
            container(requests={"cpu": "1"}),
            status={
                "containerStatuses": [
                    {"name": "c", "resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "2"}}
                ]
            },
        ),
        {"cpu": "3", "requests.cpu": "3"},
    ),
    "when its resize is infeasible": (
        pod(
            container(requests={"cpu": "9"}),
            status={
                "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
            },
        ),
        {"cpu": "1", "requests.cpu": "1"},
    ),
}


@pytest.mark.parametrize(("which", "expected"), PODS.values(), ids=PODS)
def test_a_pod_uses_what_its_containers_need(which: Pod, expected: dict[str, str]) -> None:
    assert used("pods", which) == {"count/pods": "1", "pods": "1", **expected}


def test_a_pod_that_has_ended_is_only_an_object() -> None:
    assert used("pods", pod(container(requests={"cpu": "1"}), status={"phase": "Failed"})) == {
        "count/pods": "1"
    }


def test_a_terminating_pod_uses_its_resources_until_its_grace_period_has_passed_twice() -> None:
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    going = pod(metadata=deleted)
    assert used("pods", going, NOW + timedelta(seconds=30)) == {"count/pods": "1", "pods": "1"}
    assert used("pods", going, NOW + timedelta(seconds=31)) == {"count/pods": "1"}


SERVICES = {
    "cluster IP": ({"type": "ClusterIP", "ports": [{"port": 1}]}, "0", "0"),
    "node port": ({"type": "NodePort", "ports": [{"port": 1}, {"port": 2}]}, "2", "0"),
    "load balancer": ({"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}, "2", "1"),
    "load balancer without node ports": (
        {
            "type": "LoadBalancer",
            "ports": [{"port": 1, "nodePort": 30001}, {"port": 2}],
            "allocateLoadBalancerNodePorts": False,
        },
        "1",
        "1",
    ),
}


@pytest.mark.parametrize(("spec", "node_ports", "balancers"), SERVICES.values(), ids=SERVICES)
def test_a_service_counts_with_its_node_ports(spec: dict[str, Any], node_ports: str, balancers: str) -> None:
    assert used("services", codec.convert(Service, {"spec": spec})) == {
        "services": "1",
        "count/services": "1",
        "services.nodeports": node_ports,
        "services.loadbalancers": balancers,
    }


def test_of_other_kinds_only_the_number_counts() -> None:
    assert used("deployments.apps", None) == {"count/deployments.apps": "1"}
    assert used("configmaps", None) == {"count/configmaps": "1", "configmaps": "1"}


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("pods", "pods"),
        ("count/pods", "pods"),
        ("limits.memory", "pods"),
        ("requests.ephemeral-storage", "pods"),
        ("requests.hugepages-2Mi", "pods"),
        ("requests.example.com/gpu", "pods"),
        ("requests.storage", "persistentvolumeclaims"),
        ("gp3.storageclass.storage.k8s.io/requests.storage", "persistentvolumeclaims"),
        ("gp3.storageclass.storage.k8s.io/persistentvolumeclaims", "persistentvolumeclaims"),
        ("services.loadbalancers", "services"),
        ("secrets", "secrets"),
        ("count/widgets.example.com", "widgets.example.com"),
        ("count/events", ""),
        ("example.com/gpu", ""),
    ],
)
def test_the_resource_that_a_quota_limits(name: str, resource: str) -> None:
    assert limited_resource(name) == resource


# Scopes

GOLD = claim(volumeAttributesClassName="gold")
CHANGING = codec.convert(
    PersistentVolumeClaim,
    {
        "spec": {"volumeAttributesClassName": "silver"},
        "status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold", "status": "Pending"}},
    },
)
URGENT = pod(priorityClassName="urgent")
ENDS = pod(activeDeadlineSeconds=1)
AFFINE = pod(
    affinity={
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "z", "namespaces": ["other"]}}
            ]
        }
    }
)
NEAR = pod(
    affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z"}]}}
)
BEST = pod(status={"qosClass": "BestEffort"})

COVERS: dict[str, tuple[QuotaLimits, object, bool]] = {
    "no scopes": (quota("requests.storage"), claim(), True),
    "a scope of pods": (quota("requests.storage", scopes=["BestEffort"]), claim(), False),
    "the scope, and a class": (quota("requests.storage", scopes=[ATTRIBUTES]), GOLD, True),
    "the scope, and no class": (quota("requests.storage", scopes=[ATTRIBUTES]), claim(), False),
    "a selector of pods": (scoped("In", "high", scope="PriorityClass"), GOLD, False),
    "in": (scoped("In", "gold", "silver"), GOLD, True),
    "in, another": (scoped("In", "bronze"), GOLD, False),
    "in, its target": (scoped("In", "gold"), CHANGING, True),
    "not in": (scoped("NotIn", "silver"), GOLD, True),
    "not in, but it is": (scoped("NotIn", "gold"), GOLD, False),
    "not in, but one of its classes is": (scoped("NotIn", "gold"), CHANGING, True),
    "not in, and has none": (scoped("NotIn", "gold"), claim(), True),
    "exists": (scoped("Exists"), GOLD, True),
    "does not exist": (scoped("DoesNotExist"), GOLD, False),
    "does not exist, and has none": (scoped("DoesNotExist"), claim(), True),
    "an unknown operator": (scoped("Near"), GOLD, False),
    "a priority class": (scoped("In", "urgent", scope="PriorityClass"), URGENT, True),
    "another priority class": (scoped("NotIn", "urgent", scope="PriorityClass"), URGENT, False),
    "no priority class": (quota("pods", scopes=["PriorityClass"]), pod(), False),
    "terminating": (quota("pods", scopes=["Terminating"]), ENDS, True),
    "not terminating": (quota("pods", scopes=["NotTerminating"]), ENDS, False),
    "best effort": (quota("pods", scopes=["BestEffort"]), BEST, True),
    "not best effort": (quota("pods", scopes=["NotBestEffort"]), BEST, False),
    "two scopes, one does not hold": (quota("pods", scopes=["NotTerminating", "NotBestEffort"]), BEST, False),
    "affinity to other namespaces": (quota("pods", scopes=["CrossNamespacePodAffinity"]), AFFINE, True),
    "affinity": (quota("pods", scopes=["CrossNamespacePodAffinity"]), NEAR, False),
    "a scope of pods for a Service": (quota("services", scopes=["PriorityClass"]), Service(), False),
}


@pytest.mark.parametrize(("of", "which", "covers"), COVERS.values(), ids=COVERS)
def test_scopes(of: QuotaLimits, which: object, covers: bool) -> None:
    assert of.covers(usage_of("", which)) is covers


# Whether more fits


def usages(*objects: PersistentVolumeClaim) -> list[ObjectUsage]:
    return [usage_of("persistentvolumeclaims", obj) for obj in objects]


def test_only_what_the_quota_limits_is_counted() -> None:
    limited = quota("requests.storage", "persistentvolumeclaims", "pods")
    counted = limited.compute_used("persistentvolumeclaims", usages(claim(), claim("512Mi", cls="gp3")), NOW)
    assert format_amounts(counted) == {"requests.storage": "1536Mi", "persistentvolumeclaims": "2"}
    assert quota("pods").compute_used("persistentvolumeclaims", usages(claim()), NOW) == {}
    elsewhere = quota("requests.storage", scopes=["BestEffort"])
    counted = elsewhere.compute_used("persistentvolumeclaims", usages(claim()), NOW)
    assert format_amounts(counted) == {"requests.storage": "0"}


def test_the_message_names_what_exceeds_the_quota_only() -> None:
    limited = quota("requests.storage", "persistentvolumeclaims", amount="10")
    asked = read_amounts({"requests.storage": "4", "persistentvolumeclaims": "1"})
    have = read_amounts({"requests.storage": "7", "persistentvolumeclaims": "9"})
    assert limited.describe_excess(have, asked) == (
        "exceeded quota: q, requested: requests.storage=4, used: requests.storage=7, "
        "limited: requests.storage=10"
    )
    assert limited.describe_excess(have, read_amounts({"requests.storage": "3"})) == ""


def test_an_update_uses_the_difference_and_all_of_it_when_it_enters_a_scope() -> None:
    limited = quota("requests.storage")
    old, new = usages(claim("1Gi"), claim("3Gi"))
    of = "persistentvolumeclaims"
    assert format_amounts(limited.compute_increase(of, old, new, NOW)) == {"requests.storage": "2Gi"}
    assert limited.compute_increase(of, new, old, NOW) == {}
    gold = scoped("In", "gold")
    old, new = usages(claim(), GOLD)
    assert format_amounts(gold.compute_increase(of, old, new, NOW)) == {"requests.storage": "1Gi"}


def test_an_object_that_is_being_changed_counts_with_the_greater_amounts() -> None:
    small, large = usages(claim("1Gi"), claim("3Gi"))
    for pair in ((small, large), (large, small)):
        assert format_amounts(greater_usage(*pair).amounts)["requests.storage"] == "3Gi"


def test_containers_must_name_what_is_limited() -> None:
    two = pod(container("b", requests={"cpu": "1"}), container("a", limits={"cpu": "1"}))
    assert describe_unnamed(two, ["pods", "cpu", "limits.cpu", "requests.ephemeral-storage"]) == (
        "must specify cpu for: a; limits.cpu for: b"
    )
    assert describe_unnamed(two, ["pods"]) == ""


def test_a_name_of_no_resource_limits_nothing() -> None:
    assert quota("pods", "bananas").limited == quota("pods").limited
