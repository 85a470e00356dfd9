"""The interface of pod networks, and the types they share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import Protocol

from msgspec import Struct

from volplane.api.core import Container, Pod
from volplane.host.network import Bridge, Gateway
from volplane.node.network.resolv_conf import ClusterDns

StreamPair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class PodNetworkError(Exception):
    """The pod has no network yet; the text is shown in its events."""


class NetworkAttachment(Struct, frozen=True):
    """A pod's address and network namespace."""

    address: str
    namespace: str = ""  # a path that containers join; "": the machine's own
    dns: ClusterDns | None = None  # None: the pod has the machine's


class NetworkProvider(Protocol):
    """Gives each pod its network: `PodNetwork` makes it itself, `PodSandboxes` has a runtime make it."""

    @property
    def unavailable_reason(self) -> str:
        """Why pods share the machine's network though they should not."""
        ...

    async def load(self) -> None:
        """Find what an earlier process has left."""
        ...

    async def list_pods(self) -> list[str]:
        """The uids of pods that may have something here that must be removed."""
        ...

    def lacks_own_network(self, pod: Pod) -> bool:
        """Whether a process of the pod would be in the machine's network although it has no hostNetwork."""
        ...

    def address(self, uid: str, container: Container | None = None) -> str: ...
    async def join(self, pod: Pod, pids: Iterable[int] = ()) -> NetworkAttachment:
        """Join the pod to its network, or find it joined. Raises PodNetworkError."""
        ...

    async def leave(self, uid: str, *, forget: bool = True) -> None:
        """Leave the network, after the pod's containers have exited. `forget`: release its address."""
        ...

    async def dial(self, uid: str, port: int) -> StreamPair:
        """Connect to a port of the pod from inside its network."""
        ...

    async def close(self) -> None:
        """Release what this process holds; pods keep their networks."""
        ...

    async def remove(self) -> None:
        """Remove what is left of the node, after the last pod."""
        ...


class ServiceGateway(Protocol):
    """How the pods of a node reach Services and the cluster's DNS."""

    def gateway(self, share: IPv4Network) -> Gateway:
        """For pods with addresses in this range."""
        ...

    def cluster_dns(self, share: IPv4Network | None) -> ClusterDns | None:
        """`share`: the node's range; None if its pods share the machine's network."""
        ...

    def start_in_background(self, bridge: Bridge, share: IPv4Network) -> None:
        """Start, unless that was done before."""
        ...

    async def close(self) -> None: ...
