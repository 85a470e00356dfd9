"""Run a set of controllers as one role.

The table names every controller and its class; a new controller is one row. Controllers are imported when
they run, so that a process imports only what it uses, and no controller's room imports another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from volplane.base.settings import Duration, about
from volplane.client.client import Client
from volplane.loops.controller import Controller
from volplane.loops.wait_reports import WaitRegistry

AnyController = Controller[Any, Any, Any]


class ControllerManagerOptions(Struct, frozen=True):
    controllers: Annotated[tuple[str, ...], about("controllers to run: * is all, -name all but that one")] = (
        "*",
    )
    pvclaimbinder_sync_period: Annotated[
        Duration, about("interval at which every claim and volume is reconciled again")
    ] = 15.0
    enable_dynamic_provisioning: Annotated[
        bool, about("provision volumes for claims that no volume fits")
    ] = True
    max_wait_for_unmount: Annotated[
        Duration,
        about("time a node that is not ready gets to unmount a volume before it is detached by force"),
    ] = 360.0
    disable_force_detach_on_timeout: Annotated[bool, about("never detach by force after that time")] = False
    wait_for_deleted_nodes: Annotated[
        bool, about("apply --max-wait-for-unmount to deleted Nodes, too, as upstream does")
    ] = False
    attach_timeout: Annotated[
        Duration, about("time without an answer from the attacher before FailedAttachVolume is reported")
    ] = 120.0
    attach_retry_interval_max: Annotated[
        Duration, about("longest interval between FailedAttachVolume events; intervals double from 500ms")
    ] = 122.0
    node_monitor_grace_period: Annotated[
        Duration, about("time without a heartbeat before a node is marked Unknown")
    ] = 40.0
    node_startup_grace_period: Annotated[
        Duration, about("the same for a node that has never sent a heartbeat")
    ] = 60.0
    node_eviction_rate: Annotated[float, about("nodes per second and zone whose pods are evicted")] = 0.1
    secondary_node_eviction_rate: Annotated[
        float, about("the rate for large zones that are unhealthy; small ones stop evicting")
    ] = 0.01
    unhealthy_zone_threshold: Annotated[
        float, about("share of not-ready nodes at which a zone is unhealthy")
    ] = 0.55
    large_cluster_size_threshold: Annotated[int, about("number of nodes above which a zone is large")] = 50
    terminated_pod_gc_threshold: Annotated[int, about("finished pods to keep; 0 keeps all")] = 12500
    cluster_signing_cert_file: Annotated[
        str,
        about("CA that signs node certificates; without it requests are approved, not signed", value="FILE"),
    ] = ""
    cluster_signing_key_file: Annotated[str, about("key of that CA", value="FILE")] = ""
    root_ca: Annotated[str, about("CA certificate (PEM) published in every namespace")] = ""


class ControllerSpec(Struct, frozen=True):
    where: str  # module:class
    options: Mapping[str, Callable[[ControllerManagerOptions], Any]] = {}  # argument → from the settings


def _file(path: str) -> bytes:
    return Path(path).read_bytes() if path else b""


CONTROLLERS: Mapping[str, ControllerSpec] = {
    "persistentvolume-binder-controller": ControllerSpec(
        "volplane.controllers.binder.controller:Binder",
        {
            "sync_period": lambda s: s.pvclaimbinder_sync_period,
            "dynamic": lambda s: s.enable_dynamic_provisioning,
        },
    ),
    "persistentvolume-attach-detach-controller": ControllerSpec(
        "volplane.controllers.attachdetach.controller:AttachDetach",
        {
            "max_wait_for_unmount": lambda s: s.max_wait_for_unmount,
            "force_detach": lambda s: not s.disable_force_detach_on_timeout,
            "wait_for_deleted_nodes": lambda s: s.wait_for_deleted_nodes,
            "attach_timeout": lambda s: s.attach_timeout,
            "retry_interval_max": lambda s: s.attach_retry_interval_max,
        },
    ),
    "persistentvolumeclaim-protection-controller": ControllerSpec(
        "volplane.controllers.protection.controller:ClaimProtection"
    ),
    "persistentvolume-protection-controller": ControllerSpec(
        "volplane.controllers.protection.controller:VolumeProtection"
    ),
    "volumeattributesclass-protection-controller": ControllerSpec(
        "volplane.controllers.protection.controller:AttributesProtection"
    ),
    "persistentvolume-expander-controller": ControllerSpec(
        "volplane.controllers.expand.controller:Expansion"
    ),
    "snapshot-controller": ControllerSpec("volplane.controllers.snapshot.controller:VolumeSnapshots"),
    "group-snapshot-controller": ControllerSpec(
        "volplane.controllers.snapshot.groups.controller:VolumeGroupSnapshots"
    ),
    "ephemeral-volume-controller": ControllerSpec(
        "volplane.controllers.ephemeral.controller:EphemeralVolumes"
    ),
    "deployment-controller": ControllerSpec("volplane.controllers.deployment.controller:Deployments"),
    "replicaset-controller": ControllerSpec("volplane.controllers.replicaset.controller:ReplicaSets"),
    "replicationcontroller-controller": ControllerSpec(
        "volplane.controllers.replicaset.controller:ReplicationControllers"
    ),
    "daemonset-controller": ControllerSpec("volplane.controllers.daemonset.controller:DaemonSets"),
    "statefulset-controller": ControllerSpec("volplane.controllers.statefulset.controller:StatefulSets"),
    "job-controller": ControllerSpec("volplane.controllers.job.controller:Jobs"),
    "cronjob-controller": ControllerSpec("volplane.controllers.cronjob.controller:CronJobs"),
    "disruption-controller": ControllerSpec("volplane.controllers.disruption.controller:Disruptions"),
    "node-lifecycle-controller": ControllerSpec(
        "volplane.controllers.nodelifecycle.controller:NodeLifecycle",
        {
            "monitor_grace": lambda s: s.node_monitor_grace_period,
            "startup_grace": lambda s: s.node_startup_grace_period,
            "pace": lambda s: (
                s.node_eviction_rate,
                s.secondary_node_eviction_rate,
                s.unhealthy_zone_threshold,
                s.large_cluster_size_threshold,
            ),
        },
    ),
    "taint-eviction-controller": ControllerSpec(
        "volplane.controllers.tainteviction.controller:TaintEviction"
    ),
    "pod-garbage-collector-controller": ControllerSpec(
        "volplane.controllers.podgc.controller:PodGarbage",
        {"threshold": lambda s: s.terminated_pod_gc_threshold},
    ),
    "garbage-collector-controller": ControllerSpec(
        "volplane.controllers.garbage.controller:GarbageCollector"
    ),
    "resourcequota-controller": ControllerSpec("volplane.controllers.quota.controller:ResourceQuotas"),
    "namespace-controller": ControllerSpec("volplane.controllers.namespace.controller:Namespaces"),
    "certificatesigningrequest-controller": ControllerSpec(
        "volplane.controllers.csr.controller:SigningRequests",
        {
            "certificate": lambda s: _file(s.cluster_signing_cert_file),
            "key": lambda s: _file(s.cluster_signing_key_file),
        },
    ),
    "serviceaccount-controller": ControllerSpec(
        "volplane.controllers.serviceaccount.controller:ServiceAccounts", {"root_ca": lambda s: s.root_ca}
    ),
}


class UnknownController(ValueError):
    """A name that is not in the table."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no controller is called {name!r}; there are: {', '.join(CONTROLLERS)}")


def select_controllers(names: Sequence[str]) -> list[str]:
    """The controllers of a list such as `*,-garbage-collector-controller`, in the order of the table."""
    bare = [name.removeprefix("-") for name in names]
    for name in bare:
        if name != "*" and name not in CONTROLLERS:
            raise UnknownController(name)
    return [name for name in CONTROLLERS if f"-{name}" not in names and (name in names or "*" in names)]


def build_controllers(
    client: Client,
    settings: ControllerManagerOptions = ControllerManagerOptions(),  # noqa: B008
) -> list[AnyController]:
    return [make_controller(name, client, settings) for name in select_controllers(settings.controllers)]


def make_controller(name: str, client: Client, settings: ControllerManagerOptions) -> AnyController:
    entry = CONTROLLERS[name]
    module, _, attribute = entry.where.partition(":")
    options = {argument: of(settings) for argument, of in entry.options.items()}
    made: AnyController = getattr(import_module(module), attribute)(client, **options)
    return made


async def run(
    client: Client,
    settings: ControllerManagerOptions = ControllerManagerOptions(),  # noqa: B008  (frozen)
    controllers: Sequence[AnyController] | None = None,
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Run until cancelled. `controllers`: those of `build_controllers`, if the caller needs them."""
    registry = wait_registry or WaitRegistry()
    async with asyncio.TaskGroup() as group:
        for controller in controllers if controllers is not None else build_controllers(client, settings):
            group.create_task(registry.run(controller), name=controller.name)
