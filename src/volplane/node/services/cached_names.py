"""The names of Services, as the caches show them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from volplane.api.core import Service
from volplane.api.discovery import EndpointSlice
from volplane.client.client import Client
from volplane.node.services.dns.server import NamesUnavailable
from volplane.rules.service_endpoints import cluster_address, is_headless, service_key


class CachedNames:
    """Implements NameSource, once the caches are followed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._followed = asyncio.Event()
        self.refused = False  # the API server does not let this node read Services

    def follow(self) -> None:
        self._services, self._slices = self._client.cache(Service), self._client.cache(EndpointSlice)
        self._by_service = self._slices.index("service", service_key)
        self._by_address = self._services.index("cluster address", _own_address)
        self._by_endpoint = self._slices.index("endpoint address", _endpoint_addresses)
        self._followed.set()

    async def wait_synced(self) -> None:
        """Raises NamesUnavailable."""
        if self.refused:
            raise NamesUnavailable
        await self._followed.wait()
        await self._services.wait_synced()
        await self._slices.wait_synced()

    def find_service(self, namespace: str, name: str) -> Service | None:
        return self._services.get(name, namespace)

    def slices_of(self, service: Service) -> Sequence[EndpointSlice]:
        return self._by_service[service.key]

    def has_services(self, namespace: str) -> bool:
        return bool(self._services.names(namespace))

    def services_at(self, address: str) -> Iterable[Service]:
        return self._by_address[address]

    def headless_services_at(self, address: str) -> Iterable[Service]:
        for key in dict.fromkeys(key for one in self._by_endpoint[address] for key in service_key(one)):
            service = self._services.at(key)
            if service is not None and is_headless(service):
                yield service


def _own_address(service: Service) -> list[str]:
    address = cluster_address(service)
    return [address] if address else []


def _endpoint_addresses(one: EndpointSlice) -> list[str]:
    return [endpoint.addresses[0] for endpoint in one.endpoints if endpoint.addresses]
