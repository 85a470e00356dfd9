"""Pod sandboxes: the runtime makes them with the pod's network, by CNI; the node finds them by their labels.

A sandbox's name contains the pod's uid and an attempt, so that a repeated creation cannot make a second one.
A sandbox that has stopped is replaced by one with the next attempt. It is stopped before the pod's volumes
are unmounted: a start of a container that the runtime has not finished cannot run a command afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import IPv4Address

import msgspec
from msgspec import Struct

from volplane.api.core import Container, Pod
from volplane.api.errors import APIError, NotFound
from volplane.api.noderuntime import RuntimeClass
from volplane.base.tasks import KeyedTasks, TaskSet, ignore_error
from volplane.client.client import Client
from volplane.host import Host, NodePaths, network
from volplane.loops.events import EventRecorder
from volplane.node.containers.base import ContainerError
from volplane.node.containers.cri import cgroups, labels, v1
from volplane.node.containers.cri.client import CriClient, CriError, NotFoundInRuntime, insist
from volplane.node.containers.cri.runtime_info import RuntimeInfo
from volplane.node.containers.cri.sandbox_config import SandboxInputs, make_sandbox_config
from volplane.node.containers.cri.streaming import forward_port
from volplane.node.network.interface import NetworkAttachment, PodNetworkError, StreamPair
from volplane.node.network.pod_endpoints import list_pod_endpoints, metadata_endpoint
from volplane.node.network.relay import Relay, RelayLinks
from volplane.node.network.resolv_conf import ClusterDns, read_resolv_conf
from volplane.node.options import NodeOptions
from volplane.node.services import LinkedServices

log = logging.getLogger(__name__)

SWEEP_INTERVAL = 60.0  # seconds, as the kubelet's container garbage collection


class Sandbox(Struct, frozen=True):
    """A sandbox that was ready when it was last looked at."""

    id: str
    address: str
    namespace: str  # the path of its network namespace; "" if it is the machine's
    config: v1.PodSandboxConfig
    handler: str = ""  # the OCI runtime; "" is the default one


class PodSandboxes:
    """The sandboxes of one node."""

    unavailable_reason = ""

    def __init__(
        self,
        cri: CriClient,
        info: RuntimeInfo,
        settings: NodeOptions,
        host: Host,
        paths: NodePaths,
        client: Client,
        events: EventRecorder,
        *,
        is_builtin: Callable[[Container], bool],
        hostname: Callable[[Pod], str],
        relay_links: RelayLinks | None = None,
        services: LinkedServices | None = None,
    ) -> None:
        self._cri, self._info, self._settings = cri, info, settings
        self._host, self._paths, self._client, self._events = host, paths, client, events
        self._is_builtin, self._hostname = is_builtin, hostname
        self._relay_links = relay_links if relay_links is not None else set()
        self._services = services
        self._ready: dict[str, Sandbox] = {}  # by pod
        self._known: set[str] = set()  # pods that may have sandboxes in the runtime
        self._has_found_earlier = False  # the known pods include those of an earlier process
        self._without_sandbox: set[str] = set()  # pods of built-in images
        self._endpoints = list_pod_endpoints(settings)
        if (metadata := metadata_endpoint(settings)) is not None:
            self._endpoints.append(metadata)
        self._relays: dict[str, tuple[str, list[Relay]]] = {}  # by pod: the sandbox and its relays
        self._joining: KeyedTasks[str, Sandbox] = KeyedTasks(ignore_error)
        self._forwarding = TaskSet()

    async def load(self) -> None:
        """Nothing: pods of built-in images must not wait for a runtime that is away."""

    async def list_pods(self) -> list[str]:
        await self._find_earlier()
        return list(self._known)

    async def _find_earlier(self) -> None:
        """Find the sandboxes of an earlier process, once."""
        if not self._has_found_earlier:
            found = await insist(partial(self._cri.list_sandboxes, labels.node_labels(self._paths.root)))
            self._known |= {sandbox.labels[labels.POD_UID] for sandbox in found}
            self._has_found_earlier = True

    def lacks_own_network(self, pod: Pod) -> bool:
        return False  # a sandbox is made as soon as a container needs one

    def _needs_sandbox(self, pod: Pod) -> bool:
        spec = pod.spec
        return bool(spec.ephemeral_containers) or not all(
            self._is_builtin(c) for c in (*spec.init_containers, *spec.containers)
        )

    def get(self, uid: str) -> Sandbox | None:
        return self._ready.get(uid)

    def address(self, uid: str, container: Container | None = None) -> str:
        sandbox = self._ready.get(uid)
        inside = container is not None and self._is_builtin(container)
        return sandbox.address if sandbox is not None and not inside else self._settings.node_ip

    # --- joining

    async def join(self, pod: Pod, pids: Iterable[int] = ()) -> NetworkAttachment:
        if not self._needs_sandbox(pod):
            self._without_sandbox.add(pod.uid)
            return NetworkAttachment(self._settings.node_ip)
        # It goes on if the caller is cancelled: otherwise no one would know the sandbox.
        joining = self._joining.get_or_start(pod.uid, lambda: self._ensure(pod), f"sandbox of pod {pod.key}")
        sandbox = await asyncio.shield(joining)
        return NetworkAttachment(sandbox.address, sandbox.namespace, self._cluster_dns(pod))

    def _cluster_dns(self, pod: Pod) -> ClusterDns | None:
        """None for pods in the machine's network, which has no cable to the namespace of Services."""
        if self._services is None or (pod.spec.host_network and not self._settings.cluster_dns):
            return None
        return self._services.cluster_dns

    async def _ensure(self, pod: Pod) -> Sandbox:
        try:
            sandbox = await self._find_or_run(pod)
        except CriError as error:
            raise PodNetworkError(str(error)) from error
        except OSError as error:
            raise PodNetworkError(f"network of the pod: {error}") from error
        await self._open_relays(pod, sandbox)
        if self._services is not None and sandbox.namespace.startswith("/"):
            self._services.connect_in_background(sandbox.namespace, sandbox.address, f"pod {pod.key}")
        self._ready[pod.uid] = sandbox
        return sandbox

    async def _find_or_run(self, pod: Pod) -> Sandbox:
        self._known.add(pod.uid)
        self._without_sandbox.discard(pod.uid)
        attempt = 0
        found = sorted(await self._list(pod.uid), key=lambda s: s.metadata.attempt)
        if found:
            newest = found[-1]
            config = self._config(pod, newest.metadata.attempt)
            if newest.state == v1.SANDBOX_READY and (sandbox := await self._inspect(newest.id, config, pod)):
                return sandbox
            self._events.normal(
                pod, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created."
            )
            self._ready.pop(pod.uid, None)
            for old in found:
                await self._cri.stop_sandbox(old.id)
            attempt = newest.metadata.attempt + 1
        config = self._config(pod, attempt)
        await self._host.call(os.makedirs, config.log_directory, 0o755, True)
        id = await self._cri.run_sandbox(config, await self._handler(pod))
        sandbox = await self._inspect(id, config, pod)
        if sandbox is None:
            raise PodNetworkError(f"sandbox {id} of the pod has no address")
        return sandbox

    async def _inspect(self, id: str, config: v1.PodSandboxConfig, pod: Pod) -> Sandbox | None:
        """The sandbox; None if it has stopped or has lost its network."""
        try:
            reply = await self._cri.sandbox_status(id)
        except NotFoundInRuntime:
            return None
        if reply.status.state != v1.SANDBOX_READY:
            return None
        if pod.spec.host_network:
            return Sandbox(id, self._settings.node_ip, "", config, reply.status.runtime_handler)
        if not reply.status.network.ip:
            return None
        return Sandbox(
            id,
            reply.status.network.ip,
            find_network_namespace(reply.info) or id,
            config,
            reply.status.runtime_handler,
        )

    def _config(self, pod: Pod, attempt: int) -> v1.PodSandboxConfig:
        inputs = SandboxInputs(
            self._paths.root,
            self._hostname(pod),
            self._paths.real(self._paths.log_directory(pod.namespace, pod.name, pod.uid)),
            self._info.systemd_cgroups,
            read_resolv_conf(),
            self._cluster_dns(pod),
        )
        return make_sandbox_config(pod, attempt, inputs)

    async def _handler(self, pod: Pod) -> str:
        name = pod.spec.runtime_class_name
        if not name:
            return ""
        try:
            return (await self._client.get(RuntimeClass, name)).handler
        except NotFound:
            raise PodNetworkError(f'failed to get sandbox runtime: RuntimeClass "{name}" not found') from None
        except APIError as error:
            raise PodNetworkError(f"failed to get sandbox runtime: {error}") from error

    # --- servers that listen on this machine's loopback only

    async def _open_relays(self, pod: Pod, sandbox: Sandbox) -> None:
        """Listen inside the pod's network for connections to them."""
        opened = self._relays.get(pod.uid)
        if opened is not None and opened[0] == sandbox.id:
            return
        await self._close_relays(pod.uid)
        if not sandbox.namespace.startswith("/"):
            return
        relays: list[Relay] = []
        self._relays[pod.uid] = sandbox.id, relays
        for endpoint in self._endpoints:
            try:
                listening = await self._host.call(_listen, sandbox.namespace, *endpoint.listen)
            except OSError as error:  # the pod may have opened the port while we were restarted
                log.warning("pod %s cannot reach %s: %s", pod.key, endpoint, error)
                continue
            relay = Relay(listening, endpoint.dial, self._relay_links)
            await relay.start()
            relays.append(relay)

    async def _close_relays(self, uid: str) -> None:
        _, relays = self._relays.pop(uid, ("", []))
        for relay in relays:
            await relay.close()

    async def dial(self, uid: str, port: int) -> StreamPair:
        sandbox = self._ready.get(uid)
        if sandbox is None or not sandbox.namespace:
            return await asyncio.open_connection(self._settings.node_ip, port)
        try:
            return await forward_port(self._cri, sandbox.id, port, self._forwarding)
        except ContainerError as error:
            raise ConnectionError(str(error)) from error

    # --- leaving

    async def leave(self, uid: str, *, forget: bool = True) -> None:
        """Stop the pod's sandboxes; those without containers are removed."""
        if (joining := self._joining.get(uid)) is not None:
            await asyncio.wait({joining})
        await self._close_relays(uid)
        if uid in self._without_sandbox:
            self._without_sandbox.discard(uid)
            return
        await self._find_earlier()
        if uid not in self._known:
            return
        for sandbox in await insist(partial(self._list, uid)):
            with suppress(NotFoundInRuntime):
                await insist(partial(self._cri.stop_sandbox, sandbox.id))
        self._ready.pop(uid, None)
        await self.remove_if_empty(uid)

    async def remove_if_empty(self, uid: str) -> None:
        """Remove the pod's stopped sandboxes that have no containers."""
        if uid in self._ready or uid not in self._known:
            return
        left = False
        for sandbox in await insist(partial(self._list, uid)):
            if sandbox.state == v1.SANDBOX_READY or await self._has_containers(sandbox.id):
                left = True
            else:
                with suppress(NotFoundInRuntime):
                    await insist(partial(self._cri.remove_sandbox, sandbox.id))
        if not left:
            self._known.discard(uid)
            await self._host.call(cgroups.remove_pod, uid, self._paths.root)

    async def _has_containers(self, id: str) -> bool:
        return bool(await insist(partial(self._cri.list_containers, {}, id)))

    async def _list(self, uid: str) -> list[v1.PodSandbox]:
        return await self._cri.list_sandboxes({labels.POD_UID: uid, **labels.node_labels(self._paths.root)})

    async def close(self) -> None:
        if joining := self._joining.values():
            await asyncio.wait(joining)
        if self._services is not None:
            await self._services.close()
        await self._forwarding.close()
        for uid in list(self._relays):
            await self._close_relays(uid)

    async def remove(self) -> None:
        """Remove all stopped sandboxes of this node, with their containers."""
        try:
            for sandbox in await self._cri.list_sandboxes(labels.node_labels(self._paths.root)):
                if sandbox.state != v1.SANDBOX_READY:
                    await self._remove(sandbox)
        except CriError as error:
            log.warning("sandboxes may be left in the container runtime: %s", error)
        await self._host.call(cgroups.remove_node, self._paths.root)

    async def _remove(self, sandbox: v1.PodSandbox) -> None:
        with suppress(NotFoundInRuntime):
            await self._cri.stop_sandbox(sandbox.id)
            await self._cri.remove_sandbox(sandbox.id)
        await self._host.call(cgroups.remove_pod, sandbox.labels[labels.POD_UID], self._paths.root)

    async def sweep(self, has_worker: Callable[[str], bool]) -> None:
        """Remove sandboxes of pods that are gone, now and then.

        A call that had no answer may have been carried out after its pod has left.
        """
        while True:
            await asyncio.sleep(SWEEP_INTERVAL)
            try:
                for sandbox in await self._cri.list_sandboxes(labels.node_labels(self._paths.root)):
                    uid = sandbox.labels[labels.POD_UID]
                    if uid not in self._known and not has_worker(uid):
                        log.info("removing sandbox %s: pod %s is gone", sandbox.id, uid)
                        await self._remove(sandbox)
            except CriError as error:
                log.warning("sandboxes of pods that are gone are not removed: %s", error)


def find_network_namespace(info: Mapping[str, str]) -> str:
    """The path of a sandbox's network namespace in the runtime's verbose status; "" if it does not tell."""
    try:
        spec = msgspec.json.decode(info.get("info", "{}"))["runtimeSpec"]
        namespaces = spec["linux"]["namespaces"]
        return next((n.get("path", "") for n in namespaces if n.get("type") == "network"), "")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return ""


@contextmanager
def _open(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _listen(namespace: str, host: IPv4Address, port: int) -> socket.socket:
    with _open(namespace) as descriptor:
        return network.listen_in_namespace(descriptor, host, port)
