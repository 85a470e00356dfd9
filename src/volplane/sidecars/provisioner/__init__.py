"""csi-provisioner: creates volumes for claims, deletes released volumes. Run it with `run(client, settings)`.

With `--node-deployment` one runs beside the driver on every node and handles the volumes of its node;
otherwise one is elected leader for the cluster.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable

from volplane.api.names import sanitize_driver
from volplane.base import clock
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import Caller
from volplane.loops.controller import Unsupported
from volplane.loops.events import EventRecorder
from volplane.loops.wait_reports import WaitRegistry
from volplane.sidecars.base import STARTUP_CALL_TIMEOUT, DriverClient, run_sidecar
from volplane.sidecars.provisioner.controller import (
    COMPONENT,
    CapacityPublisher,
    ClaimProvisioner,
    NodeClaimRace,
    ReleasedVolumeDeleter,
    SourceProtection,
    find_owner,
    wait_for_snapshot_crd,
)
from volplane.sidecars.provisioner.settings import ProvisionerOptions

__all__ = ["ProvisionerOptions", "run"]


async def run(
    client: Client,
    settings: ProvisionerOptions,
    *,
    caller: Caller | None = None,
    interceptor: CallInterceptor | None = None,
    identity: str = "",
    namespace: str = "default",
    node: str = "",
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Run until cancelled.

    `identity` (the pod's name) and `namespace` are for leader election and for the owner of capacities,
    `node` is for --node-deployment.
    """
    pod_name = identity or socket.gethostname()
    node_name = (node or os.environ.get("NODE_NAME", "")) if settings.node_deployment else ""
    if settings.node_deployment and not node_name:
        raise Unsupported("--node-deployment needs the name of its node: NODE_NAME is not set")

    registry = wait_registry or WaitRegistry()

    async def work(driver: DriverClient) -> None:
        if settings.enable_capacity and "GET_CAPACITY" not in driver.controller:
            raise Unsupported(
                f"--enable-capacity needs the capability GET_CAPACITY, which {driver.name} does not have"
            )
        node_race = await _join_node_race(client, driver, settings, node_name) if node_name else None
        millis = int(clock.wall().timestamp() * 1000)
        provisioner_identity = f"{millis}-{random.randrange(10_000)}-{driver.name}" + (
            f"-{node_name}" if node_name else ""
        )
        async with EventRecorder(client, f"{driver.name}_{pod_name}") as events, asyncio.TaskGroup() as group:
            on_capacity_change = await _start_capacity_publisher(
                client, driver, settings, events, node_race, group, registry, pod_name, namespace
            )
            claims = ClaimProvisioner(
                client,
                driver,
                settings,
                events=events,
                identity=provisioner_identity,
                node_race=node_race,
                on_capacity_change=on_capacity_change,
            )
            group.create_task(registry.run(claims))
            volumes = ReleasedVolumeDeleter(
                client,
                driver,
                settings,
                events=events,
                node_race=node_race,
                on_capacity_change=on_capacity_change,
            )
            group.create_task(registry.run(volumes))
            if "CREATE_DELETE_SNAPSHOT" in driver.controller:
                group.create_task(_watch_snapshots(client, claims))
            if driver.controller & {"CREATE_DELETE_SNAPSHOT", "CLONE_VOLUME"}:
                group.create_task(registry.run(SourceProtection(client, driver, settings, events=events)))

    await run_sidecar(
        client,
        settings,
        COMPONENT,
        lambda driver: sanitize_driver(driver.name),
        work,
        caller=caller,
        interceptor=interceptor,
        identity=pod_name,
        namespace=namespace,
    )


async def _watch_snapshots(client: Client, claims: ClaimProvisioner) -> None:
    """Watch snapshots once their CRDs are installed, which may be later than we start."""
    await wait_for_snapshot_crd(client)
    await claims.watch_snapshots()


async def _join_node_race(
    client: Client, driver: DriverClient, settings: ProvisionerOptions, node: str
) -> NodeClaimRace:
    info = await driver.call("NodeGetInfo", v1.NodeGetInfoRequest(), timeout=STARTUP_CALL_TIMEOUT)
    return NodeClaimRace(client, driver, settings, node, dict(info.accessible_topology.segments))


async def _start_capacity_publisher(
    client: Client,
    driver: DriverClient,
    settings: ProvisionerOptions,
    events: EventRecorder,
    node_race: NodeClaimRace | None,
    group: asyncio.TaskGroup,
    registry: WaitRegistry,
    pod: str,
    namespace: str,
) -> Callable[[str], None]:
    """Returns what to call when the capacity of a class has changed."""
    if not settings.enable_capacity:
        return lambda storage_class: None
    capacities = CapacityPublisher(
        client,
        driver,
        settings,
        events=events,
        namespace=namespace,
        owner=await find_owner(client, pod, namespace, settings.capacity_ownerref_level),
        node=node_race.node if node_race else "",
        segments=node_race.segments if node_race else None,
    )
    group.create_task(registry.run(capacities))
    return capacities.refresh
