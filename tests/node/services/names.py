"""Services and endpoints of a small cluster, as a source of names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from volplane.api.codec import convert
from volplane.api.core import Service
from volplane.api.discovery import EndpointSlice
from volplane.rules.service_endpoints import cluster_address, is_headless

READY = {"ready": True}


def make_service(name: str, **spec: Any) -> Service:
    return convert(Service, {"metadata": {"name": name, "namespace": "shop"}, "spec": spec})


def make_slice(service: str, port: int, *endpoints: dict[str, Any], name: str = "") -> EndpointSlice:
    body = {
        "metadata": {
            "name": f"{service}-x",
            "namespace": "shop",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "endpoints": list(endpoints),
        "ports": [{"name": name, "port": port, "protocol": "TCP"}],
    }
    return convert(EndpointSlice, body)


class FixedNames:
    """Implements NameSource without an API server."""

    def __init__(self, services: Iterable[Service], slices: Iterable[EndpointSlice]) -> None:
        self.services, self.slices = list(services), list(slices)

    def find_service(self, namespace: str, name: str) -> Service | None:
        return next((s for s in self.services if (s.namespace, s.name) == (namespace, name)), None)

    def slices_of(self, service: Service) -> Sequence[EndpointSlice]:
        key = "kubernetes.io/service-name"
        return [s for s in self.slices if s.metadata.labels[key] == service.name]

    def has_services(self, namespace: str) -> bool:
        return any(s.namespace == namespace for s in self.services)

    def services_at(self, address: str) -> Iterable[Service]:
        return [s for s in self.services if cluster_address(s) == address]

    def headless_services_at(self, address: str) -> Iterable[Service]:
        for service in filter(is_headless, self.services):
            if any(e.addresses == (address,) for one in self.slices_of(service) for e in one.endpoints):
                yield service


def small_shop(databases: int = 2) -> FixedNames:
    """A Service with an address, a headless one with a pod for each number, and one elsewhere."""
    web_ports = [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "admin", "port": 81}]
    pods = [
        {"addresses": [f"10.1.0.{number + 1}"], "conditions": READY, "hostname": f"db-{number}"}
        for number in range(databases)
    ]
    late = {"addresses": ["10.1.9.9"], "conditions": {"ready": False}, "hostname": "db-late"}
    nameless = {"addresses": ["10.1.8.8"], "conditions": READY}
    return FixedNames(
        [
            make_service("web", clusterIP="10.96.0.7", ports=web_ports),
            make_service("db", clusterIP="None", ports=[{"name": "sql", "port": 5432, "protocol": "TCP"}]),
            make_service("idle", clusterIP="None", ports=[{"name": "sql", "port": 5432}]),
            make_service("elsewhere", type="ExternalName", externalName="db.example.com."),
        ],
        [
            make_slice("web", 8080, {"addresses": ["10.1.0.1"], "conditions": READY}, name="http"),
            make_slice("db", 5432, *pods, late, nameless, name="sql"),
        ],
    )
