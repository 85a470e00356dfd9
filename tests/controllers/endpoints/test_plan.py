"""Which addresses and ports a Service has, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import Pod, Service
from volplane.controllers.endpoints.plan import CreateEndpoints, plan_slices

HTTP = {"name": "http", "port": 80, "protocol": "TCP"}
NAMED = [{"name": "dns", "containerPort": 53, "protocol": "UDP"}, {"name": "web", "containerPort": 8080}]


def service(**port: Any) -> Service:
    meta = {"name": "web", "namespace": "default", "uid": "u-1"}
    spec = {"selector": {"app": "web"}, "ports": [{**HTTP, **port}]}
    return codec.convert(Service, {"metadata": meta, "spec": spec})


def pod(*ports: dict[str, Any], ip: str = "10.0.0.1", phase: str = "Running") -> Pod:
    containers = [{"name": "first"}, {"name": "second", "ports": [{"protocol": "TCP", **p} for p in ports]}]
    meta = {"name": "web-0", "namespace": "default", "labels": {"app": "web"}}
    status = {"phase": phase, "podIP": ip}
    return codec.convert(Pod, {"metadata": meta, "spec": {"containers": containers}, "status": status})


@pytest.mark.parametrize(
    ("port", "pods", "addresses", "ports"),
    [
        pytest.param({}, (), [], [], id="no pod"),
        pytest.param({}, (pod(ip=""),), [], [], id="a pod without an address"),
        pytest.param({}, (pod(phase="Succeeded"),), [], [], id="a pod that has ended"),
        pytest.param({}, (pod(),), ["10.0.0.1"], [80], id="the port itself"),
        pytest.param({"targetPort": 8080}, (pod(),), ["10.0.0.1"], [8080], id="a number"),
        pytest.param({"targetPort": "web"}, (pod(*NAMED),), ["10.0.0.1"], [8080], id="a name"),
        pytest.param({"targetPort": "dns"}, (pod(*NAMED),), ["10.0.0.1"], [], id="another protocol"),
        pytest.param({"targetPort": "metrics"}, (pod(*NAMED),), ["10.0.0.1"], [], id="a name of no port"),
    ],
)
def test_a_slice_has_the_ports_that_its_pods_have(
    port: dict[str, Any], pods: tuple[Pod, ...], addresses: list[str], ports: list[int]
) -> None:
    (step,) = plan_slices(service(**port), pods, ())
    assert isinstance(step, CreateEndpoints)
    made = codec.to_dict(step.object)
    assert [each["addresses"][0] for each in made.get("endpoints") or ()] == addresses
    assert [each["port"] for each in made.get("ports") or ()] == ports
