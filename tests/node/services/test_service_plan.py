"""Where a node listens for a Service."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.services.names import READY, make_service, make_slice
from volplane.api.core import Service
from volplane.node.services.plan import CloseListeners, OpenListeners, ServiceListener, ServiceView, plan

HTTP = {"name": "http", "port": 80, "protocol": "TCP"}
HERE = {"addresses": ["10.1.0.1"], "conditions": READY, "nodeName": "here"}
THERE = {"addresses": ["10.1.0.2"], "conditions": READY, "nodeName": "there"}
OF_CLUSTER, OF_NODE = ServiceListener("10.96.0.7", 80, 80), ServiceListener("", 30080, 80)


def web(**spec: Any) -> Service:
    return make_service("web", **{"clusterIP": "10.96.0.7", "ports": [HTTP], **spec})


def web_with_node_port(**spec: Any) -> Service:
    return web(type="NodePort", ports=[{**HTTP, "nodePort": 30080}], **spec)


@pytest.mark.parametrize(
    ("service", "endpoints", "expected"),
    [
        (web(), (HERE, THERE), {OF_CLUSTER}),
        (web(), (), set()),
        (web_with_node_port(), (THERE,), {OF_CLUSTER, OF_NODE}),
        (web_with_node_port(externalTrafficPolicy="Local"), (THERE,), {OF_CLUSTER}),
        (web_with_node_port(externalTrafficPolicy="Local"), (HERE,), {OF_CLUSTER, OF_NODE}),
        (web(internalTrafficPolicy="Local"), (THERE,), set()),
        (web(internalTrafficPolicy="Local"), (HERE,), {OF_CLUSTER}),
        (web(clusterIP="None"), (HERE,), set()),
        (web(type="ExternalName", clusterIP=""), (HERE,), set()),
        (web(ports=[{**HTTP, "protocol": "UDP"}]), (HERE,), set()),
        (None, (HERE,), set()),
    ],
)
def test_listeners_of_a_service(
    service: Service | None, endpoints: tuple[dict[str, Any], ...], expected: set[ServiceListener]
) -> None:
    slices = [make_slice("web", 8080, *endpoints, name="http")]
    missing = tuple(sorted(expected, key=lambda one: (one.address, one.port)))
    steps = list(plan(ServiceView(service, slices, frozenset(), "here")))
    assert steps == ([OpenListeners(missing)] if expected else [])
    assert list(plan(ServiceView(service, slices, frozenset(expected), "here"))) == []


def test_what_is_no_longer_wanted_is_closed_first() -> None:
    slices = [make_slice("web", 8080, HERE, name="http")]
    old = ServiceListener("10.96.0.7", 8080, 8080)
    steps = list(plan(ServiceView(web(), slices, frozenset({old}), "here")))
    assert steps == [CloseListeners((old,)), OpenListeners((OF_CLUSTER,))]
