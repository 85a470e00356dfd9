"""Which endpoints of a Service get its traffic, and under which names they are found.

Endpoints that are ready; if there is none, those that still serve while their pods end. A Service without an
address of its own (headless) has only the names of its endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address

from msgspec import Struct

from volplane.api.core import Service, ServicePort
from volplane.api.discovery import Endpoint, EndpointSlice

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
HEADLESS = "None"
TCP = "TCP"


class PortTarget(Struct, frozen=True):
    """Where connections to a port of a Service may go."""

    address: str
    port: int


def service_key(one: EndpointSlice) -> list[str]:
    """The key of a slice's Service, to index slices by."""
    service = one.metadata.labels.get(SERVICE_NAME_LABEL, "")
    return [f"{one.namespace}/{service}"] if service else []


def cluster_address(service: Service) -> str:
    """The Service's own IPv4 address; "" if it has none."""
    given = service.spec.cluster_ip
    if service.spec.type == "ExternalName" or given in ("", HEADLESS) or ":" in given:
        return ""
    return given


def is_headless(service: Service) -> bool:
    return service.spec.type != "ExternalName" and service.spec.cluster_ip == HEADLESS


def list_ready(slices: Iterable[EndpointSlice]) -> list[Endpoint]:
    """Ready endpoints with IPv4 addresses."""
    return [e for one in _of_ipv4(slices) for e in one.endpoints if _is_ready(e)]


def find_targets(port: ServicePort, slices: Iterable[EndpointSlice], *, node: str = "") -> list[PortTarget]:
    """`node`: only endpoints on this node."""
    ready: list[PortTarget] = []
    ending: list[PortTarget] = []
    for one in _of_ipv4(slices):
        for number in _numbers(one, port):
            for endpoint in one.endpoints:
                chosen = ready if _is_ready(endpoint) else ending if endpoint.conditions.serving else None
                if chosen is not None and node in ("", endpoint.node_name):
                    chosen += (PortTarget(address, number) for address in endpoint.addresses[:1])
    return ready or ending


def endpoint_hostname(endpoint: Endpoint) -> str:
    """The name of an endpoint below that of its Service: its pod's hostname, or its address with dashes."""
    return endpoint.hostname or endpoint.addresses[0].replace(".", "-")


def parse_dashed(label: str) -> str:
    """The address that a label such as `10-1-2-3` stands for; "" if it stands for none."""
    address = label.replace("-", ".")
    try:
        return str(IPv4Address(address)) if "." not in label else ""
    except ValueError:
        return ""


def _of_ipv4(slices: Iterable[EndpointSlice]) -> Iterator[EndpointSlice]:
    return (one for one in slices if one.address_type == "IPv4")


def _is_ready(endpoint: Endpoint) -> bool:
    """Unknown counts as ready."""
    return endpoint.conditions.ready is not False and bool(endpoint.addresses)


def _numbers(one: EndpointSlice, port: ServicePort) -> Iterator[int]:
    for offered in one.ports:
        same = (offered.name or "", offered.protocol or TCP) == (port.name, port.protocol or TCP)
        if same and offered.port:
            yield offered.port
