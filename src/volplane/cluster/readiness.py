"""Wait until a cluster is ready, or report what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from volplane.api.apps import DaemonSet, Deployment, StatefulSet
from volplane.api.core import ContainerStatus, Node, Pod
from volplane.api.storage import CSINode
from volplane.client.cache import Cache
from volplane.client.client import Client
from volplane.cluster.data_directory import ClusterMember
from volplane.cluster.errors import ClusterNotReady
from volplane.drivers import ebs

PATIENCE = 60.0  # seconds after which a start counts as stuck


class WorkloadRef(Struct, frozen=True):
    kind: str
    namespace: str
    name: str


class ExpectedDriver(Struct, frozen=True):
    """A driver to wait for: the nodes it registers on, and the workload that must be available."""

    driver: str = ""
    nodes: tuple[str, ...] = ()
    workload: WorkloadRef | None = None


def expect_ebs(members: Sequence[ClusterMember]) -> ExpectedDriver:
    controller = WorkloadRef("Deployment", "kube-system", "ebs-csi-controller") if members else None
    return ExpectedDriver(ebs.NAME, tuple(m.name for m in members), controller)


async def wait_ready(
    client: Client, members: Sequence[ClusterMember], expected: Sequence[ExpectedDriver]
) -> None:
    """Wait until every node is Ready, and every driver is registered and its workload available."""
    types = (Node, CSINode, *_KINDS.values(), *((Pod,) if expected else ()))
    caches: list[Cache[Any]] = [client.cache(kind) for kind in types]
    changed = asyncio.Event()
    ends = [cache.subscribe(lambda *_: changed.set()) for cache in caches]
    try:
        async with asyncio.timeout(PATIENCE):
            for cache in caches:
                await cache.wait_synced()
            while find_missing(client, members, expected):
                changed.clear()
                await changed.wait()
    except TimeoutError as error:
        why = find_missing(client, members, expected) or "the API server does not answer"
        raise ClusterNotReady(
            f"not ready after {PATIENCE:g} s: {why}{_container_error(client, expected)}"
        ) from error
    finally:
        for end in ends:
            end()


def find_missing(client: Client, members: Sequence[ClusterMember], expected: Sequence[ExpectedDriver]) -> str:
    """The first thing that is missing; "" if nothing is."""
    for member in members:
        node = client.cache(Node).get(member.name)
        if node is None or not any(c.type == "Ready" and c.status == "True" for c in node.status.conditions):
            return f"node {member.name} is not ready"
    for one in expected:
        for name in one.nodes:
            csinode = client.cache(CSINode).get(name)
            if csinode is None or one.driver not in [d.name for d in csinode.spec.drivers]:
                return f"driver {one.driver} is not registered on {name}"
        if one.workload is not None and not _available(client, one.workload):
            return f"{one.workload.kind} {one.workload.namespace}/{one.workload.name} is not available"
    return ""


_KINDS: dict[str, type[Deployment] | type[StatefulSet] | type[DaemonSet]] = {
    "Deployment": Deployment,
    "StatefulSet": StatefulSet,
    "DaemonSet": DaemonSet,
}


def _available(client: Client, workload: WorkloadRef) -> bool:
    found = client.cache(_KINDS[workload.kind]).get(workload.name, workload.namespace)
    if isinstance(found, DaemonSet):
        status = found.status
        return 0 < status.desired_number_scheduled <= status.number_ready
    return found is not None and bool(found.status.ready_replicas)


def _container_error(client: Client, expected: Sequence[ExpectedDriver]) -> str:
    """Why the pods of a driver do not run, from the status of their containers."""
    spaces = {one.workload.namespace for one in expected if one.workload} | {"kube-system"}
    for pod in client.cache(Pod).all() if expected else ():
        if pod.namespace in spaces:
            for status in pod.status.container_statuses:
                if reason := _waiting_reason(status):
                    return f"; container {status.name} of pod {pod.key}: {reason}"
    return ""


def _waiting_reason(status: ContainerStatus) -> str:
    waiting, last = status.state.waiting, status.last_state.terminated
    if waiting is None or waiting.reason in ("", "ContainerCreating", "PodInitializing"):
        return ""
    ended = f", last exit code {last.exit_code} {last.message}".rstrip() if last else ""
    return f"{waiting.reason} {waiting.message}".strip() + ended
