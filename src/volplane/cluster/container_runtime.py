"""The container runtime of a cluster's nodes: which nodes use it, and what `volplane up` prepares."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Iterable, Mapping

from volplane.base.backoff import Backoff
from volplane.base.retry import retry
from volplane.cluster import power_loss
from volplane.cluster.data_directory import ClusterMember
from volplane.cluster.errors import NoContainerRuntime
from volplane.cluster.saved_options import SavedRuntime
from volplane.host import Host
from volplane.node.containers.cri import cni
from volplane.node.containers.cri.client import CriClient, CriError
from volplane.node.containers.cri.removal import remove_node
from volplane.node.containers.cri.runtime_info import CniDirectories, find_problem, read_cni_directories

log = logging.getLogger(__name__)

CRI, PROCESS = "cri", "process"
USUAL_SOCKETS = ("/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock")
NETWORK_POLL = Backoff(0.05, 0.5)
NETWORK_TRIES = 20
CONNECT_TIMEOUT = 0.2  # seconds


def check_kinds(kinds: Mapping[str, str], endpoint: str, nodes: Iterable[str]) -> None:
    """Check --node. Raises ValueError."""
    known = set(nodes)
    for name, kind in kinds.items():
        if kind not in (CRI, PROCESS):
            raise ValueError(f"--node {name}={kind}: must be {CRI} or {PROCESS}")
        if name not in known:
            raise ValueError(f"--node {name}={kind}: there is no such node")
        if kind == CRI and not endpoint:
            raise ValueError(f"--node {name}={kind} needs --container-runtime-endpoint")


def choose_endpoint(name: str, kinds: Mapping[str, str], endpoint: str) -> str:
    """The endpoint of a node's container runtime; "" if it runs containers as processes."""
    default = PROCESS if CRI in kinds.values() else CRI
    return endpoint if kinds.get(name, default) == CRI else ""


async def end_other_containers(
    members: Mapping[ClusterMember, str], before: SavedRuntime, host: Host
) -> None:
    """Kill the containers of nodes that run them in another way since the last start.

    `members`: the nodes with their endpoints. A killed cluster leaves its containers, and no node would find
    them.
    """
    for member, endpoint in members.items():
        old = choose_endpoint(member.name, before.nodes, before.endpoint)
        if old and old != endpoint:
            log.warning("%s does not use %s any more: ending its containers there", member.name, old)
            await remove_node(old, str(member.root))
        elif endpoint and not old:
            await host.call(power_loss.kill_containers, str(member.root / "containers"))


async def prepare_runtime(endpoint: str, host: Host) -> None:
    """Check that the runtime answers, and give it a network if it has none. Raises NoContainerRuntime."""
    cri = CriClient(endpoint)
    try:
        status = await cri.status(verbose=True)
        if _lacks_network(find_problem(status)):
            await _write_network(cri, host, read_cni_directories(status.info))
    except CriError as error:
        raise NoContainerRuntime(f"no container runtime answers at {endpoint}: {error.message}") from error
    finally:
        await cri.close()


def _lacks_network(problem: str) -> bool:
    return "NetworkReady=false" in problem


async def _write_network(cri: CriClient, host: Host, directories: CniDirectories) -> None:
    try:
        path = await host.call(cni.write_default_network, directories)
    except (cni.NoNetworkPlugins, OSError) as error:
        raise NoContainerRuntime(str(error)) from error
    if not path:
        return  # there is a configuration, which the runtime does not accept; the Node says why
    log.info("the container runtime had no network: wrote %s", path)
    await _wait_for_network(cri)


async def _wait_for_network(cri: CriClient) -> None:
    """Until the runtime has read the configuration."""
    left = NETWORK_TRIES

    async def check() -> None:
        nonlocal left
        left -= 1
        problem = find_problem(await cri.status())
        if problem and left:
            raise NoContainerRuntime(problem)

    await retry(check, on=NoContainerRuntime, backoff=NETWORK_POLL)


def find_unused_runtime() -> str:
    """The endpoint of a container runtime at one of the usual sockets; "" if none listens there."""
    return next((f"unix://{path}" for path in USUAL_SOCKETS if _listens(path)), "")


def _listens(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(CONNECT_TIMEOUT)
            probe.connect(path)
            return True
    except OSError:
        return False
