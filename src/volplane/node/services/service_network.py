"""The network namespace in which a node answers for Services and for the cluster's names.

All addresses of the Services' range are its own, so that this process can listen on each of them, without any
change to the machine's network, and beside other clusters with the same range. It is made in the background
with the node's first pod, and ends with the process. How pods are connected to it depends on their network:
see `bridged.py` and `linked.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from volplane.api.core import Service
from volplane.api.discovery import EndpointSlice
from volplane.api.errors import APIError, Forbidden
from volplane.base.tasks import TaskSet
from volplane.client.client import Client
from volplane.host import Host, network
from volplane.node.network.relay import RelayLinks
from volplane.node.network.resolv_conf import ClusterDns
from volplane.node.options import NodeOptions
from volplane.node.services.cached_names import CachedNames
from volplane.node.services.controller import HeldPorts, ServiceProxy, ServiceProxyInputs
from volplane.node.services.dns.forwarder import Forwarder
from volplane.node.services.dns.records import DnsZone
from volplane.node.services.dns.server import PORT, DnsServer

log = logging.getLogger(__name__)

RETRY_INTERVAL = 60.0  # seconds between looks whether the node may read Services by now


class ServiceShares:
    """What the nodes of one process share."""

    def __init__(self, relay_links: RelayLinks) -> None:
        self.relay_links = relay_links
        self.node_ports = HeldPorts()


class ServiceNetwork:
    def __init__(
        self, settings: NodeOptions, node: str, client: Client, host: Host, shares: ServiceShares
    ) -> None:
        self.range = IPv4Network(settings.service_cluster_ip_range)
        self.host, self.node = host, node
        self.namespace = -1  # a descriptor, once it is open
        self._settings, self._client, self._shares = settings, client, shares
        self._tasks = TaskSet()
        self._opening: asyncio.Task[None] | None = None
        self._dns: DnsServer | None = None
        self._names = CachedNames(client)

    def cluster_dns(self, own: IPv4Address | None) -> ClusterDns | None:
        """`own`: the address of this namespace; None if there is none for the pod."""
        domain = self._settings.cluster_domain
        if self._settings.cluster_dns:
            return ClusterDns(self._settings.cluster_dns, domain, replaces_machine=False)
        return ClusterDns((str(own),), domain) if own is not None else None

    @property
    def is_started(self) -> bool:
        return self._opening is not None

    def start(
        self,
        make: Callable[[], Coroutine[Any, Any, int]],
        address: IPv4Address,
        own_ranges: Sequence[IPv4Network],
    ) -> None:
        """Start in the background.

        `make`: make the namespace, with this address. `own_ranges`: of addresses that only this server knows.
        """
        zone = DnsZone(self._settings.cluster_domain, (self.range, *own_ranges))
        self._opening = asyncio.create_task(
            self._open(make, address, zone), name=f"{self.node}: namespace of services"
        )
        self.spawn(self._run(self._opening), "services")

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.start(work, f"{self.node}: {name}")

    async def wait_opened(self) -> None:
        """Raises OSError if the namespace could not be made."""
        assert self._opening is not None
        await asyncio.shield(self._opening)

    async def _run(self, opening: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(opening)
        except OSError as error:
            log.warning("pods of %s reach no Services and no DNS: %s", self.node, error.strerror or error)
            return
        await self._run_proxy()

    async def _open(
        self, make: Callable[[], Coroutine[Any, Any, int]], address: IPv4Address, zone: DnsZone
    ) -> None:
        self.namespace = await make()
        if self._settings.cluster_dns:
            return
        datagrams = await self.host.call(network.open_datagram_socket, self.namespace, address, PORT)
        (streams,) = await self.host.call(network.listen_on_all, self.namespace, [(address, PORT)])
        if isinstance(streams, OSError):
            datagrams.close()
            raise streams
        self._dns = DnsServer(zone, self._names, Forwarder(), self._names.wait_synced)
        await self._dns.start(datagrams, streams)

    async def _run_proxy(self) -> None:
        while not await self._may_read():  # noqa: ASYNC110  (permissions cannot be watched)
            await asyncio.sleep(RETRY_INTERVAL)
        shares, settings = self._shares, self._settings
        inputs = ServiceProxyInputs(
            self.node, settings.node_ip, self.namespace, shares.relay_links, shares.node_ports
        )
        self._names.follow()
        proxy = ServiceProxy(self._client, self.host, inputs)
        try:
            await proxy.run()
        finally:
            await proxy.close()

    async def _may_read(self) -> bool:
        """Whether the API server lets this node read Services; it logs what is missing, once."""
        try:
            await self._client.list_page(Service, limit=1)
            await self._client.list_page(EndpointSlice, limit=1)
        except Forbidden as error:
            if not self._names.refused:
                log.warning("pods of %s reach no Services and find no names of them: %s", self.node, error)
            self._names.refused = True
            return False
        except (APIError, TimeoutError):
            pass  # the caches try again
        self._names.refused = False
        return True

    async def close(self) -> None:
        if self._opening is not None:  # never cancelled: its namespace would never be closed
            await asyncio.wait({self._opening})
        await self._tasks.close()
        if self._dns is not None:
            await self._dns.close()
        if self.namespace >= 0:
            os.close(self.namespace)
            self.namespace = -1
