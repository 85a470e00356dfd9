"""Wait until a cluster is ready, or report what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from volplane.api.apps import DaemonSet, Deployment, StatefulSet
from volplane.api.core import ContainerStatus, Node, Pod
from volplane.api.selectors import LabelMatcher
from volplane.api.storage import CSINode
from volplane.client.cache import Cache
from volplane.client.client import Client
from volplane.cluster.data_directory import ClusterMember
from volplane.cluster.errors import ClusterNotReady
from volplane.drivers import ebs
from volplane.host import NodePaths

WAIT_TIMEOUT = 60.0  # seconds after which a start counts as stuck
# Seconds for which the containers of a user's driver must run: one with wrong flags ends a moment after its
# start. One that has ended before must run for longer.
STABLE, STABLE_AFTER_RESTART = 0.5, 3.0
LAST_LINES = 8  # of a container's log
FIRST_NODES, FIRST_NODES_PATIENCE = 2, 10.0  # nodes to wait for before pods are created, and seconds


class WorkloadRef(Struct, frozen=True):
    kind: str
    namespace: str
    name: str


class ExpectedDriver(Struct, frozen=True):
    """A driver to wait for: the nodes it registers on, and the workload that must be available."""

    driver: str = ""
    nodes: tuple[str, ...] = ()
    workload: WorkloadRef | None = None
    namespace: str = ""  # of a user's driver or workload: the containers of its pods must go on running


def expect_ebs(members: Sequence[ClusterMember]) -> ExpectedDriver:
    controller = WorkloadRef("Deployment", "kube-system", "ebs-csi-controller") if members else None
    return ExpectedDriver(ebs.NAME, tuple(m.name for m in members), controller)


async def wait_for_first_nodes(client: Client, members: Sequence[ClusterMember]) -> None:
    """Wait until two nodes are Ready, so that replicas which prefer different nodes get them. They may also
    run on one node: a node that does not start is reported by `wait_ready`.
    """
    nodes, changed = client.cache(Node), asyncio.Event()
    end = nodes.subscribe(lambda *_: changed.set())
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_NODES_PATIENCE):
                await nodes.wait_synced()
                while sum(_is_ready(nodes.get(m.name)) for m in members) < min(FIRST_NODES, len(members)):
                    changed.clear()
                    await changed.wait()
    finally:
        end()


def _is_ready(node: Node | None) -> bool:
    return node is not None and any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)


async def wait_ready(
    client: Client, members: Sequence[ClusterMember], expected: Sequence[ExpectedDriver]
) -> None:
    """Wait until every node is Ready, and every driver is registered and its workload available."""
    types = (Node, CSINode, *_KINDS.values(), *((Pod,) if expected else ()))
    caches: list[Cache[Any]] = [client.cache(kind) for kind in types]
    changed = asyncio.Event()
    ends = [cache.subscribe(lambda *_: changed.set()) for cache in caches]
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            for cache in caches:
                await cache.wait_synced()
            while True:
                while find_missing(client, members, expected):
                    changed.clear()
                    await changed.wait()
                if await _is_stable(client, expected):
                    return
    except TimeoutError as error:
        why = find_missing(client, members, expected) or "the API server does not answer"
        reason = await asyncio.to_thread(_container_error, client, members, expected)
        raise ClusterNotReady(f"not ready after {WAIT_TIMEOUT:g} s: {why}{reason}") from error
    finally:
        for end in ends:
            end()


def find_missing(client: Client, members: Sequence[ClusterMember], expected: Sequence[ExpectedDriver]) -> str:
    """The first thing that is missing; "" if nothing is."""
    for member in members:
        if not _is_ready(client.cache(Node).get(member.name)):
            return f"node {member.name} is not ready"
    for one in expected:
        for name in one.nodes:
            csinode = client.cache(CSINode).get(name)
            if csinode is None or one.driver not in [d.name for d in csinode.spec.drivers]:
                return f"driver {one.driver} is not registered on {name}"
        if one.workload is not None and not _available(client, one.workload):
            return f"{one.workload.kind} {one.workload.namespace}/{one.workload.name} is not available"
        for pod in _pods(client, one):
            for status in pod.status.container_statuses:
                if status.state.running is None:
                    return f"container {status.name} of pod {pod.key} does not run"
    return ""


def _pods(client: Client, one: ExpectedDriver) -> list[Pod]:
    found = client.cache(Pod).namespace(one.namespace) if one.namespace else ()
    return [pod for pod in found if not pod.is_deleting and _belongs_to(client, pod, one)]


def _belongs_to(client: Client, pod: Pod, one: ExpectedDriver) -> bool:
    """A driver has its own namespace; the workload of a manifest selects its pods."""
    if one.driver or one.workload is None:
        return True
    found = client.cache(_KINDS[one.workload.kind]).get(one.workload.name, one.workload.namespace)
    return found is not None and LabelMatcher.of(found.spec.selector).matches(pod.metadata.labels)


async def _is_stable(client: Client, expected: Sequence[ExpectedDriver]) -> bool:
    """Whether all containers go on running for a while."""
    before = _count_restarts(client, expected)
    if not any(one.namespace for one in expected):
        return True
    await asyncio.sleep(STABLE_AFTER_RESTART if any(before.values()) else STABLE)
    return _count_restarts(client, expected) == before


def _count_restarts(client: Client, expected: Sequence[ExpectedDriver]) -> dict[tuple[str, str], int]:
    """Restarts of the containers of users' drivers; one that does not run counts as one more."""
    return {
        (pod.uid, status.name): status.restart_count + (status.state.running is None)
        for one in expected
        for pod in _pods(client, one)
        for status in pod.status.container_statuses
    }


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


def _container_error(
    client: Client, members: Sequence[ClusterMember], expected: Sequence[ExpectedDriver]
) -> str:
    """Why the pods of a driver do not run: the status of a container, and the end of its output. Blocks."""
    spaces = {one.workload.namespace for one in expected if one.workload} | {"kube-system"}
    spaces |= {one.namespace for one in expected}
    for pod in client.cache(Pod).all() if expected else ():
        if pod.namespace in spaces:
            for status in pod.status.container_statuses:
                if reason := _waiting_reason(status):
                    output = _last_output(members, pod, status.name)
                    return f"; container {status.name} of pod {pod.key}: {reason}{output}"
    return ""


def _last_output(members: Sequence[ClusterMember], pod: Pod, container: str) -> str:
    """The last lines of the container's log, indented; log lines are `time stream F text`."""
    for member in members:
        paths = NodePaths(str(member.root))
        directory = Path(paths.real(paths.log_directory(pod.namespace, pod.name, pod.uid)), container)
        if files := sorted(directory.glob("*.log"), key=lambda file: file.stat().st_mtime):
            lines = files[-1].read_text(errors="replace").splitlines()[-LAST_LINES:]
            return "; its output:" + "".join(f"\n    {line.split(' ', 3)[-1]}" for line in lines)
    return ""


def _waiting_reason(status: ContainerStatus) -> str:
    waiting, last = status.state.waiting, status.last_state.terminated
    if waiting is None or waiting.reason in ("", "ContainerCreating", "PodInitializing"):
        return ""
    ended = f", last exit code {last.exit_code} {last.message}".rstrip() if last else ""
    return f"{waiting.reason} {waiting.message}".strip() + ended
