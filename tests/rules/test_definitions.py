"""CustomResourceDefinitions as clients see them, disruption budgets, node names of volumes, durations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from volplane.api import codec
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import PersistentVolume, Pod
from volplane.api.policy import PodDisruptionBudget
from volplane.api.snapshot import VolumeSnapshotClass
from volplane.rules import cron, definitions, disruption, snapshots, topology, workloads


def definition(*, established: bool = True, served: bool = True) -> CustomResourceDefinition:
    names = {"kind": "Backup", "plural": "backups"}
    versions = [
        {"name": "v1", "served": served, "storage": True},
        {"name": "v2", "served": served, "storage": False},
    ]
    condition = {"type": "Established", "status": "True" if established else "False"}
    return codec.convert(
        CustomResourceDefinition,
        {
            "metadata": {"name": "backups.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions},
            "status": {"conditions": [condition], "acceptedNames": names},
        },
    )


def test_the_objects_of_a_definition_can_be_followed_once_it_is_established() -> None:
    assert definitions.api_versions(definition()) == ("example.com/v1", "example.com/v2")
    assert definitions.metadata_type(definition()) is not None
    assert definitions.api_versions(definition(established=False)) == ()
    assert definitions.metadata_type(definition(established=False)) is None
    assert definitions.metadata_type(definition(served=False)) is None


def budget(selector: dict[str, Any], namespace: str = "ns") -> PodDisruptionBudget:
    whole = {"metadata": {"name": "b", "namespace": namespace}, "spec": {"selector": selector}}
    return codec.convert(PodDisruptionBudget, whole)


@pytest.mark.parametrize(
    ("of", "covers"),
    [
        (budget({"matchLabels": {"app": "db"}}), True),
        (budget({"matchLabels": {"app": "web"}}), False),
        (budget({"matchLabels": {"app": "db"}}, "other"), False),
        (budget({"matchExpressions": [{"key": "app", "operator": "Near"}]}), False),
    ],
)
def test_a_budget_covers_pods_of_its_namespace_by_its_selector(of: PodDisruptionBudget, covers: bool) -> None:
    pod = codec.convert(Pod, {"metadata": {"name": "p", "namespace": "ns", "labels": {"app": "db"}}})
    assert disruption.covers(of, pod) is covers


def volume(*terms: list[dict[str, Any]]) -> PersistentVolume:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    spec: dict[str, Any] = {"nodeAffinity": {"required": required}} if terms else {}
    return codec.convert(PersistentVolume, {"metadata": {"name": "v"}, "spec": spec})


def host(*names: str) -> list[dict[str, Any]]:
    return [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)}]


@pytest.mark.parametrize(
    ("of", "names"),
    [
        (volume(), None),
        (volume(host("a")), {"a"}),
        (volume(host("a"), host("b", "c")), {"a", "b", "c"}),
        (volume(host("a"), [{"key": "zone", "operator": "Exists"}]), None),
    ],
)
def test_a_volume_may_be_tied_to_host_names(of: PersistentVolume, names: set[str] | None) -> None:
    assert topology.required_hostnames(of) == names


def test_an_unknown_operator_selects_nothing() -> None:
    unknown = volume([{"key": "zone", "operator": "Near", "values": ["a"]}])
    assert not topology.is_reachable_from(unknown, {"zone": "a"})


def test_a_ready_pod_without_a_transition_time_is_never_available() -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    pod = codec.convert(Pod, {"metadata": {"name": "p"}, "status": status})
    assert workloads.available_in(pod, 10, datetime.now(UTC)) == float("inf")


@pytest.mark.parametrize("schedule", ["@every x", "@every 0s", "@every 1"])
def test_an_interval_without_a_duration_is_refused(schedule: str) -> None:
    with pytest.raises(cron.InvalidSchedule, match="failed to parse duration"):
        cron.parse(schedule)


def test_the_default_snapshot_class_of_a_driver() -> None:
    whole = {
        "metadata": {"name": "c", "annotations": {snapshots.IS_DEFAULT: "true"}},
        "driver": "d",
        "deletionPolicy": "Delete",
    }
    cls = codec.convert(VolumeSnapshotClass, whole)
    assert snapshots.defaults([cls], "d") == [cls]
    assert snapshots.defaults([cls], "other") == []
