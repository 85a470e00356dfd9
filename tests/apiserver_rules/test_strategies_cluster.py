"""Namespaces, nodes, secrets, config maps, leases, events."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import structs

from volplane.api import kinds
from volplane.api.coordination import Lease
from volplane.api.core import ConfigMap, Event, Namespace, Node, Secret, Service
from volplane.api.errors import Forbidden
from volplane.api.noderuntime import RuntimeClass
from volplane.api.scheduling import PriorityClass
from volplane.apiserver import strategies
from volplane.apiserver.strategy import ApiCall, RequestUser


def rules(of: type[Any]) -> Any:
    return strategies.of(kinds.of(of))


def call(of: type[Any], subresource: str = "") -> ApiCall:
    reader: Any = None
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return ApiCall("update", kinds.of(of), RequestUser("u"), reader, now, "default", "x", subresource)


def make(of: type[Any], **data: Any) -> Any:
    return rules(of).defaults(msgspec.convert({"metadata": {"name": "x"}, **data}, of))


def problems(obj: Any) -> list[str]:
    return [str(c) for c in rules(type(obj)).validate_create(call(type(obj)), obj)]


def changes(old: Any, new: Any) -> list[str]:
    return [str(c) for c in rules(type(old)).validate_update(call(type(old)), old, new)]


def test_a_namespace_is_labelled_with_its_name() -> None:
    made = rules(Namespace).prepare_create(call(Namespace), make(Namespace, spec={"finalizers": ["a/b"]}))
    assert made.metadata.labels == {"kubernetes.io/metadata.name": "x"}
    assert made.spec.finalizers == ("a/b", "kubernetes")
    assert made.status.phase == "Active"


def test_a_namespace_is_deleted_in_two_steps() -> None:
    namespace = rules(Namespace).prepare_create(call(Namespace), make(Namespace))
    marked = rules(Namespace).mark_deleted(call(Namespace), namespace)
    assert marked.status.phase == "Terminating"
    assert not rules(Namespace).is_removable(marked)
    bare = structs.replace(marked, spec=structs.replace(marked.spec, finalizers=()))
    kept = rules(Namespace).prepare_update(call(Namespace), marked, bare)
    assert kept.spec.finalizers == ("kubernetes",)
    done = rules(Namespace).prepare_update(call(Namespace, "finalize"), marked, bare)
    assert rules(Namespace).is_removable(done)


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
async def test_system_namespaces_cannot_be_deleted(name: str) -> None:
    with pytest.raises(Forbidden) as caught:
        await rules(Namespace).admit_delete(call(Namespace), make(Namespace, metadata={"name": name}))
    assert caught.value.message == f'namespaces "{name}" is forbidden: this namespace may not be deleted'


def test_nodes() -> None:
    node = make(Node, status={"capacity": {"cpu": "2"}})
    assert node.status.allocatable == {"cpu": "2"}
    assert rules(Node).prepare_create(call(Node), node).status.capacity == {"cpu": "2"}
    taint = {"key": "a", "effect": "NoSchedule"}
    assert problems(make(Node, spec={"taints": [taint]})) == []
    assert problems(make(Node, spec={"taints": [taint, taint]})) == [
        'metadata.taints[1]: Duplicate value: {"key":"a","effect":"NoSchedule"}: '
        "taints must be unique by key and effect pair"
    ]
    assert problems(make(Node, spec={"taints": [{"key": "a", "effect": "Never"}]})) == [
        'metadata.taints[0].effect: Unsupported value: "Never": '
        'supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"'
    ]
    given = make(Node, spec={"providerID": "a"})
    assert changes(given, make(Node, spec={"providerID": "b"})) == [
        'spec.providerID: Forbidden: node updates may not change providerID except from "" to valid'
    ]
    assert changes(make(Node), given) == []


def test_secrets() -> None:
    secret = make(Secret, data={"a": "YQ=="}, stringData={"a": "b", "c": "d"})
    assert (secret.data, dict(secret.string_data)) == ({"a": b"b", "c": b"d"}, {})
    assert secret.type == "Opaque"
    assert problems(make(Secret, stringData={"a/b": "x"}))[0].startswith("data[a/b]: Invalid value: ")
    assert problems(make(Secret, type="kubernetes.io/tls")) == [
        "data[tls.crt]: Required value",
        "data[tls.key]: Required value",
    ]
    assert problems(make(Secret, type="kubernetes.io/basic-auth")) == [
        "data[username]: Required value",
        "data[password]: Required value",
    ]
    assert problems(
        make(Secret, type="kubernetes.io/dockerconfigjson", stringData={".dockerconfigjson": "x"})
    )[0].startswith('data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": ')
    assert problems(make(Secret, stringData={"a": "x" * (1 << 20) + "y"})) == [
        "data: Too long: may not be more than 1048576 bytes"
    ]
    sealed = make(Secret, immutable=True, stringData={"a": "b"})
    assert changes(sealed, make(Secret, type="Other", stringData={"a": "c"})) == [
        'type: Invalid value: "Other": field is immutable',
        "immutable: Forbidden: field is immutable when `immutable` is set",
        "data: Forbidden: field is immutable when `immutable` is set",
    ]


def test_config_maps() -> None:
    assert problems(make(ConfigMap, data={"a": "1"}, binaryData={"a": "YQ=="})) == [
        'data[a]: Invalid value: "a": duplicate of key present in binaryData'
    ]
    assert problems(make(ConfigMap, data={"..a": "1"})) == [
        "data[..a]: Invalid value: \"..a\": must not start with '..'"
    ]
    sealed = make(ConfigMap, immutable=True, data={"a": "b"})
    assert changes(sealed, make(ConfigMap, immutable=True, data={"a": "c"})) == [
        "data: Forbidden: field is immutable when `immutable` is set"
    ]


def test_leases() -> None:
    assert problems(make(Lease, spec={"holderIdentity": "", "leaseDurationSeconds": 1})) == []
    assert problems(make(Lease, spec={"leaseDurationSeconds": 0, "leaseTransitions": -1})) == [
        "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
    ]
    assert problems(make(Lease, spec={"preferredHolder": "a"})) == [
        "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"
    ]


PLACES = [
    ("default", "", "", True),
    ("default", "default", "", True),
    ("a", "a", "", True),
    ("a", "b", "", False),
    ("a", "", "", False),
    ("kube-system", "", "", False),
    ("kube-system", "", "2026-01-01T00:00:00.000000Z", True),
]


@pytest.mark.parametrize(("namespace", "subject", "time", "fits"), PLACES)
def test_an_event_is_in_the_namespace_of_its_object(
    namespace: str, subject: str, time: str, fits: bool
) -> None:
    event = make(
        Event,
        metadata={"name": "x", "namespace": namespace},
        involvedObject={"namespace": subject},
        eventTime=time,
        reportingComponent="c",
        reportingInstance="i",
        action="a",
        reason="r",
    )
    expected = f'involvedObject.namespace: Invalid value: "{subject}": does not match event.namespace'
    assert problems(event) == ([] if fits else [expected])


def test_new_style_events_say_who_reports() -> None:
    event = make(
        Event, metadata={"name": "x", "namespace": "default"}, eventTime="2026-01-01T00:00:00.000000Z"
    )
    found = problems(event)
    assert "reportingComponent: Required value" in found
    assert {"reportingInstance: Required value", "action: Required value", "reason: Required value"} <= {
        *found
    }


def test_services() -> None:
    service = make(Service, spec={"ports": [{"port": 80}]})
    assert (service.spec.type, service.spec.session_affinity) == ("ClusterIP", "None")
    [port] = service.spec.ports
    assert (port.protocol, port.target_port) == ("TCP", 80)
    assert problems(service) == []
    assert problems(make(Service)) == ["spec.ports: Required value"]
    assert problems(make(Service, spec={"clusterIP": "None"})) == []
    assert problems(make(Service, spec={"ports": [{"port": 80}, {"port": 81}]})) == [
        "spec.ports[0].name: Required value",
        "spec.ports[1].name: Required value",
    ]


def test_priority_and_runtime_classes() -> None:
    usual = make(PriorityClass, value=5)
    assert usual.preemption_policy == "PreemptLowerPriority"
    assert problems(usual) == []
    assert problems(make(PriorityClass, value=2_000_000_000)) == [
        "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"
    ]
    assert changes(usual, make(PriorityClass, value=6)) == [
        "value: Forbidden: may not be changed in an update."
    ]
    assert problems(make(RuntimeClass))[0].startswith(
        'handler: Invalid value: "": a lowercase RFC 1123 label'
    )
