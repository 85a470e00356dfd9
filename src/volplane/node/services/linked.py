"""Connect pods of a container runtime to the namespace of Services, each by a cable of its own.

The pod's network belongs to the runtime's CNI plugins, so nothing is known about it but the pod's address and
its namespace. There the cable is a second interface without an address, with a route for Services only.
"""

from __future__ import annotations

import logging
import os
from ipaddress import IPv4Address

from volplane.host import service_links
from volplane.host.network import Gateway
from volplane.node.network.resolv_conf import ClusterDns
from volplane.node.services.service_network import ServiceNetwork

log = logging.getLogger(__name__)

ADDRESS = IPv4Address("169.254.96.1")  # link-local: it means the other end of the cable, in every pod


class LinkedServices:
    def __init__(self, services: ServiceNetwork) -> None:
        self._services = services
        self._gateway = Gateway(services.range, ADDRESS)

    @property
    def cluster_dns(self) -> ClusterDns | None:
        return self._services.cluster_dns(ADDRESS)

    def connect_in_background(self, namespace: str, address: str, about: str) -> None:
        """Connect a pod with this address and network namespace, a path."""
        if not self._services.is_started:
            self._services.start(self._make, ADDRESS, [])
        self._services.spawn(self._connect(namespace, IPv4Address(address), about), about)

    async def _make(self) -> int:
        return await self._services.host.call(service_links.make_namespace, self._gateway)

    async def _connect(self, namespace: str, address: IPv4Address, about: str) -> None:
        try:
            await self._services.wait_opened()
            descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                await self._services.host.call(
                    service_links.link_pod, self._services.namespace, descriptor, address, self._gateway
                )
            finally:
                os.close(descriptor)
        except OSError as error:  # the pod may have ended meanwhile
            log.warning("%s reaches no Services and no DNS: %s", about, error.strerror or error)

    async def close(self) -> None:
        await self._services.close()
