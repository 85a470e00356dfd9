"""Where a node listens for a Service: at each TCP port that has endpoints, on its address and node port.

A port without endpoints is closed, so that a connection is refused, as by other implementations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from volplane.api.core import Service, ServicePort
from volplane.api.discovery import EndpointSlice
from volplane.rules.service_endpoints import TCP, PortTarget, cluster_address, find_targets

LOCAL = "Local"


class ServiceListener(Struct, frozen=True):
    address: str  # "": the node's own
    port: int
    service_port: int


class ServiceView(Struct, frozen=True):
    service: Service | None
    slices: Sequence[EndpointSlice]
    listening: frozenset[ServiceListener]
    node: str


class OpenListeners(Struct, frozen=True):
    listeners: tuple[ServiceListener, ...]


class CloseListeners(Struct, frozen=True):
    listeners: tuple[ServiceListener, ...]


Step = OpenListeners | CloseListeners


def plan(view: ServiceView) -> Iterator[Step]:
    wanted = frozenset(_listeners(view)) if view.service is not None else frozenset()
    if left := view.listening - wanted:
        yield CloseListeners(tuple(sorted(left, key=_order)))
    if missing := wanted - view.listening:
        yield OpenListeners(tuple(sorted(missing, key=_order)))


def _order(one: ServiceListener) -> tuple[str, int]:
    return one.address, one.port


def _listeners(view: ServiceView) -> Iterator[ServiceListener]:
    service = view.service
    assert service is not None
    address = cluster_address(service)
    for port in service.spec.ports:
        if not address or (port.protocol or TCP) != TCP:
            continue
        if list_targets(service, port, view.slices, view.node, external=False):
            yield ServiceListener(address, port.port, port.port)
        if port.node_port and list_targets(service, port, view.slices, view.node, external=True):
            yield ServiceListener("", port.node_port, port.port)


def list_targets(
    service: Service, port: ServicePort, slices: Sequence[EndpointSlice], node: str, *, external: bool
) -> list[PortTarget]:
    """Where connections may go: with the traffic policy Local, only to endpoints on this node."""
    spec = service.spec
    policy = spec.external_traffic_policy if external else spec.internal_traffic_policy
    return find_targets(port, slices, node=node if policy == LOCAL else "")
