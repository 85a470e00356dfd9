"""Spans in OTLP's JSON encoding, with OpenTelemetry's semantic names.

Each component is a service. A span of several claims is exported with the first one's trace and linked to
the others; a parent in another trace (a caller's own) becomes a link, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from volplane.base.trace import Span
from volplane.base.trace_context import root_span_id

INTERNAL, SERVER, CLIENT = 1, 2, 3  # SpanKind
ERROR = 2  # StatusCode
SAMPLED = 1
SCOPE = {"name": "volplane"}
CLOUD_CLIENT = "ebs-plugin"  # calls the EC2 API
SERVERS = frozenset({"apiserver", "cloud", "driver"})
RPC_SERVICES = {"Controller": "csi.v1.Controller", "Node": "csi.v1.Node"}
_NODE_CALLS = "Node"
_KINDS = {"pvc": "persistentvolumeclaim", "pv": "persistentvolume", "va": "volumeattachment", "pod": "pod"}
_OWN = frozenset({"changes", "parent_trace", "uid"})  # attributes that become something else
_NAMES = {
    "node": "k8s.node.name",
    "container": "k8s.container.name",
    "user": "enduser.id",
    "request": "rpc.request.body",
    "reply": "rpc.response.body",
}


def encode_spans(spans: Sequence[Span], wall_offset: int, resource: Mapping[str, str]) -> bytes:
    """The body of an export request. `wall_offset`: nanoseconds to add to the times of the spans."""
    services: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        services.setdefault(span.component, []).append(_to_otlp(span, wall_offset))
    groups = [
        {
            "resource": {"attributes": list(_to_attributes({"service.name": name, **resource}))},
            "scopeSpans": [{"scope": SCOPE, "spans": found}],
        }
        for name, found in services.items()
    ]
    return msgspec.json.encode({"resourceSpans": groups})


def _to_otlp(span: Span, offset: int) -> dict[str, Any]:
    trace, end = span.traces[0], span.end + offset
    made: dict[str, Any] = {
        "traceId": trace,
        "spanId": span.id,
        "name": _name(span),
        "kind": _kind(span),
        "startTimeUnixNano": str(span.start + offset),
        "endTimeUnixNano": str(end),
        "attributes": list(_to_attributes(dict(_list_attributes(span)))),
        "flags": SAMPLED,
    }
    root, foreign = root_span_id(trace), str(span.attrs.get("parent_trace", ""))
    if span.id != root:
        made["parentSpanId"] = span.parent if span.parent and not foreign else root
    links = [(foreign, span.parent)] if foreign and span.parent else []
    links += [(other, root_span_id(other)) for other in span.traces[1:]]
    if links:
        made["links"] = [{"traceId": of, "spanId": id} for of, id in links]
    if span.error:
        made["status"] = {"code": ERROR, "message": span.error}
    if changes := list(_list_changes(span)):
        made["events"] = [{"timeUnixNano": str(end), **change} for change in changes]
    return made


def _name(span: Span) -> str:
    service = _rpc_service(span)
    return f"{service}/{span.step}" if service else span.step


def _rpc_service(span: Span) -> str:
    """The CSI service of a call; "" for other steps."""
    is_call = ("request" in span.attrs and span.component != CLOUD_CLIENT) or span.component == "driver"
    return RPC_SERVICES["Node" if span.step.startswith(_NODE_CALLS) else "Controller"] if is_call else ""


def _kind(span: Span) -> int:
    if span.component in SERVERS:
        return SERVER
    return CLIENT if "request" in span.attrs or span.component == CLOUD_CLIENT else INTERNAL


def _list_attributes(span: Span) -> Iterator[tuple[str, object]]:
    yield "volplane.step", span.step
    yield "volplane.subject", span.subject
    kind, _, name = span.subject.partition("/")
    if kind in _KINDS and name:
        namespace, _, short = name.rpartition("/")
        yield f"k8s.{_KINDS[kind]}.name", short
        if namespace:
            yield "k8s.namespace.name", namespace
        if uid := span.attrs.get("uid"):
            yield f"k8s.{_KINDS[kind]}.uid", uid
    if service := _rpc_service(span):
        yield "rpc.system", "grpc"
        yield "rpc.service", service
        yield "rpc.method", span.step
    if span.component == CLOUD_CLIENT:
        yield "rpc.system", "aws-api"
        yield "rpc.service", "EC2"
        yield "rpc.method", span.step
    if span.error:
        yield "error.type", span.error.partition(":")[0]
    for key, value in span.attrs.items():
        if key not in _OWN:
            yield _NAMES.get(key, f"volplane.{key}"), value


def _list_changes(span: Span) -> Iterator[dict[str, Any]]:
    changes: Any = span.attrs.get("changes", ())
    for field, before, after in changes:
        values = {"volplane.field": field, "volplane.before": before, "volplane.after": after}
        yield {"name": "state change", "attributes": list(_to_attributes(values))}


def _to_attributes(values: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    for key, value in values.items():
        if isinstance(value, bool):
            yield {"key": key, "value": {"boolValue": value}}
        elif isinstance(value, int):
            yield {"key": key, "value": {"intValue": str(value)}}
        else:
            yield {"key": key, "value": {"stringValue": str(value)}}


def resource_attributes(role: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The attributes of this process; OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME come last."""
    own = {
        "service.namespace": "volplane",
        "service.instance.id": f"{role}-{os.getpid()}",
        "process.pid": str(os.getpid()),
        "host.name": os.uname().nodename,
    }
    own |= dict(read_pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", "")))
    if name := environment.get("OTEL_SERVICE_NAME"):
        own["service.name"] = name
    return own


def read_pairs(text: str) -> Iterable[tuple[str, str]]:
    """`a=1,b=2` with percent-encoded values, as in the standard variables."""
    from urllib.parse import unquote

    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise ValueError(f"{pair!r} is not KEY=VALUE")
        yield key.strip(), unquote(value.strip())
