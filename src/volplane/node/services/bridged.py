"""Connect the namespace of Services to the bridge of the pods, like a pod."""

from __future__ import annotations

import os
from ipaddress import IPv4Network

from volplane.host import network
from volplane.host.network import Bridge, Gateway
from volplane.node.network import address_ranges
from volplane.node.network.resolv_conf import ClusterDns
from volplane.node.services.service_network import ServiceNetwork


class BridgedServices:
    """The ServiceGateway of a pod network that the node makes itself."""

    def __init__(self, services: ServiceNetwork) -> None:
        self._services = services

    def gateway(self, share: IPv4Network) -> Gateway:
        """How pods with addresses in this range reach Services."""
        return Gateway(self._services.range, address_ranges.service_address(share))

    def cluster_dns(self, share: IPv4Network | None) -> ClusterDns | None:
        """`share`: the node's range; None if its pods share the machine's network."""
        return self._services.cluster_dns(address_ranges.service_address(share) if share else None)

    def start_in_background(self, bridge: Bridge, share: IPv4Network) -> None:
        """Start, unless that was done before; connect it again if the bridge was removed."""
        services, gateway = self._services, self.gateway(share)
        if services.namespace >= 0 and not network.is_connected(services.namespace):
            services.spawn(self._reconnect(bridge, gateway), "bridge of services")
        if not services.is_started:
            services.start(lambda: self._join(bridge, gateway, -1), gateway.address, [bridge.range])

    async def _join(self, bridge: Bridge, gateway: Gateway, namespace: int) -> int:
        joined = await self._services.host.call(
            network.join,
            bridge,
            gateway.address,
            about=f"{bridge.owner} services",
            namespace=namespace,
            gateways=[gateway],
        )
        return joined.namespace

    async def _reconnect(self, bridge: Bridge, gateway: Gateway) -> None:
        os.close(await self._join(bridge, gateway, self._services.namespace))

    async def close(self) -> None:
        await self._services.close()
