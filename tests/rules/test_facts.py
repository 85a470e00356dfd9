"""Small rules: classes, access, topology, taints, resources, pods, custom kinds, budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest

from volplane.api import codec
from volplane.api.annotations import BETA_DEFAULT_CLASS_ANNOTATION, BETA_STORAGE_CLASS_ANNOTATION
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import (
    Node,
    NodeSelector,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Taint,
    Toleration,
)
from volplane.api.core import TopologySelectorTerm as Term
from volplane.api.policy import PodDisruptionBudget
from volplane.api.storage import StorageClass
from volplane.rules import (
    access,
    binding,
    classes,
    definitions,
    disruption,
    pods,
    resources,
    taints,
    topology,
    workloads,
)


def storage_class(name: str, made: str = "2026-01-01T00:00:00Z", **annotations: str) -> StorageClass:
    notes = {f"storageclass.{k}.io/is-default-class": v for k, v in annotations.items()}
    metadata = {"name": name, "creationTimestamp": made, "annotations": notes}
    return codec.convert(StorageClass, {"metadata": metadata, "provisioner": "p"})


@pytest.mark.parametrize(
    ("listed", "name"),
    [
        pytest.param([storage_class("a")], None, id="none is marked"),
        pytest.param([storage_class("a", kubernetes="false")], None, id="marked false"),
        pytest.param([storage_class("a", kubernetes="true")], "a", id="marked"),
        pytest.param(
            [
                storage_class("a", kubernetes="true"),
                storage_class("b", "2026-01-02T00:00:00Z", kubernetes="true"),
            ],
            "b",
            id="newest",
        ),
        pytest.param(
            [storage_class("b", kubernetes="true"), storage_class("a", kubernetes="true")],
            "a",
            id="then by name",
        ),
    ],
)
def test_the_default_class(listed: list[StorageClass], name: str | None) -> None:
    found = classes.default(listed)
    assert (found.name if found else None) == name


def test_the_beta_annotation_marks_a_default_too() -> None:
    metadata = {"name": "a", "annotations": {BETA_DEFAULT_CLASS_ANNOTATION: "true"}}
    assert classes.is_default(codec.convert(StorageClass, {"metadata": metadata}))


def test_in_tree_names_stand_for_drivers() -> None:
    assert classes.driver_name("kubernetes.io/aws-ebs") == "ebs.csi.aws.com"
    assert classes.is_external("kubernetes.io/aws-ebs")
    assert classes.is_external("ebs.csi.aws.com")
    assert not classes.is_external("kubernetes.io/no-provisioner")


@pytest.mark.parametrize(
    ("modes", "shareable"),
    [
        ([], True),
        (["ReadWriteOnce"], False),
        (["ReadWriteOncePod"], False),
        (["ReadWriteOnce", "ReadWriteOncePod"], False),
        (["ReadWriteOnce", "ReadOnlyMany"], True),
        (["ReadWriteMany"], True),
    ],
)
def test_who_may_be_attached_twice(modes: list[str], shareable: bool) -> None:
    volume = codec.convert(PersistentVolume, {"spec": {"accessModes": modes}})
    assert access.is_shareable(volume) is shareable


def test_a_beta_annotation_overrules_the_class() -> None:
    metadata = {"annotations": {BETA_STORAGE_CLASS_ANNOTATION: "old"}}
    claim = codec.convert(PersistentVolumeClaim, {"metadata": metadata, "spec": {"storageClassName": "new"}})
    assert binding.claim_class(claim) == "old"
    assert binding.claim_class(PersistentVolumeClaim()) is None


LABELS = {"zone": "a", "disks": "5"}


@pytest.mark.parametrize(
    ("terms", "met"),
    [
        pytest.param([], False, id="no term"),
        pytest.param([{}], False, id="an empty term"),
        pytest.param(
            [{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}], True, id="terms are ORed"
        ),
        pytest.param(
            [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}], True, id="In"
        ),
        pytest.param(
            [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}], False, id="NotIn"
        ),
        pytest.param(
            [{"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["a"]}]}],
            True,
            id="NotIn on absent",
        ),
        pytest.param(
            [{"matchExpressions": [{"key": "rack", "operator": "DoesNotExist"}]}], True, id="DoesNotExist"
        ),
        pytest.param(
            [{"matchExpressions": [{"key": "disks", "operator": "Gt", "values": ["4"]}]}], True, id="Gt"
        ),
        pytest.param(
            [{"matchExpressions": [{"key": "disks", "operator": "Lt", "values": ["4"]}]}], False, id="Lt"
        ),
        pytest.param(
            [{"matchExpressions": [{"key": "zone", "operator": "Gt", "values": ["4"]}]}],
            False,
            id="Gt on text",
        ),
        pytest.param(
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}],
            True,
            id="by name",
        ),
        pytest.param(
            [
                {
                    "matchExpressions": [{"key": "zone", "operator": "Exists"}],
                    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}],
                }
            ],
            False,
            id="inside a term all must hold",
        ),
    ],
)
def test_node_selectors(terms: list[dict[str, Any]], met: bool) -> None:
    selector = codec.convert(NodeSelector, {"nodeSelectorTerms": terms})
    assert topology.selects(selector, LABELS, "n1") is met


def test_allowed_topologies() -> None:
    here = codec.convert(Term, {"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]})
    there = codec.convert(Term, {"matchLabelExpressions": [{"key": "zone", "values": ["c"]}]})
    assert topology.allows_node([], LABELS)
    assert topology.allows_node([there, here], LABELS)
    assert not topology.allows_node([there], LABELS)
    assert not topology.allows_node([Term()], LABELS)


TAINT = Taint(key="disk", value="slow", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        pytest.param(Toleration(), False, id="says nothing"),
        pytest.param(Toleration(operator="Exists"), True, id="everything"),
        pytest.param(Toleration(key="disk", operator="Exists"), True, id="the key"),
        pytest.param(Toleration(key="disk", value="slow"), True, id="Equal is the default"),
        pytest.param(Toleration(key="disk", value="fast"), False, id="another value"),
        pytest.param(
            Toleration(key="disk", operator="Exists", effect="NoExecute"), False, id="another effect"
        ),
        pytest.param(Toleration(key="node", operator="Exists"), False, id="another key"),
    ],
)
def test_tolerations(toleration: Toleration, tolerated: bool) -> None:
    assert (taints.find_untolerated_taint((TAINT,), (toleration,)) is None) is tolerated


def test_a_preference_against_a_node_refuses_nothing() -> None:
    assert taints.find_untolerated_taint((Taint(key="x", effect="PreferNoSchedule"),), ()) is None


@pytest.mark.parametrize("effect", ["NoExecute", "NoSchedule", ""])
def test_out_of_service_counts_with_any_effect(effect: str) -> None:
    node = codec.convert(Node, {"spec": {"taints": [{"key": taints.OUT_OF_SERVICE, "effect": effect}]}})
    assert taints.is_out_of_service(node)
    assert not taints.is_out_of_service(None)


def pod(**spec: Any) -> Pod:
    return codec.convert(Pod, {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": spec})


def container(cpu: str = "0", **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("of", "cpu"),
    [
        pytest.param(pod(containers=[container("250m")]), 250, id="one"),
        pytest.param(pod(containers=[container("0")]), 0, id="zero is left out"),
        pytest.param(pod(containers=[container("250m"), container("1")]), 1250, id="sum"),
        pytest.param(
            pod(containers=[container("250m")], initContainers=[container("2"), container("1")]),
            2000,
            id="an init container's peak",
        ),
        pytest.param(
            pod(containers=[container("1")], initContainers=[container("500m", restartPolicy="Always")]),
            1500,
            id="a sidecar stays",
        ),
        pytest.param(
            pod(
                containers=[container("1")],
                initContainers=[container("500m", restartPolicy="Always"), container("2")],
            ),
            2500,
            id="a sidecar runs beside later init containers",
        ),
        pytest.param(pod(containers=[container("1")], overhead={"cpu": "100m"}), 1100, id="overhead"),
        pytest.param(
            pod(containers=[container("1")], resources={"requests": {"cpu": "3"}}),
            3000,
            id="for the whole pod",
        ),
    ],
)
def test_requests(of: Pod, cpu: int) -> None:
    assert resources.requests(of).get("cpu", 0) == cpu


def limited(memory: str = "", **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": {"memory": memory} if memory else {}}, **more}


@pytest.mark.parametrize(
    ("of", "memory"),
    [
        pytest.param(pod(containers=[limited("1k"), limited("2k")]), 3000, id="sum"),
        pytest.param(pod(containers=[limited("1k"), limited()]), 0, id="one has none"),
        pytest.param(
            pod(containers=[limited("1k")], initContainers=[limited()]), 0, id="an init container has none"
        ),
        pytest.param(
            pod(containers=[limited("1k")], initContainers=[limited("1k", restartPolicy="Always")]),
            2000,
            id="a sidecar stays",
        ),
        pytest.param(
            pod(containers=[limited()], resources={"limits": {"memory": "5k"}}), 5000, id="for the whole pod"
        ),
        pytest.param(
            pod(containers=[limited("1k")], resources={"limits": {"cpu": "1"}}), 1000, id="another limit"
        ),
        pytest.param(pod(containers=[limited("1k")], overhead={"memory": "1k"}), 2000, id="overhead"),
    ],
)
def test_the_memory_limit_of_a_pod(of: Pod, memory: int) -> None:
    assert resources.memory_limit(of) == memory


def test_the_claims_of_a_pod() -> None:
    using = pod(
        volumes=[
            {"name": "a", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
            {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
            {"name": "c", "emptyDir": {}},
        ]
    )
    assert list(pods.claim_uses(using)) == [
        pods.PodClaimUse("a", "data", read_only=True),
        pods.PodClaimUse("b", "p-b", ephemeral=True),
    ]
    assert pods.claim_keys(using) == ["default/data", "default/p-b"]


def status_of(deleting: bool, **status: Any) -> Pod:
    metadata = {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {"name": "p"}
    return codec.convert(Pod, {"metadata": metadata, "status": status})


RUNS = [{"name": "c", "state": {"running": {}}}]
STOPPED = [{"name": "c", "state": {"terminated": {"exitCode": 0}}}]


@pytest.mark.parametrize(
    ("of", "gone"),
    [
        pytest.param(status_of(False, phase="Running"), False, id="running"),
        pytest.param(status_of(False, phase="Failed", containerStatuses=RUNS), True, id="failed"),
        pytest.param(status_of(True, containerStatuses=RUNS), False, id="going, a container runs"),
        pytest.param(
            status_of(True, containerStatuses=STOPPED, initContainerStatuses=RUNS), False, id="init runs"
        ),
        pytest.param(status_of(True, containerStatuses=STOPPED), True, id="going, stopped"),
        pytest.param(status_of(True), True, id="going, never started"),
        pytest.param(status_of(True, containerStatuses=[{"name": "c"}]), True, id="going, waiting"),
        pytest.param(status_of(False, containerStatuses=STOPPED), False, id="not deleted"),
    ],
)
def test_when_a_pod_has_let_go_of_its_volumes(of: Pod, gone: bool) -> None:
    assert pods.has_released_volumes(of) is gone


def test_an_operator_that_the_api_does_not_know_matches_nothing() -> None:
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Near"}]}]}
    assert not topology.selects(codec.convert(NodeSelector, selector), {"zone": "a"})


def definition(*, established: bool = True, served: bool = True) -> CustomResourceDefinition:
    condition = {"type": "Established", "status": "True" if established else "False"}
    version = {"name": "v1", "served": served, "storage": True}
    whole = {
        "spec": {"group": "example.com", "versions": [version], "scope": "Namespaced"},
        "status": {"conditions": [condition], "acceptedNames": {"kind": "Widget", "plural": "widgets"}},
    }
    return codec.convert(CustomResourceDefinition, whole)


def test_a_custom_kind_is_known_when_it_is_established_and_served() -> None:
    assert definitions.api_versions(definition()) == ("example.com/v1",)
    assert definitions.metadata_type(definition()) is not None
    assert definitions.api_versions(definition(established=False)) == ()
    assert definitions.metadata_type(definition(established=False)) is None
    assert definitions.metadata_type(definition(served=False)) is None


def budget(namespace: str = "default", **selector: Any) -> PodDisruptionBudget:
    whole = {"metadata": {"name": "b", "namespace": namespace}, "spec": {"selector": selector}}
    return codec.convert(PodDisruptionBudget, whole)


def test_a_budget_covers_pods_of_its_namespace_that_its_selector_matches() -> None:
    web = codec.convert(Pod, {"metadata": {"name": "p", "namespace": "default", "labels": {"app": "web"}}})
    assert disruption.covers(budget(matchLabels={"app": "web"}), web)
    assert not disruption.covers(budget(matchLabels={"app": "db"}), web)
    assert not disruption.covers(budget("other", matchLabels={"app": "web"}), web)
    assert not disruption.covers(budget(matchExpressions=[{"key": "app", "operator": "Near"}]), web)


def test_a_ready_pod_without_a_time_is_not_available_yet() -> None:
    ready = codec.convert(Pod, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    assert workloads.available_in(ready, 10, datetime(2026, 1, 1, tzinfo=UTC)) == inf
