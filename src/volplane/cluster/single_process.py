"""A cluster with all roles in one process.

Start and stop have an order: unmounting the volumes of the last pods needs the drivers, and the drivers need
the disk service.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from ipaddress import IPv4Network
from typing import Annotated, Any, Self

from msgspec import Struct, structs

from volplane import apiserver, cloud, scheduler
from volplane.api import quantity
from volplane.apiserver.auth.certificates import CertificateAuthority
from volplane.apiserver.server import RunningApiServer
from volplane.base import trace
from volplane.base.settings import Duration, about
from volplane.base.tasks import TaskSet, log_error
from volplane.base.trace import Trace
from volplane.client import kubeconfig
from volplane.client.cache import Caches
from volplane.client.client import Client
from volplane.cluster import power_loss, readiness, user_drivers
from volplane.cluster.apply import DRIVERS, WITHOUT_DRIVERS, WITHOUT_PODS, apply
from volplane.cluster.aws_objects import apply_aws_objects, cloud_variables, disk_service_url
from volplane.cluster.builtin_images import ImageDeps, builtin_images
from volplane.cluster.container_runtime import (
    check_kinds,
    choose_endpoint,
    end_other_containers,
    prepare_runtime,
)
from volplane.cluster.data_directory import REGION, ClusterMember, DataDirectory, SavedCluster, node_name
from volplane.cluster.data_version import open_directory
from volplane.cluster.errors import CannotStart
from volplane.cluster.live_page import OFF, ON, issue_page_link, serve_live_page
from volplane.cluster.probe_surroundings import prepare_probe, remove_probe
from volplane.cluster.readiness import ExpectedDriver
from volplane.cluster.role_control import RoleCannotChange, describe_crash, serve_role_control
from volplane.cluster.role_files import RoleFiles
from volplane.cluster.saved_options import SavedOptions, SavedRuntime, load_options, save_options
from volplane.cluster.sidecar_clients import account_client
from volplane.cluster.user_drivers import NO_USER_DRIVERS, DiscoveredDrivers, UserDrivers
from volplane.controllers import manager
from volplane.csi.call_interceptor import CallInterceptor
from volplane.dashboard.entrance import LivePage
from volplane.drivers import ebs
from volplane.host import Host, network
from volplane.loops.span_recording import RecordingOptions, record_spans
from volplane.loops.wait_reports import WaitRegistry, serve_wait_reports
from volplane.node.containers.cri import cni
from volplane.node.containers.task import TaskContext
from volplane.node.descriptor_budget import DescriptorReservations
from volplane.node.eviction import thresholds
from volplane.node.image_overrides import ImageOverrides
from volplane.node.kubelet import Kubelet
from volplane.node.network import address_ranges
from volplane.node.options import BRIDGE, HOST, NodeOptions, check_endpoint
from volplane.rules import latency
from volplane.store.sqlite import SqliteStore
from volplane.volumes.flex.options import VOLUME_PLUGIN_DIR
from volplane.volumes.flex.prober import FlexProber

log = logging.getLogger(__name__)

CLAIM_READ = 5.0  # seconds; reading a claim in process is cheap
FILES, FILES_A_NODE = 192, 32  # a process opens about 95 files, and 20 per node; the rest is for pods
INNER_ROLES = ("apiserver", "cloud", "controller-manager", "scheduler")  # beside the nodes
HEARTBEATS = 4  # per grace period; all must be missed before a node is marked Unknown


class ClusterOptions(Struct, frozen=True, kw_only=True):
    data_dir: Annotated[str, about("directory of the cluster; a later start continues there")] = "~/.volplane"
    nodes: Annotated[int, about("number of nodes: worker-1 … worker-N")] = 3
    nodes_per_zone: Annotated[int, about("nodes in each zone")] = 2
    port: Annotated[int, about("port of the API server; 0 keeps the last one, or picks a free one")] = 0
    controllers: Annotated[tuple[str, ...], about("controllers to run: * is all, -name all but that one")] = (
        "*",
    )
    latency: Annotated[
        str, about("simulate the latency of a cloud: aws (by volume type), ebs, io2 or efs", value="PROFILE")
    ] = ""
    pod_network: Annotated[str, about("bridge gives each pod its own network; host shares the machine's")] = (
        BRIDGE
    )
    thin: Annotated[
        float, about("overcommit factor: disk sizes may add up to this many times the free space")
    ] = 100.0
    pvclaimbinder_sync_period: Annotated[
        Duration, about("interval at which every claim and volume is reconciled again")
    ] = 15.0
    node_monitor_grace_period: Annotated[
        Duration, about("time without a heartbeat before a node is marked Unknown")
    ] = 40.0
    default_not_ready_toleration_seconds: Annotated[
        int, about("seconds a pod stays on a node that is not ready, unless it has a toleration of its own")
    ] = 300
    default_unreachable_toleration_seconds: Annotated[
        int, about("seconds a pod stays on an unreachable node, unless it has a toleration of its own")
    ] = 300
    max_container_restart_period: Annotated[
        Duration, about("longest delay before a failed container restarts (CrashLoopBackOff)")
    ] = 300.0
    seccomp_default: Annotated[
        bool, about("apply the seccomp profile RuntimeDefault to containers that name none")
    ] = False
    allowed_unsafe_sysctls: Annotated[
        tuple[str, ...],
        about("sysctls or patterns ending in * that pods may set beside the safe ones", value="NAMES"),
    ] = ()
    container_runtime_endpoint: Annotated[
        str,
        about(
            "socket of the CRI runtime that runs containers, such as unix:///run/containerd/containerd.sock; "
            "default: that of the last start; without one, or if it is empty, they run as processes of this "
            "machine",
            value="ENDPOINT",
        ),
    ] = ""
    container_shell: Annotated[
        str,
        about(
            "program that is /bin/sh in containers that run as processes, such as busybox; default: this "
            "machine's shell",
            value="PROGRAM",
        ),
    ] = ""
    image_service_endpoint: Annotated[
        str, about("socket of the CRI image service, if it is not the runtime's", value="ENDPOINT")
    ] = ""
    node: Annotated[
        Mapping[str, str],
        about(
            "how nodes run containers: cri (the container runtime) or process; if a node is listed "
            "as cri, those that are not listed are process",
            value="NAME=cri|process",
        ),
    ] = {}
    serialize_image_pulls: Annotated[bool, about("pull one image at a time on each node")] = True
    max_parallel_image_pulls: Annotated[
        int, about("images that a node pulls at a time without --serialize-image-pulls; 0: no limit")
    ] = 0
    image_gc_high_threshold: Annotated[
        int, about("percent of disk use above which unused images are removed; 100: never")
    ] = 85
    image_gc_low_threshold: Annotated[int, about("percent of disk use down to which images are removed")] = 80
    minimum_image_ttl_duration: Annotated[
        Duration, about("age before which an unused image is not removed")
    ] = 120.0
    container_log_max_size: Annotated[
        str, about("size of one file of a container's log before it is rotated")
    ] = "10Mi"
    container_log_max_files: Annotated[
        int, about("files of a container's log, the newest included; at least 2")
    ] = 5
    eviction_hard: Annotated[str, about("thresholds of a node's disk below which pods are evicted")] = (
        thresholds.DEFAULT
    )
    volume_plugin_dir: Annotated[
        str, about("directory with the executables of FlexVolume drivers", value="DIR")
    ] = VOLUME_PLUGIN_DIR
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
    journey_max_size: Annotated[
        str,
        about("disk space for recorded steps of volumes (`volplane journey`), such as 64Mi; 0: none"),
    ] = "0"
    journey_max_age: Annotated[Duration, about("age at which recorded steps of volumes are removed")] = (
        7 * 86400.0
    )
    otlp_endpoint: Annotated[
        str,
        about("OpenTelemetry collector that gets the steps of volumes as traces", value="URL"),
    ] = ""
    ui: Annotated[str, about("serve the live page for a browser: on or off")] = ON
    ui_port: Annotated[
        int, about("port of the live page, on loopback; 0 keeps the last one, or picks a free one")
    ] = 0

    def __post_init__(self) -> None:
        if not 0 <= self.nodes <= 1000:
            raise ValueError(f"--nodes must be between 0 and 1000, not {self.nodes}")
        latency.check_profile(self.latency)
        if self.thin < 0:
            raise ValueError(f"--thin must not be negative, not {self.thin}")
        if self.nodes_per_zone < 1:
            raise ValueError(f"--nodes-per-zone must be at least 1, not {self.nodes_per_zone}")
        if self.node_monitor_grace_period < 1:
            given = self.node_monitor_grace_period
            raise ValueError(f"--node-monitor-grace-period must be at least 1 second, not {given:g}")
        if not 0 <= self.port < 65536:
            raise ValueError(f"--port must be a port number, not {self.port}")
        if not 0 <= self.ui_port < 65536:
            raise ValueError(f"--ui-port must be a port number, not {self.ui_port}")
        if self.ui not in (ON, OFF):
            raise ValueError(f"--ui must be {ON} or {OFF}, not {self.ui!r}")
        if self.pod_network not in (BRIDGE, HOST):
            raise ValueError(f"--pod-network must be {BRIDGE} or {HOST}, not {self.pod_network!r}")
        # A role of its own process has another working directory.
        structs.force_setattr(self, "volume_plugin_dir", os.path.abspath(self.volume_plugin_dir))
        manager.select_controllers(self.controllers)  # raises UnknownController
        check_endpoint("--container-runtime-endpoint", self.container_runtime_endpoint)
        names = [node_name(index) for index in range(1, self.nodes + 1)]
        check_kinds(self.node, self.container_runtime_endpoint, names)
        node_options = NodeOptions(**select_node_options(self))  # raises ValueError
        structs.force_setattr(self, "container_shell", node_options.shell_path)
        recording_options(DataDirectory(self.data_dir), self)  # raises ValueError


# The options of `up` that every node gets as they are.
NODE_OPTIONS = (
    "max_container_restart_period",
    "seccomp_default",
    "allowed_unsafe_sysctls",
    "container_shell",
    "image_service_endpoint",
    "serialize_image_pulls",
    "max_parallel_image_pulls",
    "image_gc_high_threshold",
    "image_gc_low_threshold",
    "minimum_image_ttl_duration",
    "container_log_max_size",
    "container_log_max_files",
    "eviction_hard",
    "volume_plugin_dir",
)


def select_node_options(settings: ClusterOptions) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in NODE_OPTIONS}


def runtime_endpoint(member: ClusterMember, settings: ClusterOptions) -> str:
    """The endpoint of a node's container runtime; "" if it runs containers as processes."""
    return choose_endpoint(member.name, settings.node, settings.container_runtime_endpoint)


def options_to_save(drivers: UserDrivers, settings: ClusterOptions) -> SavedOptions:
    """The options that the next start on the data directory has, if none are given."""
    endpoints = settings.container_runtime_endpoint, settings.image_service_endpoint
    return structs.replace(drivers.options, runtime=SavedRuntime(*endpoints, settings.node))


def runtime_endpoints(members: Iterable[ClusterMember], settings: ClusterOptions) -> dict[ClusterMember, str]:
    return {member: runtime_endpoint(member, settings) for member in members}


def files_needed(nodes: int) -> int:
    """The number of open files that a process with all roles needs, drivers and a few pods included."""
    return FILES + FILES_A_NODE * nodes


class Cluster:
    """`async with Cluster(options) as cluster:` all roles run inside the block, and stop cleanly after it."""

    server: RunningApiServer
    memory: SavedCluster
    trace: Trace

    def __init__(
        self,
        settings: ClusterOptions,
        drivers: UserDrivers = NO_USER_DRIVERS,
        *,
        interceptor: CallInterceptor | None = None,
    ) -> None:
        """`drivers`: drivers and manifests of the user; `interceptor`: of all calls to drivers."""
        self.interceptor = interceptor
        self.settings, self.user_drivers = settings, drivers
        self.programs = ImageOverrides(drivers.programs)
        self.discovered = DiscoveredDrivers(NO_USER_DRIVERS)
        self.layout = DataDirectory(settings.data_dir)
        self.members = self.layout.members(settings.nodes, settings.nodes_per_zone)
        self.runs = RoleFiles(self.layout.run)
        self.nodes: dict[str, Kubelet] = {}
        self.live_page: LivePage | None = None
        self.wait_registry = WaitRegistry()
        self.descriptor_reservations = DescriptorReservations()
        self._stack = AsyncExitStack()
        self._roles = TaskSet(self._note_role_failure)
        self._started = self._complete = False
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- start

    async def __aenter__(self) -> Self:
        self.trace = trace.start()
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        if self.layout.create():
            self._stack.push_async_callback(self._discard)
        self._stack.callback(os.close, open_directory(self.layout))
        self.layout.remove_wait_report_sockets()
        recording = recording_options(self.layout, self.settings)
        await self._stack.enter_async_context(record_spans(self.trace, "up", recording))
        store = await SqliteStore.open(self.layout.state, compressed_prefixes=apiserver.COMPRESSED_PREFIXES)
        self._stack.push_async_callback(store.close)
        self._stack.callback(self.layout.ready.unlink, missing_ok=True)
        self._stack.callback(self.layout.release)
        self.memory = prepare_ports_and_keys(self.layout, self.settings)
        self.host = Host()
        self.flex_prober = FlexProber(self.settings.volume_plugin_dir, self.host)  # of controllers and nodes
        self._stack.push_async_callback(self.host.close)
        if self.settings.container_runtime_endpoint:
            await prepare_runtime(self.settings.container_runtime_endpoint, self.host)
        before = load_options(self.layout).runtime
        await end_other_containers(runtime_endpoints(self.members, self.settings), before, self.host)
        self.server = await apiserver.run(
            apiserver_options(self.layout, self.memory.port, self.settings), store
        )
        self._stack.push_async_callback(self.server.close)
        self.layout.save(self.memory)  # not earlier: the port might have been in use
        self.caches = await self._stack.enter_async_context(Caches(self.server.in_process_transport()))
        self.client = self.client_for("volplane")
        reports = serve_wait_reports(str(self.layout.wait_report_socket("up")), self.wait_registry)
        await self._stack.enter_async_context(reports)
        self._stack.push_async_callback(self._roles.close)
        await self._start_cloud()
        self.discovered = await self._discover_drivers()
        registry, controllers = self.wait_registry, self.client_for("kube-controller-manager")
        self._roles.start(self.flex_prober.run(), "flexvolume prober")
        managing = manager.run(
            controllers, self._manager(), wait_registry=registry, flex_prober=self.flex_prober
        )
        self._roles.start(managing, "controllers")
        scheduling = scheduler.run(self.client_for("kube-scheduler"), wait_registry=registry)
        self._roles.start(scheduling, "scheduler")
        self._stack.push_async_callback(self._stop_nodes)
        with save_options(self.layout, options_to_save(self.user_drivers, self.settings)):
            async with asyncio.TaskGroup() as group:
                applying = group.create_task(_outcome(self._apply()))
                for member in self._running_members():
                    group.create_task(self._start_node(member))
            self._started = True
            if (refused := applying.result()) is not None:
                raise refused  # now the nodes run, and can clean up
        if self.settings.ui == ON:
            trace = self.trace if not recording.max_size else None
            page = serve_live_page(
                self.layout,
                self.server.in_process_transport(),
                self.settings.ui_port,
                has_roles=True,
                trace=trace,
            )
            self.live_page = await self._stack.enter_async_context(page)
        await self._stack.enter_async_context(serve_role_control(str(self.layout.role_control), self))
        self._complete = True

    async def _discover_drivers(self) -> DiscoveredDrivers:
        """Before there are controllers: what a driver finds around it is there for a moment only."""
        await remove_probe(self.client)
        self.user_drivers = self.user_drivers.with_cloud(cloud_variables(self.memory))
        if not self.user_drivers.drivers or self.user_drivers.facts:
            return await user_drivers.discover_drivers(self.user_drivers, self.host)
        async with prepare_probe(self.client, self.layout, self.host) as surroundings:
            return await user_drivers.discover_drivers(self.user_drivers, self.host, surroundings)

    async def _apply(self) -> None:
        builtin = self.user_drivers.builtin
        await apply(self.client, WITHOUT_PODS if builtin else WITHOUT_DRIVERS)
        await apply_aws_objects(self.client, self.memory)
        await readiness.wait_for_first_nodes(self.client, self._running_members())
        await apply(self.client, DRIVERS if builtin else ())
        if things := self.discovered.manifests(str(self.layout.driver_shares)):
            transport = kubeconfig.load(self.layout.kubeconfig, agent="volplane")
            try:
                await user_drivers.apply(transport, things)
            finally:
                await transport.close()

    @property
    def url(self) -> str:
        return self.server.url

    def client_for(self, component: str) -> Client:
        return Client(self.server.in_process_transport(), caches=self.caches, component=component)

    def _sidecar(self, component: str, context: TaskContext) -> AbstractAsyncContextManager[Client]:
        return account_client(self.server.core, self.caches, component, context)

    def _manager(self) -> manager.ControllerManagerOptions:
        return manager.ControllerManagerOptions(
            controllers=self.settings.controllers,
            pvclaimbinder_sync_period=self.settings.pvclaimbinder_sync_period,
            node_monitor_grace_period=self.settings.node_monitor_grace_period,
            max_wait_for_unmount=self.settings.max_wait_for_unmount,
            disable_force_detach_on_timeout=self.settings.disable_force_detach_on_timeout,
            wait_for_deleted_nodes=self.settings.wait_for_deleted_nodes,
            enable_distributed_snapshotting=self.user_drivers.may_snapshot_on_nodes,
            cluster_signing_cert_file=str(self.server.authority.pair.cert_path),
            cluster_signing_key_file=str(self.server.authority.pair.key_path),
            root_ca=self.server.ca.decode(),
        )

    async def _start_cloud(self) -> None:
        settings = cloud_options(self.layout, self.memory, self.members, self.settings)
        store = await SqliteStore.open(self.layout.cloud / "state.db", window=cloud.EVENT_WINDOW)
        self._stack.push_async_callback(store.close)
        self.cloud_url = await self._stack.enter_async_context(
            cloud.serve_endpoint(settings, self.host, store, self.wait_registry)
        )

    async def _start_node(self, member: ClusterMember) -> None:
        kit = ImageDeps(
            self._sidecar,
            self.host,
            cloud_account(self.memory),
            {member.name: ebs_location(member, self.settings.latency)},
            str(self.layout.shared),
            self.wait_registry,
            self.interceptor,
        )
        # It may have to create a certificate and write it to disk.
        settings = await self.host.call(
            node_options, self.server.authority, member, self.memory, self.settings
        )
        client = self.client_for("kubelet")
        cover = (str(self.layout.directory),)
        own = builtin_images(kit, self.programs)
        node = Kubelet(
            settings,
            client,
            self.host,
            own,
            cover=cover,
            programs=self.programs,
            wait_registry=self.wait_registry,
            interceptor=self.interceptor,
            reservations=self.descriptor_reservations,
            flex_prober=self.flex_prober,
        )
        self.nodes[member.name] = node
        await node.start()
        self._roles.start(node.wait(), member.name)

    def _note_role_failure(self, task: asyncio.Task[None], error: BaseException) -> None:
        log_error(task, error)
        if not self._broken.done():
            self._broken.set_exception(error)

    # --- run

    async def wait_ready(self) -> None:
        """Wait until claims and pods can be served."""
        members = self._running_members()
        await readiness.wait_ready(self.client, members, expected_drivers(self.discovered, members))
        self.layout.ready.write_text(f"{os.getpid()}\n")

    def _running_members(self) -> list[ClusterMember]:
        """All nodes except those that were crashed on purpose."""
        return [m for m in self.members if not self.runs.is_crashed(m.name)]

    async def wait(self) -> None:
        """Wait until a role fails, and raise its error."""
        await asyncio.shield(self._broken)

    # --- crash and revive nodes

    async def crash(self, name: str) -> None:
        """Simulate a power loss of a node: its kubelet, containers and mounts are gone without notice."""
        node = self.nodes.pop(name)
        await node.stop(drain=False)
        member = self._member(name)
        await power_loss.lose_power(member.root, self.host, runtime_endpoint(member, self.settings))

    async def revive(self, name: str) -> None:
        trace.use(self.trace)
        await self._start_node(self._member(name))

    async def crash_role(self, role: str) -> str:
        member = self._check_node(role)
        if self.runs.is_crashed(member.name):
            raise RoleCannotChange(f"{role} is down already")
        self.runs.crash_marker(role).touch()
        await self.crash(member.name)
        return describe_crash(role, self.layout.directory)

    async def issue_page_link(self) -> str:
        return issue_page_link(self.live_page)

    async def start_role(self, role: str) -> str:
        member = self._check_node(role)
        if member.name in self.nodes:
            raise RoleCannotChange(f"{role} is not down: only a crashed node stays down")
        try:
            await self.revive(member.name)
        except BaseException:
            if node := self.nodes.pop(member.name, None):  # so that the next request tries again
                await node.stop(drain=False)
            raise
        self.runs.crash_marker(role).unlink(missing_ok=True)
        return f"{role} is starting"

    def _check_node(self, role: str) -> ClusterMember:
        """The node of that role. Raises RoleCannotChange."""
        nodes = {f"node/{m.name}": m for m in self.members}
        if role in INNER_ROLES:
            raise RoleCannotChange(
                f"{role} is a part of the one process of `volplane up`, and cannot crash alone; "
                "`volplane up --separate` gives each role its own process"
            )
        if role not in nodes:
            raise RoleCannotChange(f"this cluster has no role {role}; its roles: {', '.join(nodes)}")
        return nodes[role]

    def _member(self, name: str) -> ClusterMember:
        return next(m for m in self.members if m.name == name)

    # --- stop

    async def __aexit__(self, *_: object) -> None:
        self._broken.cancel()
        await self._stack.aclose()

    async def _discard(self) -> None:
        if not self._complete:
            await power_loss.discard(self.layout, runtime_endpoints(self.members, self.settings))

    async def _stop_nodes(self) -> None:
        # A start that failed leaves the containers of an earlier run as they are.
        await asyncio.gather(*(node.stop(drain=self._started) for node in self.nodes.values()))
        if self._started:
            if self.memory.pod_range:
                await self.host.call(network.remove_bridge, self.layout.bridge)
            if self.settings.container_runtime_endpoint:
                await self.host.call(cni.remove_idle_bridge)


async def _outcome(work: Awaitable[None]) -> CannotStart | None:
    try:
        await work
    except CannotStart as error:
        return error
    return None


def expected_drivers(learned: DiscoveredDrivers, members: list[ClusterMember]) -> list[ExpectedDriver]:
    """The drivers to wait for."""
    ours = [readiness.expect_ebs(members)] if learned.user_drivers.builtin else []
    return ours + (learned.expected_drivers([m.name for m in members]) if members else [])


def apiserver_options(
    layout: DataDirectory, port: int, settings: ClusterOptions
) -> apiserver.ApiServerOptions:
    return apiserver.ApiServerOptions(
        data_dir=str(layout.directory),
        port=port,
        default_not_ready_toleration_seconds=settings.default_not_ready_toleration_seconds,
        default_unreachable_toleration_seconds=settings.default_unreachable_toleration_seconds,
    )


def recording_options(layout: DataDirectory, settings: ClusterOptions) -> RecordingOptions:
    """Where the steps of volumes are recorded. Raises ValueError."""
    try:
        size = int(quantity.parse(settings.journey_max_size))
    except ValueError as error:
        raise ValueError(f"--journey-max-size: {error}") from error
    return RecordingOptions(
        directory=str(layout.spans),
        max_size=size,
        max_age=settings.journey_max_age,
        otlp_endpoint=settings.otlp_endpoint,
    )


def cloud_account(memory: SavedCluster) -> ebs.AwsAccount:
    return ebs.AwsAccount(disk_service_url(memory), REGION, memory.access_key, memory.secret_key)


def ebs_location(member: ClusterMember, profile: str = "") -> ebs.EbsNodeConfig:
    return ebs.EbsNodeConfig(member.instance, member.zone, latency=profile)


def cloud_options(
    layout: DataDirectory, memory: SavedCluster, members: list[ClusterMember], settings: ClusterOptions
) -> cloud.CloudOptions:
    return cloud.CloudOptions(
        data_dir=str(layout.cloud),
        access_key=memory.access_key,
        secret_key=memory.secret_key,
        port=memory.cloud_port,
        latency=settings.latency,
        thin=settings.thin,
        zones=tuple(dict.fromkeys(m.zone for m in members)) or (f"{REGION}a",),
        instances=tuple(
            cloud.CloudInstance(m.instance, m.zone, str(m.root / "dev"), m.name) for m in members
        ),
    )


def prepare_ports_and_keys(layout: DataDirectory, settings: ClusterOptions) -> SavedCluster:
    apart = settings.pod_network == BRIDGE and network.is_own_network()
    return layout.prepare_ports_and_keys(settings.port, settings.nodes, pods_apart=apart)


def node_options(
    authority: CertificateAuthority, member: ClusterMember, memory: SavedCluster, settings: ClusterOptions
) -> NodeOptions:
    plain, grace = NodeOptions(), settings.node_monitor_grace_period
    hosts = ("127.0.0.1", "localhost", member.name)
    pair = authority.server(f"kubelet-{member.name}", hosts)
    return NodeOptions(
        **select_node_options(settings),
        hostname_override=member.name,
        root_dir=str(member.root),
        port=memory.kubelet_ports[member.name],
        tls_cert_file=str(pair.cert_path),
        tls_private_key_file=str(pair.key_path),
        client_ca_file=str(authority.pair.cert_path),
        zone=member.zone,
        region=REGION,
        instance_id=member.instance,
        instance_type="m5.large",
        provider_id=f"aws:///{member.zone}/{member.instance}",
        claim_read_frequency=CLAIM_READ,
        # With a short grace period, heartbeats must be more frequent, or the node is marked Unknown between
        # two.
        node_status_update_frequency=min(plain.node_status_update_frequency, grace / HEARTBEATS),
        node_lease_duration=min(plain.node_lease_duration, grace),
        cluster_host="127.0.0.1",
        cluster_port=memory.port,
        disk_service_port=memory.cloud_port,
        instance_metadata_port=memory.metadata_ports.get(member.name, 0),
        container_runtime_endpoint=runtime_endpoint(member, settings),
        pod_network=BRIDGE if memory.pod_range else HOST,
        pod_cidr=str(address_ranges.node_range(IPv4Network(memory.pod_range), member.index))
        if memory.pod_range
        else "",
        cluster_cidr=memory.pod_range,
        pod_bridge=DataDirectory(settings.data_dir).bridge if memory.pod_range else "",
    )
