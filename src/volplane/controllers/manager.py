"""Run a set of controllers as one role.

The table names every controller and its class; a new controller is one row. Controllers are imported when
they run, so that a process imports only what it uses, and no controller imports another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from volplane.base.settings import Duration, about
from volplane.client.client import Client
from volplane.host import Host
from volplane.loops.controller import Controller
from volplane.loops.health import alive, health
from volplane.loops.leader_elect import ComponentLeaderElection, lead_component
from volplane.loops.wait_reports import Question, WaitRegistry
from volplane.volumes.flex.options import VOLUME_PLUGIN_DIR
from volplane.volumes.flex.prober import FlexProber
from volplane.volumes.plugin_description import PluginReport, describe_flex_drivers

AnyController = Controller[Any, Any, Any]
ClientOfAccount = Callable[[str], Client]  # by the name of the service account

COMPONENT = "kube-controller-manager"


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
    disable_force_detach_on_timeout: Annotated[
        bool, about("never detach by force after --max-wait-for-unmount")
    ] = False
    wait_for_deleted_nodes: Annotated[
        bool, about("apply --max-wait-for-unmount to deleted Nodes, too, as upstream does")
    ] = False
    attach_timeout: Annotated[
        Duration, about("time without an answer from the attacher before FailedAttachVolume is reported")
    ] = 120.0
    attach_retry_interval_max: Annotated[
        Duration, about("longest interval between FailedAttachVolume events; intervals double from 500ms")
    ] = 122.0
    attach_detach_reconcile_sync_period: Annotated[
        Duration, about("interval at which FlexVolume drivers are asked whether volumes are still attached")
    ] = 60.0
    disable_attach_detach_reconcile_sync: Annotated[
        bool, about("never ask FlexVolume drivers whether volumes are still attached")
    ] = False
    flex_volume_plugin_dir: Annotated[
        str, about("directory with the executables of FlexVolume drivers", value="DIR")
    ] = VOLUME_PLUGIN_DIR
    enable_distributed_snapshotting: Annotated[
        bool, about("label contents with their node, for one snapshotter per node")
    ] = False
    node_monitor_grace_period: Annotated[
        Duration, about("time without a heartbeat before a node is marked Unknown")
    ] = 40.0
    node_startup_grace_period: Annotated[
        Duration, about("time before a node that has never sent a heartbeat is marked Unknown")
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
    cluster_signing_key_file: Annotated[str, about("private key of that CA", value="FILE")] = ""
    http_endpoint: Annotated[str, about("address for metrics and health checks", value="HOST:PORT")] = ""
    use_service_account_credentials: Annotated[
        bool, about("each controller acts as its own service account of kube-system")
    ] = False
    root_ca: Annotated[str, about("CA certificate (PEM) published in every namespace")] = ""


class ControllerSpec(Struct, frozen=True):
    where: str  # module:class
    account: str  # upstream's service account for it, in kube-system
    options: Mapping[str, Callable[[ControllerManagerOptions], Any]] = {}  # argument → from the settings
    calls_flex_drivers: bool = False
    further_accounts: Mapping[str, str] = {}  # argument → of what is a controller of its own upstream


def _file(path: str) -> bytes:
    return Path(path).read_bytes() if path else b""


CONTROLLERS: Mapping[str, ControllerSpec] = {
    "persistentvolume-binder-controller": ControllerSpec(
        "volplane.controllers.binder.controller:Binder",
        "persistent-volume-binder",
        {
            "sync_period": lambda s: s.pvclaimbinder_sync_period,
            "dynamic": lambda s: s.enable_dynamic_provisioning,
        },
    ),
    "persistentvolume-attach-detach-controller": ControllerSpec(
        "volplane.controllers.attachdetach.controller:AttachDetach",
        "attachdetach-controller",
        {
            "max_wait_for_unmount": lambda s: s.max_wait_for_unmount,
            "force_detach": lambda s: not s.disable_force_detach_on_timeout,
            "wait_for_deleted_nodes": lambda s: s.wait_for_deleted_nodes,
            "attach_timeout": lambda s: s.attach_timeout,
            "retry_interval_max": lambda s: s.attach_retry_interval_max,
        },
        calls_flex_drivers=True,
    ),
    "flexvolume-attachment-controller": ControllerSpec(
        "volplane.controllers.flexvolume.controller:FlexAttachments",
        "attachdetach-controller",
        {
            "sync_period": lambda s: (
                0.0 if s.disable_attach_detach_reconcile_sync else s.attach_detach_reconcile_sync_period
            ),
            "retry_interval_max": lambda s: s.attach_retry_interval_max,
        },
        calls_flex_drivers=True,
    ),
    "persistentvolumeclaim-protection-controller": ControllerSpec(
        "volplane.controllers.protection.controller:ClaimProtection",
        "pvc-protection-controller",
    ),
    "persistentvolume-protection-controller": ControllerSpec(
        "volplane.controllers.protection.controller:VolumeProtection",
        "pv-protection-controller",
    ),
    "volumeattributesclass-protection-controller": ControllerSpec(
        "volplane.controllers.protection.controller:AttributesProtection",
        "volumeattributesclass-protection-controller",
    ),
    "persistentvolume-expander-controller": ControllerSpec(
        "volplane.controllers.expand.controller:Expansion", "expand-controller", calls_flex_drivers=True
    ),
    "snapshot-controller": ControllerSpec(
        "volplane.controllers.snapshot.controller:VolumeSnapshots",
        "snapshot-controller",
        {"distributed": lambda s: s.enable_distributed_snapshotting},
    ),
    "group-snapshot-controller": ControllerSpec(
        "volplane.controllers.snapshot.groups.controller:VolumeGroupSnapshots",
        "snapshot-controller",
    ),
    "ephemeral-volume-controller": ControllerSpec(
        "volplane.controllers.ephemeral.controller:EphemeralVolumes",
        "ephemeral-volume-controller",
    ),
    "deployment-controller": ControllerSpec(
        "volplane.controllers.deployment.controller:Deployments",
        "deployment-controller",
    ),
    "replicaset-controller": ControllerSpec(
        "volplane.controllers.replicaset.controller:ReplicaSets",
        "replicaset-controller",
    ),
    "replicationcontroller-controller": ControllerSpec(
        "volplane.controllers.replicaset.controller:ReplicationControllers",
        "replication-controller",
    ),
    "daemonset-controller": ControllerSpec(
        "volplane.controllers.daemonset.controller:DaemonSets",
        "daemon-set-controller",
    ),
    "statefulset-controller": ControllerSpec(
        "volplane.controllers.statefulset.controller:StatefulSets",
        "statefulset-controller",
    ),
    "job-controller": ControllerSpec(
        "volplane.controllers.job.controller:Jobs",
        "job-controller",
        further_accounts={"cleaner": "ttl-after-finished-controller"},
    ),
    "cronjob-controller": ControllerSpec(
        "volplane.controllers.cronjob.controller:CronJobs",
        "cronjob-controller",
    ),
    "endpoints-controller": ControllerSpec(
        "volplane.controllers.endpoints.controller:EndpointsObjects",
        "endpoint-controller",
    ),
    "endpointslice-controller": ControllerSpec(
        "volplane.controllers.endpoints.controller:EndpointSlices",
        "endpointslice-controller",
    ),
    "disruption-controller": ControllerSpec(
        "volplane.controllers.disruption.controller:Disruptions",
        "disruption-controller",
    ),
    "node-lifecycle-controller": ControllerSpec(
        "volplane.controllers.nodelifecycle.controller:NodeLifecycle",
        "node-controller",
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
        "volplane.controllers.tainteviction.controller:TaintEviction",
        "node-controller",
    ),
    "pod-garbage-collector-controller": ControllerSpec(
        "volplane.controllers.podgc.controller:PodGarbage",
        "pod-garbage-collector",
        {"threshold": lambda s: s.terminated_pod_gc_threshold},
    ),
    "garbage-collector-controller": ControllerSpec(
        "volplane.controllers.garbage.controller:GarbageCollector",
        "generic-garbage-collector",
    ),
    "resourcequota-controller": ControllerSpec(
        "volplane.controllers.quota.controller:ResourceQuotas",
        "resourcequota-controller",
    ),
    "namespace-controller": ControllerSpec(
        "volplane.controllers.namespace.controller:Namespaces",
        "namespace-controller",
    ),
    "certificatesigningrequest-controller": ControllerSpec(
        "volplane.controllers.csr.controller:SigningRequests",
        "certificate-controller",
        {
            "certificate": lambda s: _file(s.cluster_signing_cert_file),
            "key": lambda s: _file(s.cluster_signing_key_file),
        },
    ),
    "serviceaccount-controller": ControllerSpec(
        "volplane.controllers.serviceaccount.controller:ServiceAccounts",
        "service-account-controller",
        {"root_ca": lambda s: s.root_ca},
        further_accounts={"publisher": "root-ca-cert-publisher"},
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
    client_of: ClientOfAccount,
    flex_prober: FlexProber,
    settings: ControllerManagerOptions = ControllerManagerOptions(),  # noqa: B008
) -> list[AnyController]:
    names = select_controllers(settings.controllers)
    return [make_controller(name, client_of, flex_prober, settings) for name in names]


def make_controller(
    name: str, client_of: ClientOfAccount, flex_prober: FlexProber, settings: ControllerManagerOptions
) -> AnyController:
    entry = CONTROLLERS[name]
    module, _, attribute = entry.where.partition(":")
    options = {argument: of(settings) for argument, of in entry.options.items()}
    options |= {argument: client_of(account) for argument, account in entry.further_accounts.items()}
    if entry.calls_flex_drivers:
        options["flex_prober"] = flex_prober
    made: AnyController = getattr(import_module(module), attribute)(client_of(entry.account), **options)
    return made


async def run(
    client: Client,
    settings: ControllerManagerOptions = ControllerManagerOptions(),  # noqa: B008  (frozen)
    wait_registry: WaitRegistry | None = None,
    flex_prober: FlexProber | None = None,
    election: ComponentLeaderElection | None = None,
    client_of: ClientOfAccount | None = None,
) -> None:
    """Run until cancelled. `flex_prober`: one that its owner runs, for other roles of this process, too.

    `election`: run the controllers only while holding the Lease of kube-controller-manager. `client_of`: the
    clients of the controllers' service accounts; without it, all use `client`.
    """
    registry = wait_registry or WaitRegistry()
    async with (
        health(settings.http_endpoint, {"/healthz": alive}, "/metrics"),
        _scan_plugins(flex_prober, settings) as prober,
    ):
        with registry.reporting(partial(report_plugins, prober), Question.PLUGINS):
            # Before the Lease is held, because their imports take long.
            controllers = build_controllers(client_of or (lambda account: client), prober, settings)
            body = partial(_run_controllers, controllers, registry)
            await (lead_component(client, election, COMPONENT, body) if election is not None else body())


@asynccontextmanager
async def _scan_plugins(
    given: FlexProber | None, settings: ControllerManagerOptions
) -> AsyncIterator[FlexProber]:
    """A prober that has scanned its directory once."""
    if given is not None:
        await given.wait_scanned()
        yield given
        return
    host = Host()
    prober = FlexProber(settings.flex_volume_plugin_dir, host)
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(prober.run(), name="flexvolume prober")
            await prober.wait_scanned()
            yield prober
            running.cancel()
    finally:
        await host.close()


async def _run_controllers(controllers: Sequence[AnyController], registry: WaitRegistry) -> None:
    async with asyncio.TaskGroup() as group:
        for controller in controllers:
            group.create_task(registry.run(controller), name=controller.name)


def report_plugins(flex_prober: FlexProber) -> list[PluginReport]:
    """The FlexVolume drivers of the controllers. CSI drivers are found in the API."""
    return [PluginReport("controller-manager", describe_flex_drivers(flex_prober))]
