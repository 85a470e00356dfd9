"""The network of each pod: namespace, address, and relays in and out of it.

The namespace is held by a descriptor of this process and by the pod's processes, so the kernel removes it
when all of them have ended. Only the address is stored, with the pod's other files and before it is used.
After a restart, a pod whose containers still run is found by their namespace, and a pod that is started again
gets its old address. The bridge connects pods with each other and with this machine. All other connections
are relayed: to the API server on the pod's loopback, and from host ports.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network

import msgspec
from msgspec import Struct

from volplane.api.core import Container, ContainerPort, Pod
from volplane.base import failpoint
from volplane.base.files import atomic_write
from volplane.base.tasks import KeyedTasks, ignore_error
from volplane.host import Host, NodePaths, network
from volplane.host.network import Bridge, Gateway, JoinedNamespace, RangeInUse
from volplane.node import instance_metadata
from volplane.node.network import address_ranges
from volplane.node.network.interface import NetworkAttachment, PodNetworkError, ServiceGateway, StreamPair
from volplane.node.network.pod_endpoints import list_pod_endpoints
from volplane.node.network.relay import Dial, Relay, RelayLinks
from volplane.node.network.resolv_conf import ClusterDns
from volplane.node.options import BRIDGE, NodeOptions

log = logging.getLogger(__name__)

RECORD_FILE = "network.json"
CLUSTER_DNS_ON_HOST = "ClusterFirstWithHostNet"
METADATA = "instance metadata"  # owner of the address of its namespace, in place of a pod's uid
# Errors of a machine that does not support such networks, or does not permit them.
_UNSUPPORTED_ERRNOS = (
    errno.EPERM,
    errno.EACCES,
    errno.EROFS,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EINVAL,
    errno.ENODEV,
)


class AddressRecord(Struct, frozen=True):
    address: str


# Made here, on the importing thread: msgspec crashes when several threads meet a type for the first time.
_record = msgspec.json.Decoder(AddressRecord)


class _HeldNamespace:
    def __init__(self, namespace: int, address: IPv4Address) -> None:
        self.namespace, self.address = namespace, address
        self.relays: list[Relay] = []

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.namespace}"


def bridge_name(directory: str) -> str:
    """The name of the bridge of a cluster, or of a single node, with this directory."""
    return f"vp-{hashlib.sha256(os.path.realpath(directory).encode()).hexdigest()[:10]}"


class PodNetwork:
    def __init__(
        self,
        settings: NodeOptions,
        host: Host,
        paths: NodePaths,
        *,
        is_builtin: Callable[[Container], bool],
        on_range_chosen: Callable[[str], Awaitable[None]] | None = None,
        relay_links: RelayLinks | None = None,
        services: ServiceGateway | None = None,
    ) -> None:
        """`is_builtin`: containers that run inside this process, and so in the machine's network.
        `on_range_chosen`: called with the range that the node has chosen itself. `relay_links`: the relayed
        connections of all nodes in this process. `services`: how pods reach Services.
        """
        self._settings, self._host, self._paths, self._is_builtin = settings, host, paths, is_builtin
        self.unavailable_reason = ""  # why pods share the machine's network though they should not
        self._on_range_chosen, self._services = on_range_chosen, services
        self._relay_links = relay_links if relay_links is not None else set()
        self._endpoints = list_pod_endpoints(settings)
        self._bridge: Bridge | None = None
        self._metadata_gateway: Gateway | None = None
        self._node_range: IPv4Network | None = None
        self._preparing = asyncio.Lock()
        # The last number that was assigned in the node's range; the start is arbitrary.
        self._last = os.getpid() % address_ranges.SERVICES
        self._addresses: dict[str, IPv4Address] = {}  # by pod
        self._held: dict[str, _HeldNamespace] = {}
        self._joining: KeyedTasks[str, _HeldNamespace | None] = KeyedTasks(ignore_error)
        self._in_host_network: set[str] = set()  # pods whose containers were started in the machine's network

    async def load(self) -> None:
        """Read the addresses of an earlier process that are in the node's current range."""
        found = await self._host.call(_read_records, self._paths.real(self._paths.pods))
        share = IPv4Network(self._settings.pod_cidr) if self._settings.pod_cidr else None
        self._addresses = {uid: address for uid, address in found.items() if not share or address in share}

    async def list_pods(self) -> list[str]:
        return []  # all that is left of a pod is in its directory

    def has_own_network(self, pod: Pod) -> bool:
        """Whether the pod has a network of its own."""
        if self._settings.pod_network != BRIDGE or self.unavailable_reason or pod.spec.host_network:
            return False
        if pod.uid in self._in_host_network:
            return False
        return not self._is_all_builtin(pod)

    def lacks_own_network(self, pod: Pod) -> bool:
        """Whether a process of the pod would be in the machine's network although it has no hostNetwork.

        A pod of built-in images only has no network of its own; an ephemeral container may be added to it.
        """
        needs_network = (
            self._settings.pod_network == BRIDGE and not self.unavailable_reason and not pod.spec.host_network
        )
        return needs_network and pod.uid not in self._in_host_network and self._is_all_builtin(pod)

    def _is_all_builtin(self, pod: Pod) -> bool:
        return all(self._is_builtin(c) for c in (*pod.spec.init_containers, *pod.spec.containers))

    def address(self, uid: str, container: Container | None = None) -> str:
        """The address of a container of the pod; built-in ones are in this process."""
        known = self._addresses.get(uid)
        inside = container is not None and self._is_builtin(container)
        return self._settings.node_ip if known is None or inside else str(known)

    # --- joining and leaving

    async def join(self, pod: Pod, pids: Iterable[int] = ()) -> NetworkAttachment:
        """Join the pod to its network. `pids`: its processes that run already. Raises PodNetworkError."""
        if not self.has_own_network(pod):
            return await self._join_machine(pod)
        held = self._held.get(pod.uid)
        if held is None:
            # The join goes on if the caller is cancelled: otherwise its namespace would belong to no pod.
            held = await asyncio.shield(
                self._joining.get_or_start(
                    pod.uid, lambda: self._join(pod, list(pids)), f"network of pod {pod.key}"
                )
            )
        if held is None:
            return await self._join_machine(pod)
        return NetworkAttachment(str(held.address), held.path, self._cluster_dns())

    async def _join_machine(self, pod: Pod) -> NetworkAttachment:
        """A pod in the machine's network reaches the cluster's DNS, if it asks for it."""
        if pod.spec.dns_policy == CLUSTER_DNS_ON_HOST and self._settings.pod_network == BRIDGE:
            with suppress(OSError, RangeInUse):
                self._start_services(await self._get_bridge())
        return NetworkAttachment(self._settings.node_ip, dns=self._cluster_dns())

    def _cluster_dns(self) -> ClusterDns | None:
        return self._services.cluster_dns(self._node_range) if self._services is not None else None

    def _start_services(self, bridge: Bridge) -> None:
        if self._services is not None and self._node_range is not None:
            self._services.start_in_background(bridge, self._node_range)

    async def _join(self, pod: Pod, pids: list[int]) -> _HeldNamespace | None:
        """None if the pod is in the machine's network after all."""
        try:
            bridge = await self._get_bridge()
            address = self._addresses.get(pod.uid) or self._allocate_address(pod.uid)
            joined = await self._host.call(self._build, pod, bridge, pids, address)
        except RangeInUse as error:
            raise PodNetworkError(str(error)) from error
        except OSError as error:
            if error.errno in _UNSUPPORTED_ERRNOS and not self._held:
                self.unavailable_reason = (
                    f"this machine does not support pod networks ({error.strerror or error})"
                )
                log.warning("%s: pods share the machine's network", self.unavailable_reason)
                self._addresses.pop(pod.uid, None)
                return None
            raise PodNetworkError(f"network of the pod: {error}") from error
        if joined is None:
            self._in_host_network.add(pod.uid)
            self._addresses.pop(pod.uid, None)
            return None
        held = _HeldNamespace(joined.namespace, address)
        try:
            await self._open_relays(pod, held, joined.listening)
        except BaseException:
            await _release(held)
            raise
        self._held[pod.uid] = held
        self._start_services(bridge)
        return held

    def _build(
        self, pod: Pod, bridge: Bridge, pids: list[int], address: IPv4Address
    ) -> JoinedNamespace | None:
        namespace = _namespace_of(pids)
        if namespace is None:
            return None
        try:
            _write_record(self._record(pod.uid), address)
            with failpoint.around("pod:network"):
                return network.join(
                    bridge,
                    address,
                    about=f"{bridge.owner} pod {pod.key}",
                    namespace=namespace,
                    listen=[endpoint.listen for endpoint in self._endpoints],
                    gateways=self._list_gateways(),
                )
        finally:
            if namespace >= 0:
                os.close(namespace)

    def _list_gateways(self) -> list[Gateway]:
        """Of the Services, and of instance metadata."""
        found = [self._metadata_gateway]
        if self._services is not None and self._node_range is not None:
            found.append(self._services.gateway(self._node_range))
        return [gateway for gateway in found if gateway is not None]

    def _allocate_address(self, uid: str) -> IPv4Address:
        assert self._node_range is not None
        found = address_ranges.next_free(self._node_range, set(self._addresses.values()), self._last)
        if found is None:
            raise PodNetworkError(f"no addresses available in range {self._node_range}")
        self._addresses[uid], self._last = found
        return found[0]

    async def leave(self, uid: str, *, forget: bool = True) -> None:
        """Leave the network, after the pod's containers have exited. `forget`: release its address."""
        if (joining := self._joining.get(uid)) is not None:
            await asyncio.wait({joining})
        if (held := self._held.pop(uid, None)) is not None:
            await _release(held)
        self._in_host_network.discard(uid)
        if forget and self._addresses.pop(uid, None) is not None:
            await self._host.call(_remove_record, self._record(uid))

    async def close(self) -> None:
        """Release all namespaces; processes in them keep them."""
        if joining := self._joining.values():
            await asyncio.wait(joining)
        if self._services is not None:
            await self._services.close()
        while self._held:
            await _release(self._held.popitem()[1])

    async def remove(self) -> None:
        """Remove the bridge, after the last pod, unless it belongs to the whole cluster."""
        if self._settings.pod_network == BRIDGE and not self._settings.pod_bridge:
            await self._host.call(network.remove_bridge, bridge_name(self._paths.root))

    def _record(self, uid: str) -> str:
        return self._paths.real(f"{self._paths.pod(uid)}/{RECORD_FILE}")

    # --- the node's range

    async def _get_bridge(self) -> Bridge:
        async with self._preparing:
            if self._bridge is None:
                self._bridge = await self._choose_bridge()
                if self._settings.instance_metadata_port:
                    try:
                        await self._offer_metadata(self._bridge)
                    except (OSError, PodNetworkError) as error:
                        log.warning("pods cannot reach %s: %s", METADATA, error)
            return self._bridge

    async def _offer_metadata(self, bridge: Bridge) -> None:
        """Listen for requests for instance metadata, in a namespace to which all pods send them.

        Not in the pods themselves: their own servers may listen on port 80 of all addresses.
        """
        address = self._allocate_address(METADATA)
        there = IPv4Address(instance_metadata.ADDRESS)
        about = f"{bridge.owner} {METADATA}"
        joined = await self._host.call(
            network.join, bridge, address, about=about, listen=[(there, instance_metadata.PORT)]
        )
        held = self._held[METADATA] = _HeldNamespace(joined.namespace, address)
        (listening,) = joined.listening
        if isinstance(listening, OSError):
            raise listening
        port = self._settings.instance_metadata_port
        await self._relay(held, listening, lambda _: asyncio.open_connection("127.0.0.1", port))
        self._metadata_gateway = Gateway(IPv4Network(there), address)

    async def _choose_bridge(self) -> Bridge:
        """The configured range, or any that is free on this machine."""
        settings = self._settings
        name = settings.pod_bridge or bridge_name(self._paths.root)
        if settings.pod_cidr:
            self._node_range = IPv4Network(settings.pod_cidr)
            whole = IPv4Network(settings.cluster_cidr or settings.pod_cidr)
            return await self._ensure_bridge(Bridge(name, whole, self._paths.root))
        known = next(iter(self._addresses.values()), None)  # an address of pods that may still run
        used = await self._host.call(network.list_used_ranges, name)
        for whole in address_ranges.candidates(address_ranges.prefix_for(1), self._paths.root):
            if (known is None or known in whole) and network.first_free([whole], used):
                with suppress(RangeInUse):  # used since we checked
                    bridge = await self._ensure_bridge(Bridge(name, whole, self._paths.root))
                    self._node_range = address_ranges.node_range(whole, 1)
                    if self._on_range_chosen is not None:
                        await self._on_range_chosen(str(self._node_range))
                    return bridge
        raise RangeInUse(f"this machine uses all of {address_ranges.SPACE}")

    async def _ensure_bridge(self, bridge: Bridge) -> Bridge:
        await self._host.call(network.ensure_bridge, bridge)
        return bridge

    # --- relays

    async def _open_relays(
        self, pod: Pod, held: _HeldNamespace, listening: Sequence[socket.socket | OSError]
    ) -> None:
        for endpoint, opened in zip(self._endpoints, listening, strict=True):
            if isinstance(opened, OSError):  # the pod may have opened the port while we were restarted
                log.warning("pod %s cannot reach %s: %s", pod.key, endpoint, opened)
            else:
                await self._relay(held, opened, endpoint.dial)
        for container in pod.spec.containers:
            for offered in container.ports:
                if offered.host_port:
                    await self._open_host_port(offered, held)

    async def _open_host_port(self, port: ContainerPort, held: _HeldNamespace) -> None:
        """Listen on a host port: on its hostIP, else on the node's address."""
        if (port.protocol or "TCP") != "TCP":
            raise PodNetworkError(f"hostPort {port.host_port}: only TCP is supported, not {port.protocol}")
        anywhere = port.host_ip in ("", "0.0.0.0")
        endpoint = (self._settings.node_ip if anywhere else port.host_ip, port.host_port)
        try:
            listening = await self._host.call(socket.create_server, endpoint)
        except OSError as error:
            raise PodNetworkError(
                f"hostPort {port.host_port} of {endpoint[0]}: {error.strerror or error}"
            ) from error
        inside = port.container_port
        await self._relay(held, listening, lambda _: asyncio.open_connection(str(held.address), inside))

    async def _relay(self, held: _HeldNamespace, listening: socket.socket, dial: Dial) -> None:
        relay = Relay(listening, dial, self._relay_links)
        held.relays.append(relay)
        await relay.start()

    async def dial(self, uid: str, port: int) -> StreamPair:
        """Connect to a port of the pod from inside its network."""
        if (held := self._held.get(uid)) is None:
            return await asyncio.open_connection(self._settings.node_ip, port)
        dialling = await self._host.call(network.open_socket_in_namespace, held.namespace)
        try:
            await asyncio.get_running_loop().sock_connect(dialling, ("127.0.0.1", port))
            return await asyncio.open_connection(sock=dialling)
        except BaseException:
            dialling.close()
            raise


async def _release(held: _HeldNamespace) -> None:
    for relay in held.relays:
        await relay.close()
    os.close(held.namespace)


def _namespace_of(pids: list[int]) -> int | None:
    """The namespace of the processes; -1 if none runs any more, None if it is the machine's own."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            found = network.open_namespace(pid)
            return None if found < 0 else found
    return -1


def _read_records(directory: str) -> dict[str, IPv4Address]:
    found = {}
    for uid in os.listdir(directory):
        with suppress(OSError, ValueError), open(f"{directory}/{uid}/{RECORD_FILE}", "rb") as file:
            found[uid] = IPv4Address(_record.decode(file.read()).address)
    return found


def forget_addresses(directory: str) -> None:
    """Remove the stored addresses of all pods below the directory."""
    with suppress(FileNotFoundError):
        for uid in os.listdir(directory):
            with suppress(NotADirectoryError):
                _remove_record(f"{directory}/{uid}/{RECORD_FILE}")


def _write_record(path: str, address: IPv4Address) -> None:
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        atomic_write(path, msgspec.json.encode(AddressRecord(str(address))))


def _remove_record(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
