"""Servers of this machine's loopback that pods reach at the same address of their own.

The API server and the disk service listen on the machine's loopback only. The node listens inside each pod's
network on the same address and port, and forwards connections.
"""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address

from msgspec import Struct

from volplane.node.network.interface import StreamPair
from volplane.node.options import NodeOptions


class PodEndpoint(Struct, frozen=True):
    server: str  # for messages
    address: IPv4Address
    port: int

    @property
    def listen(self) -> tuple[IPv4Address, int]:
        return self.address, self.port

    async def dial(self, client: str) -> StreamPair:
        return await asyncio.open_connection(str(self.address), self.port)

    def __str__(self) -> str:
        return f"{self.server} at {self.address}:{self.port}"


def list_pod_endpoints(settings: NodeOptions) -> list[PodEndpoint]:
    found = []
    if settings.cluster_port and (host := _parse_address(settings.cluster_host)):
        found.append(PodEndpoint("the API server", host, settings.cluster_port))
    if settings.disk_service_port:
        found.append(PodEndpoint("the disk service", IPv4Address("127.0.0.1"), settings.disk_service_port))
    return found


def metadata_endpoint(settings: NodeOptions) -> PodEndpoint | None:
    """The instance metadata of the node, for pods that do not find it at its usual address."""
    if not settings.instance_metadata_port:
        return None
    return PodEndpoint("instance metadata", IPv4Address("127.0.0.1"), settings.instance_metadata_port)


def _parse_address(host: str) -> IPv4Address | None:
    try:
        return IPv4Address(host)
    except ValueError:
        return None  # there is none, or it is a name, which may resolve to anything inside
