"""One node, put together: what it starts in which order, and how it stops.

Start: the disk is read first, without the API; then the Node appears, drivers register, and the pods are
taken up again. Stop with a drain: pods that use staged volumes go first, because the pods that run their
drivers must still be there to unmount them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial

from volplane import web
from volplane.api.core import Pod
from volplane.api.errors import APIError
from volplane.api.storage import CSIDriver
from volplane.base.locks import lock
from volplane.base.place import claim
from volplane.client.client import Client
from volplane.client.https import Https
from volplane.host import Host, NodePaths
from volplane.loops.events import Recorder
from volplane.loops.wait_reports import WaitRegistry, WaitReport, to_wall_time
from volplane.node import machine
from volplane.node.admission import Admission
from volplane.node.api import KubeletApi
from volplane.node.containers.base import Runtime
from volplane.node.containers.launch import Launcher
from volplane.node.containers.process import ProcessRuntime
from volplane.node.containers.task import TaskImage, TaskRuntime
from volplane.node.copied import forget_original
from volplane.node.csinode import CSINodeObject
from volplane.node.descriptor_budget import DescriptorBudget
from volplane.node.eviction.controller import Eviction
from volplane.node.eviction.plan import check_disk_pressure
from volplane.node.growth import ClaimReader
from volplane.node.limits import Limits
from volplane.node.manager import VolumeManager, Waiting
from volplane.node.network import PodNetwork
from volplane.node.permissions import ImagePermissions
from volplane.node.plugins import PluginWatcher
from volplane.node.pods.building import Builder
from volplane.node.pods.container import Kit, finished
from volplane.node.pods.keeper import Pods
from volplane.node.pods.runtimes import Runtimes
from volplane.node.pods.security_context import NO_APP_ARMOR, NOT_BY_US, check_pod
from volplane.node.pods.worker import Shared
from volplane.node.programs import Programs
from volplane.node.reconstruct import attachability, reconstruct
from volplane.node.settings import CLIENT_PAIR, NodeSettings, pki_of
from volplane.node.sources import Sources
from volplane.node.stats import VolumeStats
from volplane.node.status import DISK_PRESSURE, NodeObject
from volplane.rules import sysctls
from volplane.volumes import kinds
from volplane.volumes.base import Plugin, Site, Spec
from volplane.volumes.csi import Drivers
from volplane.web import tls

log = logging.getLogger(__name__)

LOCK = "node.lock"
FAREWELL = 2.0  # seconds for the last writes of a node that stops
TAKE_OVER = 15.0  # seconds for a start that is stopped to find out what runs here


class NodeRole:
    def __init__(
        self,
        settings: NodeSettings,
        client: Client,
        host: Host,
        images: Mapping[str, TaskImage],
        *,
        processes: Runtime | None = None,
        launcher: Launcher | None = None,
        cover: tuple[str, ...] = (),
        programs: Programs | None = None,
        wait_registry: WaitRegistry | None = None,
    ) -> None:
        """`processes`: another runtime for what is no built-in image; `launcher`: one for several nodes;
        `cover`: paths that no container may see; `programs`: those that stand for images.
        """
        self.settings, self.client, self.host = settings, client, host
        self.wait_registry = wait_registry or WaitRegistry()
        self.name = settings.hostname_override or os.uname().nodename.lower()
        self.paths = paths = NodePaths(settings.root_dir, identity=not settings.own_paths)
        self.object = NodeObject(client, settings, self.name)
        self.events = Recorder(client, "kubelet", self.name)
        self.drivers = Drivers(settings.csi_timeout)
        site = Site(
            self.name,
            host,
            paths,
            client,
            lambda: self.object.capacity,
            self.events.warning,
            gates=settings.feature_gates,
            retry_max=settings.volume_retry_interval_max,
            token_max_age=settings.token_max_age,
            ownership_notice=settings.ownership_notice,
        )
        self.volumes = VolumeManager(
            site, kinds.all_plugins(site, self.drivers, client.cache(CSIDriver)), self.object, self.events
        )
        self.sources = Sources(client, self.volumes)
        self.csinode = CSINodeObject(client, self.object)
        self.watcher = PluginWatcher(
            paths, host, self.drivers, self.csinode, retry_max=settings.volume_retry_interval_max
        )
        self._processes = processes or ProcessRuntime(
            paths.real(paths.containers), host, cover=(paths.root, *cover), launcher=launcher
        )
        tasks = TaskRuntime(images, paths, ImagePermissions(client).why_not)
        self.runtimes = Runtimes(tasks, self._processes)
        builder = Builder(
            site,
            _cluster_variables(settings),
            programs or Programs(),
            settings.node_ip,
            settings.seccomp_default,
            log_max_size=settings.log_max_size,
            log_max_files=settings.container_log_max_files,
        )
        self.network = PodNetwork(settings, host, paths, is_builtin=self.runtimes.is_builtin)
        self.network.on_range = self.object.set_pod_cidr
        kit = Kit(
            self.runtimes,
            builder,
            self.events,
            self.network,
            longest_backoff=settings.max_container_restart_period,
        )
        shared = Shared(
            client,
            self.volumes,
            kit,
            host_ip=settings.node_ip,
            mount_timeout=settings.pod_mount_timeout,
        )
        app_armor = NOT_BY_US if machine.has_app_armor() else NO_APP_ARMOR
        allowed = sysctls.allow(settings.allowed_unsafe_sysctls)
        budget = DescriptorBudget(self.runtimes.is_builtin, self.object.set_pressure)
        self.object.on_heartbeat = budget.look
        shared.admission = Admission(
            security=(partial(check_pod, allowed=allowed, app_armor=app_armor),),
            resources=(
                lambda pod: check_disk_pressure(pod, disk_pressure=self.object.has_pressure(DISK_PRESSURE)),
                budget.check,
            ),
            on_started=budget.pod_started,
            on_ended=budget.pod_ended,
        )
        self.pods = Pods(client, self.name, shared)
        self.api = KubeletApi(self.pods, host, paths, allowed=settings.api_server_names)
        self.limits = Limits(self.drivers, client.cache(CSIDriver), self.csinode, self.volumes)
        self.pods.shared.hopeless = self.limits.exceeded
        self.eviction = Eviction(settings, host, paths, self.object, self.pods.workers, self.events)
        self._root = _Root(paths)
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] | None = None
        self.taken_over = asyncio.Event()

    # --- start

    async def run(self) -> None:
        """Start, and go on until a part of the node breaks."""
        await self.start()
        await self.wait()

    async def start(self) -> None:
        """Raises Locked if another node's process has this root."""
        self._failed = asyncio.get_running_loop().create_future()
        self._stack.callback(self._root.release)
        await finished(self.host.call(self._root.take))
        await self._prepare_disk()
        await self._stack.enter_async_context(self.events)
        self.wait_registry.add(self.wait_reports)
        self.drivers.on_added(self.volumes.driver_added)
        self.object.on_reported = self.volumes.kick_all
        self.object.on_attached = self.volumes.kick_all
        self.object.found = self.volumes.in_use
        self.object.on_made_again = lambda: self._spawn(self._introduce(), "drivers of a new Node")
        await reconstruct(self.volumes)
        if isinstance(self._processes, ProcessRuntime):
            # Ready before the first container needs it; to its end, or its process would belong to nobody.
            self._spawn(finished(self._processes.prepare()), "launcher")
        await self._listen()
        await self.eviction.look()
        await self._join()
        self._spawn(self.object.run(), "node object")
        self._spawn(self.watcher.run(), "plugin watcher")
        await self._take_over()
        await self._renew()
        self._spawn(self._republish(), "republish")
        self._spawn(self.limits.run(), "volume limits")
        self._spawn(self.eviction.run(), "eviction")
        self._spawn(ClaimReader(self.volumes).run(self.settings.claim_read_frequency), "claims")
        stats = VolumeStats(self.volumes, self.events, self.settings.feature_gates)
        self._spawn(stats.run(self.settings.volume_stats_agg_period), "volume stats")

    async def _listen(self) -> None:
        """The kubelet's API; without a certificate there is none."""
        settings = self.settings
        if settings.tls_cert_file:
            await self._open(settings.tls_cert_file, settings.tls_private_key_file)
        elif settings.rotate_server_certificates:
            self._spawn(self._listen_when_certified(), "serving certificate")

    async def _listen_when_certified(self) -> None:
        """Pods run meanwhile; only logs and commands have to wait for the certificate."""
        # What they need is large, and most nodes do not need it.
        from volplane.node import joining, renewing

        settings = self.settings

        async def certificate() -> str:
            directory = pki_of(settings)
            return await joining.serving(
                self.client, name=self.name, address=settings.node_ip, directory=directory
            )

        try:
            pair = await certificate()
        except joining.NotLetIn as error:
            log.error("nobody can reach this node's API: %s", error)
            return
        context = await self._open(pair, pair)
        self.object.say_again()
        await renewing.keep_serving(pair, self.host, certificate, context)

    async def _renew(self) -> None:
        """Whoever was given a certificate by the cluster asks for the next one in time."""
        directory, transport = pki_of(self.settings), self.client.transport
        given = f"{directory}/{CLIENT_PAIR}"
        if not (self.settings.rotate_certificates and isinstance(transport, Https)):
            return
        if await self.host.call(os.path.exists, given):
            from volplane.node import renewing

            work = renewing.keep_client(
                self.client, self.host, transport.show, name=self.name, directory=directory
            )
            self._spawn(work, "client certificate")

    async def _open(self, certificate: str, key: str) -> ssl.SSLContext:
        settings = self.settings
        known = f"{pki_of(settings)}/ca.crt"  # of the cluster that has let this machine in
        clients = settings.client_ca_file or (known if await self.host.call(os.path.exists, known) else None)
        context = await self.host.call(tls.server_context, certificate, key, clients)
        server = await web.serve(self.api, host=settings.address, port=settings.port, ssl=context)
        self._stack.push_async_callback(server.close, 0.0)
        self.object.port = server.port
        return context

    async def _prepare_disk(self) -> None:
        real = self.paths.real
        wanted = (self.paths.pods, self.paths.plugins, self.paths.registry, self.paths.containers)
        await self.host.call(_make_directories, self.paths.root, [real(p) for p in wanted])
        if self.settings.own_paths:
            await self.host.call(_make_directories, self.paths.dev, [])
        await self._share_root()
        self.object.info = await self.host.call(machine.system_info, self.settings.instance_id)
        self.object.capacity = await self.host.call(
            machine.capacity, self.paths.root, self.settings.max_pods, self.settings.capacity
        )

    async def _share_root(self) -> None:
        """What a driver mounts inside its container must appear here, and the reverse.

        Done before anything is mounted below: a later bind would leave a second, hidden copy of each mount.
        """
        table = await self.host.mounts()
        around = [e for e in table if _is_inside(self.paths.root, e.target)]
        above = max(reversed(around), key=lambda e: len(e.target))  # the mount that the root lies in
        if not above.shared:
            await finished(self.host.make_shared(self.paths.root))

    async def _join(self) -> None:
        """The Node and its CSINode are there before anybody is told that we are ready."""
        await self.object.register()
        await self.csinode.ensure()

    async def _introduce(self) -> None:
        """The Node is another one than the drivers were told to: its CSINode and labels are gone."""
        try:
            await self.csinode.ensure()
        except APIError as error:
            log.warning("the CSINode of the new Node was not made: %s", error)
        for driver in self.drivers:
            await self.limits.ask(driver.name)

    async def _take_over(self) -> None:
        await self.object.cache.synced()
        await self.client.cache(CSIDriver).synced()
        attachability(self.volumes)
        self.object.in_use = self.volumes.in_use
        self.object.report()
        self.object.set_ready()
        await self.network.load()
        await self.pods.start()
        self.taken_over.set()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"{self.name}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert self._failed is not None
            if not self._failed.done():
                self._failed.set_exception(error)

    async def _republish(self) -> None:
        """The backstop: tokens grow old, and drivers may want to be asked again."""

        def is_due(plugin: Plugin, spec: Spec) -> bool:
            return plugin.is_refreshed(spec)

        while True:
            await asyncio.sleep(self.settings.sync_frequency)
            self.volumes.refresh(is_due)

    async def wait(self) -> None:
        """Until a part of the node breaks; raises what broke it."""
        assert self._failed is not None
        await asyncio.shield(self._failed)

    # --- what it tells

    def waits(self) -> list[Waiting]:
        return [*self.volumes.waits(), *self.pods.waits()]

    def wait_reports(self) -> list[WaitReport]:
        return [
            WaitReport(
                f"node/{self.name}",
                w.key,
                w.why,
                to_wall_time(w.since),
                to_wall_time(w.next_try) if w.next_try else None,
            )
            for w in self.waits()
        ]

    async def has_remains(self) -> bool:
        """Whether mounts, pods or containers are here."""
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

    async def _drain(self) -> None:
        if not self.volumes.settled:
            log.warning("the node had not found out what runs here: everything is left as it is")
            return
        self.volumes.suspend()
        workers = list(self.pods.workers.values())
        first = [w for w in workers if self._uses_devices(w.pod)]
        try:
            async with asyncio.timeout(self.settings.shutdown_grace_period):
                await self.pods.suspend(first)
                await self.volumes.unstaged()
                await self.pods.suspend(workers)
                await self.volumes.emptied()
        except TimeoutError:
            left = "; ".join(f"{w.key}: {w.why}" for w in self.waits())
            log.warning("not everything was unmounted in time: %s", left or "a container does not end")
        try:
            async with asyncio.timeout(FAREWELL):
                await self.object.written()
        except TimeoutError:
            log.warning("the last volumesInUse was not written")

    def _uses_devices(self, pod: Pod) -> bool:
        return any(
            e.staged for e in self.volumes.entries.values() if pod.uid in e.wanted or pod.uid in e.pods
        )

    async def _close(self) -> None:
        self.wait_registry.remove(self.wait_reports)
        await self.pods.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.volumes.close()
        await self.sources.close()
        await self.network.close()
        await self.runtimes.close()
        await self._stack.aclose()
        await self._unshare_root()
        if self._failed is not None:
            self._failed.cancel()

    async def _unshare_root(self) -> None:
        """Also when an earlier life has shared it: this one may be stopped before it comes to that."""
        table, root = await self.host.mounts(), self.paths.root
        if table.is_on_itself(root) and all(e.target == root for e in table.under(root)):
            # A driver's socket may still be open in it; nothing is mounted below, so nothing is hidden.
            await self.host.unmount(root, detach=True)


class _Root:
    """A node's directory, locked: two nodes on one would unmount each other's volumes."""

    def __init__(self, paths: NodePaths) -> None:
        self._path, self._lock = paths.root, -1
        self._pods, self._plugins = paths.real(paths.pods), paths.real(paths.plugins)

    def take(self) -> None:
        """Raises Locked, OSError."""
        _make_directories(self._path, [])
        self._lock = lock(f"{self._path}/{LOCK}", f"the node's directory {self._path}")
        claim(self._path, lambda _: forget_original(self._path, self._pods, self._plugins))

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


def _cluster_variables(settings: NodeSettings) -> dict[str, str]:
    """How programs in containers find the API server."""
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
    settings: NodeSettings,
    client: Client,
    host: Host,
    images: Mapping[str, TaskImage],
    *,
    stop: asyncio.Event | None = None,
    cover: tuple[str, ...] = (),
    programs: Programs | None = None,
    wait_registry: WaitRegistry | None = None,
) -> None:
    """A node until `stop` is set (then it drains) or the task is cancelled (then everything is left)."""
    node = NodeRole(
        settings, client, host, images, cover=cover, programs=programs, wait_registry=wait_registry
    )
    life = asyncio.create_task(node.run(), name=f"{node.name}: life")
    asked = asyncio.create_task((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait({life, asked}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            await _taken_over(node, life)
    finally:
        drain = asked.done()
        for task in (life, asked):
            task.cancel()
        await asyncio.wait({life, asked})
        await node.stop(drain=drain)
    if not life.cancelled():
        life.result()


async def _taken_over(node: NodeRole, life: asyncio.Task[None]) -> None:
    """Stopped while it starts: what an earlier life left can be taken down only when it is known."""
    if not await node.has_remains():
        return
    known = asyncio.create_task(node.taken_over.wait())
    await asyncio.wait({life, known}, timeout=TAKE_OVER, return_when=asyncio.FIRST_COMPLETED)
    known.cancel()
