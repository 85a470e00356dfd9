"""Listen for Services and relay each connection to one of their endpoints.

The sockets for a Service's own address are in a network namespace to which the node's pods send packets for
all such addresses. Connections to endpoints start in the machine's network, from which all pods are reached.
An endpoint is chosen when a client connects, from what the caches show then.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import socket
from collections.abc import Iterable, Sequence
from functools import partial
from ipaddress import IPv4Address
from typing import assert_never

from msgspec import Struct

from volplane.api.core import Service
from volplane.api.discovery import EndpointSlice
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.host import Host, network
from volplane.loops.controller import Controller, RetryableError
from volplane.loops.queue import Queue
from volplane.node.network.interface import StreamPair
from volplane.node.network.relay import Relay, RelayLinks
from volplane.node.services.plan import (
    CloseListeners,
    OpenListeners,
    ServiceListener,
    ServiceView,
    Step,
    list_targets,
    plan,
)
from volplane.rules.service_endpoints import PortTarget, cluster_address, service_key

log = logging.getLogger(__name__)

CONNECT_TIMEOUTS = (0.5, 2.0, 5.0)  # seconds for one endpoint, before the next is tried
NODE_PORT_IN_USE = Backoff(5.0, 300.0)

ListenAddress = tuple[str, int]  # an address and a port
Holder = tuple[Queue[str], str]  # a Service on a node


class HeldPorts:
    """Which Service listens where. One that wants a port of another is woken when the port is free."""

    def __init__(self) -> None:
        self._holders: dict[ListenAddress, Holder] = {}
        self._waiting: dict[ListenAddress, set[Holder]] = {}

    def take(self, at: ListenAddress, holder: Holder) -> bool:
        """Whether the holder has the port now; if not, it is woken later."""
        if self._holders.setdefault(at, holder) == holder:
            return True
        self._waiting.setdefault(at, set()).add(holder)
        return False

    def release(self, at: ListenAddress, holder: Holder) -> None:
        if self._holders.get(at) == holder:
            del self._holders[at]
            for queue, key in self._waiting.pop(at, ()):
                queue.add(key)

    def leave(self, queue: Queue[str]) -> None:
        """Release what Services on this node hold, and wake none of them any more."""
        for waiting in self._waiting.values():
            waiting.difference_update([one for one in waiting if one[0] is queue])
        for at, holder in list(self._holders.items()):
            if holder[0] is queue:
                self.release(at, holder)


class ServiceProxyInputs(Struct, frozen=True):
    """What the proxy of a node needs, besides its client."""

    node: str
    node_address: str
    namespace: int  # the network namespace with the Services' addresses
    relay_links: RelayLinks
    node_ports: HeldPorts  # of all nodes of this process: nodes with one address share them


class ServiceProxyMemory:
    def __init__(self) -> None:
        self.relays: dict[str, dict[ServiceListener, Relay]] = {}  # by Service
        self.ports = HeldPorts()  # of the Services' own addresses


class ServiceProxy(Controller[str, ServiceView, Step]):
    name = "service-proxy"
    component = "kube-proxy"

    def __init__(self, client: Client, host: Host, inputs: ServiceProxyInputs) -> None:
        super().__init__(client)
        self.host, self.inputs = host, inputs

    def setup(self) -> None:
        self.memory = ServiceProxyMemory()
        self.services = self.watch(Service, self.keys_of_service)
        self.slices = self.watch(EndpointSlice, self.keys_of_slice)
        self.by_service = self.slices.index("service", service_key)

    def keys_of_service(self, old: Service | None, new: Service | None) -> Iterable[str]:
        return [one.key for one in (new or old,) if one is not None]

    def keys_of_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> Iterable[str]:
        for one in (old, new):
            if one is not None:
                yield from service_key(one)

    def view(self, key: str) -> ServiceView:
        listening = frozenset(self.memory.relays.get(key, ()))
        return ServiceView(self.services.at(key), self.by_service[key], listening, self.inputs.node)

    def plan(self, view: ServiceView) -> Iterable[Step]:
        return plan(view)

    async def act(self, key: str, view: ServiceView, step: Step) -> None:
        match step:
            case OpenListeners(listeners):
                await self._open(key, listeners)
            case CloseListeners(listeners):
                await self._close_relays(key, listeners)
            case _:
                assert_never(step)

    async def _open(self, key: str, listeners: Sequence[ServiceListener]) -> None:
        taken = [one for one in listeners if self._take(key, one)]
        of_cluster = [one for one in taken if one.address]
        endpoints = [(IPv4Address(one.address), one.port) for one in of_cluster]
        opened: list[socket.socket | OSError] = []
        if endpoints:
            opened = await self.host.call(network.listen_on_all, self.inputs.namespace, endpoints)
        failed: list[str] = []
        for one, listening in zip(of_cluster, opened, strict=True):
            if isinstance(listening, OSError):
                self._release(key, one)
                failed.append(f"cannot listen on {one.address}:{one.port}: {listening.strerror}")
            else:
                await self._relay(key, one, listening)
        on_node = [one for one in taken if not one.address]
        failed += filter(None, [await self._open_node_port(key, one) for one in on_node])
        if failed:
            raise RetryableError("; ".join(failed), backoff=NODE_PORT_IN_USE)

    async def _open_node_port(self, key: str, one: ServiceListener) -> str:
        """Why the port is not open; "" if it is."""
        address = self.inputs.node_address
        try:
            listening = await self.host.call(socket.create_server, (address, one.port))
        except OSError as error:  # another program has it
            self._release(key, one)
            return f"cannot listen on node port {address}:{one.port}: {error.strerror}"
        await self._relay(key, one, listening)
        return ""

    def _take(self, key: str, one: ServiceListener) -> bool:
        """Whether it may listen; if another Service does, or another node for this one, it is woken later."""
        ports, at = self._ports_for(one)
        return ports.take(at, (self.queue, key))

    def _release(self, key: str, one: ServiceListener) -> None:
        ports, at = self._ports_for(one)
        ports.release(at, (self.queue, key))

    def _ports_for(self, one: ServiceListener) -> tuple[HeldPorts, ListenAddress]:
        if one.address:
            return self.memory.ports, (one.address, one.port)
        return self.inputs.node_ports, (self.inputs.node_address, one.port)

    async def _relay(self, key: str, one: ServiceListener, listening: socket.socket) -> None:
        dial = partial(self._dial, key, one)
        relay = Relay(listening, dial, self.inputs.relay_links)
        self.memory.relays.setdefault(key, {})[one] = relay
        await relay.start()

    async def _close_relays(self, key: str, listeners: Iterable[ServiceListener]) -> None:
        relays = self.memory.relays.get(key, {})
        for one in listeners:
            try:
                await relays.pop(one).close()
            finally:
                self._release(key, one)
        if not relays:
            self.memory.relays.pop(key, None)

    async def close(self) -> None:
        """Stop listening, after the controller has ended."""
        for key, relays in list(self.memory.relays.items()):
            await self._close_relays(key, list(relays))
        self.inputs.node_ports.leave(self.queue)

    # --- connections

    async def _dial(self, key: str, one: ServiceListener, client: str) -> StreamPair:
        targets = self._choose_order(key, one, client)
        # A client that stays with its endpoint leaves it only if it does not answer at all.
        stays = _keeps_clients(self.services.at(key))
        for patience in CONNECT_TIMEOUTS[-1:] if stays else CONNECT_TIMEOUTS:
            for target in list(targets):
                try:
                    async with asyncio.timeout(patience):
                        return await asyncio.open_connection(target.address, target.port)
                except TimeoutError:
                    pass
                except OSError:
                    targets.remove(target)
        raise ConnectionRefusedError(f"no endpoint of Service {key} accepts a connection")

    def _choose_order(self, key: str, one: ServiceListener, client: str) -> list[PortTarget]:
        """The endpoints in the order in which they are tried."""
        service = self.services.at(key)
        if service is None:
            return []
        external = one.address != cluster_address(service)
        targets = [
            target
            for port in service.spec.ports
            if port.port == one.service_port
            for target in list_targets(
                service, port, self.by_service[key], self.inputs.node, external=external
            )
        ]
        if _keeps_clients(service):
            # Each client prefers the endpoint with the highest digest, which stays when others come and go.
            return sorted(targets, key=lambda target: _digest(client, target), reverse=True)
        random.shuffle(targets)
        return targets


def _keeps_clients(service: Service | None) -> bool:
    return service is not None and service.spec.session_affinity == "ClientIP"


def _digest(client: str, target: PortTarget) -> bytes:
    return hashlib.sha256(f"{client} {target.address}:{target.port}".encode()).digest()
