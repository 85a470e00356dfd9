"""Spans in OTLP's JSON encoding."""

from __future__ import annotations

import json
from typing import Any

import pytest

from volplane.base.otlp import CLIENT, INTERNAL, SERVER, encode_spans, read_pairs, resource_attributes
from volplane.base.trace import Span
from volplane.base.trace_context import root_span_id

A, B = "a" * 32, "b" * 32
ID, PARENT = "1" * 16, "2" * 16


def encode(span: Span, **resource: str) -> dict[str, Any]:
    (group,) = json.loads(encode_spans([span], 1_000, resource))["resourceSpans"]
    (scope,) = group["scopeSpans"]
    (made,) = scope["spans"]
    return {**made, "resource": read(group["resource"])}


def read(of: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: next(iter(each["value"].values())) for each in of["attributes"]}


def span(component: str = "kubelet", step: str = "NodeStageVolume", **fields: Any) -> Span:
    given = {"subject": "pod/default/web", "start": 5, "end": 9, "traces": (A,), "id": ID, "parent": PARENT}
    return Span(component, step, **{**given, **fields})


def test_a_span_has_its_trace_parent_times_and_service() -> None:
    made = encode(span())
    assert (made["traceId"], made["spanId"], made["parentSpanId"]) == (A, ID, PARENT)
    assert (made["startTimeUnixNano"], made["endTimeUnixNano"]) == ("1005", "1009")
    assert made["resource"]["service.name"] == "kubelet"


def test_a_span_without_parent_belongs_to_the_creation_of_the_claim() -> None:
    assert encode(span(parent=""))["parentSpanId"] == root_span_id(A)
    assert "parentSpanId" not in encode(span(id=root_span_id(A), parent=""))


def test_a_parent_in_another_trace_is_a_link() -> None:
    made = encode(span(attrs={"parent_trace": B}))
    assert made["parentSpanId"] == root_span_id(A)
    assert made["links"] == [{"traceId": B, "spanId": PARENT}]


def test_a_span_of_two_claims_is_linked_to_the_second() -> None:
    assert encode(span(traces=(A, B)))["links"] == [{"traceId": B, "spanId": root_span_id(B)}]


@pytest.mark.parametrize(
    ("made", "kind", "name"),
    [
        (span(attrs={"request": "{}"}), CLIENT, "csi.v1.Node/NodeStageVolume"),
        (span("driver", "CreateVolume"), SERVER, "csi.v1.Controller/CreateVolume"),
        (span("ebs-plugin", "AttachVolume"), CLIENT, "AttachVolume"),
        (span("ebs-plugin", "AttachVolume", attrs={"request": "{}"}), CLIENT, "AttachVolume"),
        (span("cloud", "AttachVolume"), SERVER, "AttachVolume"),
        (span("apiserver", "create"), SERVER, "create"),
        (span("default-scheduler", "bind"), INTERNAL, "bind"),
    ],
)
def test_kind_and_name(made: Span, kind: int, name: str) -> None:
    found = encode(made)
    assert (found["kind"], found["name"]) == (kind, name)


def test_calls_to_the_cloud_have_the_names_of_its_api() -> None:
    found = read(encode(span("ebs-plugin", "AttachVolume", attrs={"request": "{}"})))
    assert (found["rpc.system"], found["rpc.service"], found["rpc.method"]) == (
        "aws-api",
        "EC2",
        "AttachVolume",
    )


def test_attributes_have_semantic_names() -> None:
    found = read(
        encode(span(attrs={"node": "worker-1", "request": "{}", "number": 3, "flag": True, "uid": "u"}))
    )
    assert found == {
        "volplane.step": "NodeStageVolume",
        "volplane.subject": "pod/default/web",
        "k8s.pod.name": "web",
        "k8s.pod.uid": "u",
        "k8s.namespace.name": "default",
        "rpc.system": "grpc",
        "rpc.service": "csi.v1.Node",
        "rpc.method": "NodeStageVolume",
        "k8s.node.name": "worker-1",
        "rpc.request.body": "{}",
        "volplane.number": "3",
        "volplane.flag": True,
    }


def test_an_error_is_a_status_and_a_change_is_an_event() -> None:
    made = encode(span(error="CallError: busy", attrs={"changes": [["status.phase", "Pending", "Bound"]]}))
    assert made["status"] == {"code": 2, "message": "CallError: busy"}
    assert read(made)["error.type"] == "CallError"
    (event,) = made["events"]
    assert read(event) == {
        "volplane.field": "status.phase",
        "volplane.before": "Pending",
        "volplane.after": "Bound",
    }


def test_the_standard_variables_of_the_resource() -> None:
    found = resource_attributes(
        "up", {"OTEL_RESOURCE_ATTRIBUTES": "a=1,b=x%20y", "OTEL_SERVICE_NAME": "mine"}
    )
    assert (found["a"], found["b"], found["service.name"]) == ("1", "x y", "mine")
    assert encode(span(), **found)["resource"]["service.name"] == "mine"


def test_pairs_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="'novalue' is not KEY=VALUE"):
        list(read_pairs("a=1,novalue"))
