"""The kubelet: its parts, the order in which it starts them, and how it stops.

Start: the disk is read first, without the API. Then the Node is registered, drivers register, and the pods
are adopted. Stop with a drain: pods whose volumes have drivers go first, because the pods that run the
drivers are needed to unmount them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial

from msgspec import structs

from volplane import web
from volplane.api.core import ObjectReference
from volplane.api.errors import APIError
from volplane.api.storage import CSIDriver
from volplane.base import clock
from volplane.base.directory_identity import claim_directory
from volplane.base.locks import lock
from volplane.base.tasks import TaskSet
from volplane.client.client import Client
from volplane.client.https import HttpsTransport
from volplane.csi.call_interceptor import CallInterceptor
from volplane.host import Host, NodePaths
from volplane.loops.events import EventRecorder
from volplane.loops.volume_states import StateComparison
from volplane.loops.wait_reports import Question, WaitRegistry, WaitReport, to_wall_time
from volplane.node import node_info
from volplane.node.admission import PodAdmission
from volplane.node.api import KubeletApi
from volplane.node.api.authentication import AuthenticationOptions, KubeletAuthenticator
from volplane.node.api.authorization import AuthorizationOptions, KubeletAuthorizer
from volplane.node.attach_limits import AttachLimits
from volplane.node.configmap_secret_watch import ConfigMapSecretWatch
from volplane.node.containers.base import Runtime
from volplane.node.containers.cri.services import CriServices
from volplane.node.containers.launcher_client import LauncherClient
from volplane.node.containers.process import ProcessRuntime
from volplane.node.containers.task import TaskImage, TaskRuntime
from volplane.node.copied_directory import discard_original_state
from volplane.node.csinode import CSINodeObject
from volplane.node.descriptor_budget import DescriptorBudget, DescriptorReservations
from volplane.node.eviction.controller import EvictionManager
from volplane.node.eviction.plan import check_disk_pressure
from volplane.node.host_port_admission import HostPortAdmission
from volplane.node.image_overrides import ImageOverrides
from volplane.node.image_permissions import ImagePermissions
from volplane.node.instance_metadata import InstanceMetadata
from volplane.node.network import NetworkProvider, PodNetwork
from volplane.node.network.pod_endpoints import metadata_endpoint
from volplane.node.options import CLIENT_CERTIFICATE_FILE, NodeOptions, pki_directory
from volplane.node.plugin_watcher import PluginWatcher
from volplane.node.pods.container import ContainerDeps, finish_uncancelled
from volplane.node.pods.container_spec import ContainerSpecBuilder, hostname
from volplane.node.pods.pod_manager import PodManager
from volplane.node.pods.runtimes import Runtimes
from volplane.node.pods.security_context import NO_APP_ARMOR, NO_APP_ARMOR_SUPPORT, check_pod
from volplane.node.pods.worker import PodDeps
from volplane.node.services import BridgedServices, LinkedServices, ServiceNetwork
from volplane.node.stats import VolumeStats
from volplane.node.status import DISK_PRESSURE, NodeObject
from volplane.node.usage import ProcessUsageReader, RunningContainer
from volplane.node.volume_manager.expansion import ClaimReader
from volplane.node.volume_manager.manager import VolumeManager
from volplane.node.volume_manager.reconstruct import reconstruct_volumes, update_attachability
from volplane.rules import sysctls
from volplane.volumes import plugins
from volplane.volumes.base import NodeContext
from volplane.volumes.csi import RegisteredDrivers
from volplane.volumes.flex.prober import FlexProber
from volplane.volumes.plugin_description import PluginReport
from volplane.volumes.plugin_reports import describe_plugins
from volplane.volumes.registry import PluginRegistry
from volplane.web import tls

log = logging.getLogger(__name__)

LOCK = "node.lock"
LAST_WRITE_TIMEOUT = 2.0  # seconds for the last writes when the node stops
CONTAINERS_SHARE = 2 / 3  # of the time for a stop that containers may take; the rest is for unmounts
ADOPTION_TIMEOUT = 15.0  # seconds that a stop waits until a start has adopted its pods


class Kubelet:
    def __init__(
        self,
        settings: NodeOptions,
        client: Client,
        host: Host,
        images: Mapping[str, TaskImage],
        *,
        processes: Runtime | None = None,
        launcher: LauncherClient | None = None,
        cover: tuple[str, ...] = (),
        programs: ImageOverrides | None = None,
        wait_registry: WaitRegistry | None = None,
        interceptor: CallInterceptor | None = None,
        reservations: DescriptorReservations | None = None,
        flex_prober: FlexProber | None = None,
    ) -> None:
        """`processes`: another runtime for images that are not built in; `launcher`: one for several nodes;
        `cover`: paths that no container may see; `programs`: those that replace images; `reservations`: of
        all nodes in this process; `flex_prober`: one that its owner runs, for several nodes.
        """
        self.settings, self.client, self.host = settings, client, host
        self.wait_registry = wait_registry or WaitRegistry()
        self.name = settings.hostname_override or os.uname().nodename.lower()
        self.paths = paths = NodePaths(settings.root_dir, identity=not settings.own_paths)
        # The callbacks use objects that are created below: those need the node object themselves.
        self.node_object = NodeObject(
            client,
            settings,
            self.name,
            on_heartbeat=lambda: budget.update_pressure(),
            on_recreated=lambda: self._spawn(self._reregister_drivers(), "drivers of a new Node"),
            on_in_use_acknowledged=lambda names: self.volumes.wake(names),
            volumes_found_on_disk=lambda: self.volumes.volumes_in_use(),
        )
        self.events = EventRecorder(client, "kubelet", self.name, rewrite=paths.wire_text)
        self.drivers = RegisteredDrivers(settings.csi_timeout)
        self._context = context = NodeContext(
            self.name,
            host,
            paths,
            client,
            lambda: self.node_object.capacity,
            self.events.warning,
            gates=settings.feature_gates,
            retry_max=settings.volume_retry_interval_max,
            token_max_age=settings.token_max_age,
            ownership_notice=settings.ownership_notice,
            has_container_runtime=bool(settings.container_runtime_endpoint),
        )
        self.object_watch = ConfigMapSecretWatch(client, lambda watched: self.volumes.object_changed(watched))
        built_in = plugins.all_plugins(context, self.drivers, client.cache(CSIDriver))
        self._own_prober = None if flex_prober else FlexProber(settings.volume_plugin_dir, host)
        prober = flex_prober or self._own_prober
        assert prober is not None
        self.plugins = PluginRegistry(context, built_in, self.drivers, prober)
        self.volumes = VolumeManager(context, self.plugins, self.node_object, self.events, self.object_watch)
        self.csinode = CSINodeObject(client, self.node_object)
        self.watcher = PluginWatcher(
            paths,
            host,
            self.drivers,
            self.csinode,
            retry_max=settings.volume_retry_interval_max,
            interceptor=interceptor,
        )
        tasks = TaskRuntime(images, paths, ImagePermissions(client).find_denial_reason)
        shares = reservations or DescriptorReservations()
        services = ServiceNetwork(settings, self.name, client, host, shares.services)
        self.cri = (
            CriServices(
                settings,
                host,
                paths,
                client,
                self.events,
                self.name,
                is_builtin=lambda container: self.runtimes.is_builtin(container),
                hostname=hostname,
                relay_links=shares.relay_links,
                services=LinkedServices(services),
                on_health_changed=self._note_runtime_health,
                report=self._report_node_problem,
            )
            if settings.container_runtime_endpoint
            else None
        )
        self._processes: Runtime = (
            self.cri.runtime
            if self.cri is not None
            else processes
            or ProcessRuntime(
                paths.real(paths.containers),
                host,
                cover=(paths.root, *cover),
                shell=settings.shell_path,
                launcher=launcher,
            )
        )
        self.runtimes = Runtimes(tasks, self._processes)
        builder = ContainerSpecBuilder(
            context,
            _cluster_variables(settings),
            programs or ImageOverrides(),
            settings.node_ip,
            settings.seccomp_default,
            log_max_size=settings.log_max_size,
            log_max_files=settings.container_log_max_files,
            images_have_resolver=self.cri is not None,
            metadata=metadata_endpoint(settings),
        )
        self.network: NetworkProvider = (
            self.cri.sandboxes
            if self.cri is not None
            else PodNetwork(
                settings,
                host,
                paths,
                is_builtin=self.runtimes.is_builtin,
                on_range_chosen=self.node_object.set_pod_cidr,
                relay_links=shares.relay_links,
                services=BridgedServices(services),
            )
        )
        container_deps = ContainerDeps(
            self.runtimes,
            builder,
            self.events,
            self.network,
            images=self.cri.images if self.cri is not None else None,
            longest_backoff=settings.max_container_restart_period,
        )
        app_armor = NO_APP_ARMOR_SUPPORT if node_info.has_app_armor() else NO_APP_ARMOR
        allowed = sysctls.allow(settings.allowed_unsafe_sysctls)
        budget = DescriptorBudget(self.runtimes.is_builtin, self.node_object.set_pressure, shares)
        host_ports = HostPortAdmission()
        admission = PodAdmission(
            security=(partial(check_pod, allowed=allowed, app_armor=app_armor),),
            resources=(
                lambda pod: check_disk_pressure(
                    pod, disk_pressure=self.node_object.has_pressure(DISK_PRESSURE)
                ),
                host_ports.check,
                budget.check,
            ),
            on_admitted=host_ports.hold,
            on_started=budget.pod_started,
            on_stopped=host_ports.release,
            on_ended=budget.pod_ended,
        )
        self.limits = AttachLimits(self.drivers, client.cache(CSIDriver), self.csinode, self.volumes)
        pod_deps = PodDeps(
            client,
            self.volumes,
            container_deps,
            host_ip=settings.node_ip,
            mount_timeout=settings.pod_mount_timeout,
            admission=admission,
            find_mount_failure=self.limits.find_exceeded_limit,
        )
        self.pods = PodManager(client, self.name, pod_deps)
        self.api = KubeletApi(
            self.pods,
            host,
            paths,
            authenticator=KubeletAuthenticator(client, _authentication_options(settings)),
            authorizer=KubeletAuthorizer(client, self.name, _authorization_options(settings)),
            usage=self.cri.usage
            if self.cri is not None
            else ProcessUsageReader(host, self._list_running_containers),
            read_stats=self.cri.stats.read_summary if self.cri is not None else None,
        )
        self.eviction = EvictionManager(
            settings, host, paths, self.node_object, self.pods.workers, self.events
        )
        self._root = _RootDirectory(paths)
        self._stack = AsyncExitStack()
        self._tasks = TaskSet(self._note_failure)
        self._failed: asyncio.Future[None] | None = None
        self.pods_adopted = asyncio.Event()
        self._adopting = False

    # --- start

    async def run(self) -> None:
        """Start, and run until a part of the kubelet fails."""
        await self.start()
        await self.wait()

    async def start(self) -> None:
        """Raises LockHeld if another process uses this root directory."""
        self._failed = asyncio.get_running_loop().create_future()
        self._stack.callback(self._root.release)
        await finish_uncancelled(self.host.call(self._root.take))
        await self._prepare_disk()
        await self._stack.enter_async_context(self.events)
        self.wait_registry.add(self.wait_reports)
        self.wait_registry.add(self.compare_states, Question.VOLUMES)
        self.wait_registry.add(self.report_plugins, Question.PLUGINS)
        self.plugins.on_changed(self.volumes.driver_changed)
        self._stack.push_async_callback(self.plugins.close)
        if self._own_prober is not None:
            self._spawn(self._own_prober.run(), "flexvolume prober")
        await reconstruct_volumes(self.volumes)
        if isinstance(self._processes, ProcessRuntime):
            # Ready before the first container needs it. Not cancelled: its process would be orphaned.
            self._spawn(finish_uncancelled(self._processes.prepare()), "launcher")
        if self.cri is not None:
            await self.cri.health.check()
            self._spawn(self.cri.health.run(), "container runtime")
        await self._listen()
        await self._serve_metadata()
        await self.eviction.measure_disk()
        await self._register_node()
        self._spawn(self.node_object.run(), "node object")
        self._spawn(self.volumes.run(), "volume manager")
        self._spawn(self.watcher.run(), "plugin watcher")
        await self._adopt_pods()
        await self._start_certificate_rotation()
        self._spawn(self._republish(), "republish")
        self._spawn(self.limits.run(), "volume limits")
        self._spawn(self.eviction.run(), "eviction")
        self._spawn(self._context.devices.run(), "devices")
        claims = ClaimReader(self.client, self.volumes.desired_specs, self.volumes.claim_read)
        self._spawn(claims.run(self.settings.claim_read_frequency), "claims")
        stats = VolumeStats(self.volumes, self.events, self.settings.feature_gates)
        self._spawn(stats.run(self.settings.volume_stats_agg_period), "volume stats")
        if self.cri is not None:
            self._spawn(self.cri.logs.run(), "log rotation")
            self._spawn(self.cri.collector.run(), "image collection")
            sweeping = self.cri.sandboxes.sweep(lambda uid: uid in self.pods.workers)
            self._spawn(sweeping, "sandboxes of pods that are gone")

    async def _listen(self) -> None:
        """Serve the kubelet API, with the given certificate, one of the cluster, or one of the node's own."""
        settings = self.settings
        if not settings.enable_server:
            return
        if settings.tls_cert_file:
            await self._serve_api(settings.tls_cert_file, settings.tls_private_key_file)
        elif settings.rotate_server_certificates:
            self._spawn(self._listen_when_certified(), "serving certificate")
        else:
            from volplane.node import self_signed  # imported only when needed

            hosts = (self.name, settings.node_ip)
            made = self_signed.ensure_certificate
            await self._serve_api(*await self.host.call(made, pki_directory(settings), self.name, hosts))

    async def _serve_metadata(self) -> None:
        if port := self.settings.instance_metadata_port:
            metadata = InstanceMetadata(self.settings, self.name)
            server = await web.serve(metadata.handle, port=port)
            self._stack.push_async_callback(server.close, 0.0)

    async def _listen_when_certified(self) -> None:
        """Pods run meanwhile; only logs and exec wait for the certificate."""
        # These imports are large, and most nodes do not need them.
        from volplane.node import certificate_rotation, tls_bootstrap

        settings = self.settings

        async def certificate() -> str:
            directory = pki_directory(settings)
            return await tls_bootstrap.request_serving_certificate(
                self.client, name=self.name, address=settings.node_ip, directory=directory
            )

        try:
            pair = await certificate()
        except tls_bootstrap.BootstrapRefused as error:
            log.error("kubelet API is not served: %s", error)
            return
        context = await self._serve_api(pair, pair)
        self.node_object.write_status_soon()
        await certificate_rotation.rotate_serving_certificate(pair, self.host, certificate, context)

    async def _start_certificate_rotation(self) -> None:
        """Renew the client certificate if the cluster has issued it."""
        directory, transport = pki_directory(self.settings), self.client.transport
        given = f"{directory}/{CLIENT_CERTIFICATE_FILE}"
        if not (self.settings.rotate_certificates and isinstance(transport, HttpsTransport)):
            return
        if await self.host.call(os.path.exists, given):
            from volplane.node import certificate_rotation

            work = certificate_rotation.rotate_client_certificate(
                self.client, self.host, transport.use_certificate, name=self.name, directory=directory
            )
            self._spawn(work, "client certificate")

    async def _serve_api(self, certificate: str, key: str) -> ssl.SSLContext:
        settings = self.settings
        known = f"{pki_directory(settings)}/ca.crt"  # of the cluster that the node has joined
        clients = settings.client_ca_file or (known if await self.host.call(os.path.exists, known) else None)
        context = await self.host.call(tls.server_context, certificate, key, clients)
        address = settings.address or settings.node_ip
        server = await web.serve(self.api, host=address, port=settings.port, ssl=context)
        self._stack.push_async_callback(server.close, 0.0)
        self.node_object.port = server.port
        return context

    async def _list_running_containers(self) -> list[RunningContainer]:
        return [
            RunningContainer(state.spec.namespace, state.spec.pod_name, state.spec.name, state.pid)
            for state in await self._processes.states()
            if state.running and state.pid and state.spec is not None
        ]

    async def _prepare_disk(self) -> None:
        real = self.paths.real
        wanted = (self.paths.pods, self.paths.plugins, self.paths.registry, self.paths.containers)
        await self.host.call(_make_directories, self.paths.root, [real(p) for p in wanted])
        if self.settings.own_paths:
            await self.host.call(_make_directories, self.paths.dev, [])
        await self._share_root()
        self.node_object.system_info = await self.host.call(node_info.system_info, self.settings.instance_id)
        self.node_object.capacity = await self.host.call(
            node_info.capacity, self.paths.root, self.settings.max_pods, self.settings.capacity
        )

    async def _share_root(self) -> None:
        """Share mounts: what a driver mounts inside its container must appear here, and the reverse.

        Done before anything is mounted below: a later bind would leave a second, hidden copy of each mount.
        """
        table = await self.host.mounts()
        around = [e for e in table if _is_inside(self.paths.root, e.target)]
        containing = max(reversed(around), key=lambda e: len(e.target))  # the root is in it
        if not containing.is_shared:
            await finish_uncancelled(self.host.make_shared(self.paths.root))

    async def _register_node(self) -> None:
        """Create the Node and its CSINode, before the node is Ready."""
        await self.node_object.register()
        await self.csinode.ensure()

    async def _reregister_drivers(self) -> None:
        """Register the drivers again after the Node was recreated: its CSINode and labels are gone."""
        try:
            await self.csinode.ensure()
        except APIError as error:
            log.warning("CSINode of the recreated Node was not created: %s", error)
        for driver in self.drivers:
            await self.limits.refresh_limit(driver.name)

    async def _adopt_pods(self) -> None:
        await self.node_object.cache.wait_synced()
        await self.client.cache(CSIDriver).wait_synced()
        update_attachability(self.volumes)
        self.node_object.list_volumes_in_use = self.volumes.volumes_in_use
        self.node_object.report_volumes_in_use()
        self.node_object.set_ready(self.cri.health.problem if self.cri is not None else "")
        self._adopting = True
        await self.network.load()
        await self.pods.start()
        self.pods_adopted.set()

    def _note_runtime_health(self) -> None:
        assert self.cri is not None
        info = self.cri.info
        version = f"{info.name}://{info.version}"
        self.node_object.system_info = structs.replace(
            self.node_object.system_info, container_runtime_version=version
        )
        self.node_object.runtime_handlers = info.handlers
        if self._adopting:  # before, the node is not ready for other reasons
            self.node_object.set_ready(self.cri.health.problem)

    def _report_node_problem(self, reason: str, message: str) -> None:
        node = ObjectReference(kind="Node", name=self.name, uid=self.node_object.uid)
        self.events.warning(node, reason, message)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        self._tasks.start(work, f"{self.name}: {name}")

    def _note_failure(self, task: asyncio.Task[None], error: BaseException) -> None:
        assert self._failed is not None
        if not self._failed.done():
            self._failed.set_exception(error)

    async def _republish(self) -> None:
        """Tokens expire, and some drivers require that volumes are published again."""
        while True:
            await asyncio.sleep(self.settings.sync_frequency)
            self.volumes.remount_due()

    async def wait(self) -> None:
        """Until a part of the kubelet fails; raises its error."""
        assert self._failed is not None
        await asyncio.shield(self._failed)

    # --- what it reports

    def wait_reports(self) -> list[WaitReport]:
        """What volumes and pods wait for."""
        role = f"node/{self.name}"
        volumes = [WaitReport.of(role, w.key, w.wait, w.since, w.next_try) for w in self.volumes.waits]
        pods = self.pods.list_waits()
        return volumes + [WaitReport.of(role, key, wait, to_wall_time(since)) for key, wait, since in pods]

    async def compare_states(self) -> list[StateComparison]:
        """What its pods need beside what is mounted."""
        return [await self.volumes.compare_states()]

    async def report_plugins(self) -> list[PluginReport]:
        """The volume plugins of this node."""
        return [PluginReport(f"node/{self.name}", await describe_plugins(self.plugins))]

    async def has_leftovers(self) -> bool:
        """Whether there are mounts, pods or containers of an earlier run."""
        mounts, real = (await self.host.mounts()).under(self.paths.root), self.paths.real
        return any(e.target != self.paths.root for e in mounts) or any(
            _has_directories(real(place)) for place in (self.paths.pods, self.paths.containers)
        )

    # --- stop

    async def stop(self, *, drain: bool) -> None:
        """With `drain`, pods are stopped and volumes unmounted; without, everything is left as it is."""
        try:
            if drain:
                await self._drain()
        finally:
            await self._close()
        if drain:
            await self.network.remove()
        if self.cri is not None:
            await self.cri.close()

    async def _drain(self) -> None:
        if not self.volumes.ready_to_unmount:
            log.warning("node stopped before it adopted its pods: nothing is unmounted")
            return
        self.volumes.keep_pod_data()
        workers = list(self.pods.workers.values())
        first = [w for w in workers if self.volumes.uses_drivers(w.pod.uid)]
        deadline = clock.now() + self.settings.shutdown_grace_period
        try:
            async with asyncio.timeout_at(deadline):
                await self.pods.suspend(first, (deadline - clock.now()) * CONTAINERS_SHARE)
                await self.volumes.wait_until_drivers_unused()
                await self.pods.suspend(workers, (deadline - clock.now()) * CONTAINERS_SHARE)
                await self.volumes.wait_until_empty()
        except TimeoutError:
            left = "; ".join(f"{w.key}: {w.why}" for w in self.wait_reports())
            log.warning("not all volumes were unmounted in time: %s", left or "a container does not stop")
        try:
            async with asyncio.timeout(LAST_WRITE_TIMEOUT):
                await self.node_object.wait_until_written()
        except TimeoutError:
            log.warning("volumesInUse was not written before the stop")

    async def _close(self) -> None:
        self.wait_registry.remove(self.wait_reports)
        self.wait_registry.remove(self.compare_states, Question.VOLUMES)
        self.wait_registry.remove(self.report_plugins, Question.PLUGINS)
        await self.pods.close()
        await self._tasks.close()
        await self.object_watch.close()
        await self.network.close()
        await self.runtimes.close()
        await self._stack.aclose()
        await self._unshare_root()
        if self._failed is not None:
            self._failed.cancel()

    async def _unshare_root(self) -> None:
        """Undo `_share_root`, also if an earlier run did it: this one may be stopped before."""
        table, root = await self.host.mounts(), self.paths.root
        if table.is_on_itself(root) and all(e.target == root for e in table.under(root)):
            # Detach, because a driver's socket may still be open in it. Nothing is mounted below.
            await self.host.unmount(root, detach=True)


class _RootDirectory:
    """The root directory, locked: two kubelets in one would unmount each other's volumes."""

    def __init__(self, paths: NodePaths) -> None:
        self._path, self._lock = paths.root, -1
        self._pods, self._plugins = paths.real(paths.pods), paths.real(paths.plugins)

    def take(self) -> None:
        """Raises LockHeld, OSError."""
        _make_directories(self._path, [])
        self._lock = lock(f"{self._path}/{LOCK}", f"the node's directory {self._path}")
        claim_directory(self._path, lambda _: discard_original_state(self._path, self._pods, self._plugins))

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _make_directories(root: str, inside: list[str]) -> None:
    os.makedirs(root, mode=0o700, exist_ok=True)
    for path in inside:
        os.makedirs(path, mode=0o755, exist_ok=True)


def _has_directories(place: str) -> bool:
    try:
        with os.scandir(place) as entries:
            return any(entry.is_dir(follow_symlinks=False) for entry in entries)
    except FileNotFoundError:
        return False


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _authentication_options(settings: NodeOptions) -> AuthenticationOptions:
    return AuthenticationOptions(
        settings.anonymous_auth,
        settings.authentication_token_webhook,
        settings.authentication_token_webhook_cache_ttl,
    )


def _authorization_options(settings: NodeOptions) -> AuthorizationOptions:
    return AuthorizationOptions(
        settings.authorization_mode,
        frozenset(settings.api_server_names),
        settings.authorization_webhook_cache_authorized_ttl,
        settings.authorization_webhook_cache_unauthorized_ttl,
    )


def _cluster_variables(settings: NodeOptions) -> dict[str, str]:
    """The environment variables by which programs in containers find the API server."""
    if not settings.cluster_host:
        return {}
    host, port = settings.cluster_host, str(settings.cluster_port)
    address = f"tcp://{host}:{port}"
    return {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
        "KUBERNETES_PORT": address,
        f"KUBERNETES_PORT_{port}_TCP": address,
        f"KUBERNETES_PORT_{port}_TCP_PROTO": "tcp",
        f"KUBERNETES_PORT_{port}_TCP_PORT": port,
        f"KUBERNETES_PORT_{port}_TCP_ADDR": host,
    }


async def run(
    settings: NodeOptions,
    client: Client,
    host: Host,
    images: Mapping[str, TaskImage],
    *,
    stop: asyncio.Event | None = None,
    cover: tuple[str, ...] = (),
    programs: ImageOverrides | None = None,
    wait_registry: WaitRegistry | None = None,
    interceptor: CallInterceptor | None = None,
) -> None:
    """Run a node until `stop` is set, then drain it; or until cancelled, then leave everything mounted."""
    node = Kubelet(
        settings,
        client,
        host,
        images,
        cover=cover,
        programs=programs,
        wait_registry=wait_registry,
        interceptor=interceptor,
    )
    running = asyncio.create_task(node.run(), name=f"{node.name}: node")
    stop_requested = asyncio.create_task((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait({running, stop_requested}, return_when=asyncio.FIRST_COMPLETED)
        if stop_requested.done():
            await _wait_until_adopted(node, running)
    finally:
        drain = stop_requested.done()
        for task in (running, stop_requested):
            task.cancel()
        await asyncio.wait({running, stop_requested})
        await node.stop(drain=drain)
    if not running.cancelled():
        running.result()


async def _wait_until_adopted(node: Kubelet, running: asyncio.Task[None]) -> None:
    """During a start: leftovers of an earlier run can be unmounted only once they have been adopted."""
    if not await node.has_leftovers():
        return
    adopted = asyncio.create_task(node.pods_adopted.wait())
    await asyncio.wait({running, adopted}, timeout=ADOPTION_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    adopted.cancel()
