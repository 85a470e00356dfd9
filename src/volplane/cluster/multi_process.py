"""A cluster with one process per role, over HTTPS.

A role that ends is restarted; a node that was crashed on purpose stays down until it is started. The roles
hold the read end of a pipe, and this process the write end: when this process ends, for whatever reason, the
roles end at once, so that none of them uses the data directory at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Self

import msgspec

from volplane.api.core import Namespace
from volplane.api.errors import Timeout, Unavailable
from volplane.apiserver.auth.certificates import CertificateAuthority
from volplane.apiserver.auth.kubeconfig import write as write_kubeconfig
from volplane.apiserver.auth.well_known_users import MASTERS, NODES
from volplane.base import clock
from volplane.base.backoff import Backoff, Failures, constant
from volplane.base.files import atomic_write
from volplane.base.log import FILE
from volplane.base.retry import retry
from volplane.base.tasks import background, cancel_and_wait
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.cluster import power_loss, readiness, user_drivers
from volplane.cluster.apply import DRIVERS, ROLES, WITHOUT_DRIVERS, WITHOUT_PODS, apply
from volplane.cluster.aws_objects import apply_aws_objects, cloud_variables, disk_service_url
from volplane.cluster.container_runtime import end_other_containers, prepare_runtime
from volplane.cluster.data_directory import REGION, ClusterMember, DataDirectory
from volplane.cluster.data_version import open_directory
from volplane.cluster.errors import ClusterNotReady, RoleFailed
from volplane.cluster.live_page import ON, issue_page_link, serve_live_page
from volplane.cluster.probe_surroundings import prepare_probe, remove_probe
from volplane.cluster.role_control import RoleCannotChange, describe_crash, serve_role_control
from volplane.cluster.role_files import RoleFiles
from volplane.cluster.saved_options import load_options, save_options
from volplane.cluster.single_process import (
    ClusterOptions,
    cloud_options,
    expected_drivers,
    node_options,
    options_to_save,
    prepare_ports_and_keys,
    recording_options,
    runtime_endpoint,
    runtime_endpoints,
)
from volplane.cluster.user_drivers import NO_USER_DRIVERS, DiscoveredDrivers, UserDrivers
from volplane.dashboard.entrance import LivePage
from volplane.host import Host, network
from volplane.host.processes import Process
from volplane.node.containers.cri import cni
from volplane.node.options import NodeOptions
from volplane.store.sqlite.space import SpaceReserve

log = logging.getLogger(__name__)

RESTART = Backoff(0.05, 5.0)  # between two starts of a role that keeps dying
POLL = constant(0.05)  # while a role starts
STABLE_FACTOR = 10  # a role that ran this many times its last restart delay does not count as failing
LIFELINE = "VOLPLANE_LIFELINE"
WAITS = "VOLPLANE_WAITS"  # environment variable: the socket for a role's wait reports
# Blocked until a role has installed its handlers: a role that is stopped early may have to remove what an
# earlier run has left.
BLOCKED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
WAIT_TIMEOUT = 30.0
NO_LEADER_ELECTION = "--leader-elect=false"  # there is one process of each role, which is restarted at once
GIVE_UP = 5.0  # seconds during a start after which a role that keeps ending counts as failed


class MultiProcessCluster:
    """`async with MultiProcessCluster(options) as cluster:` like `Cluster`, with one process per role."""

    def __init__(self, settings: ClusterOptions, drivers: UserDrivers = NO_USER_DRIVERS) -> None:
        self.settings, self.user_drivers = settings, drivers
        self.discovered = DiscoveredDrivers(NO_USER_DRIVERS)
        self.live_page: LivePage | None = None
        self.layout = DataDirectory(settings.data_dir)
        self.members = self.layout.members(settings.nodes, settings.nodes_per_zone)
        self.runs = RoleFiles(self.layout.run)
        self._stack = AsyncExitStack()
        self._supervisors: dict[str, asyncio.Task[None]] = {}
        self._processes: dict[str, Process] = {}
        self._marker_removed = asyncio.Event()
        self._is_up = False

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # --- start

    async def _start(self) -> None:
        if self.layout.create():
            self._stack.push_async_callback(self._discard)
        # On a full disk a role could not even log why it ends.
        SpaceReserve(str(self.layout.state)).require_space()
        self._stack.callback(os.close, open_directory(self.layout))
        self.layout.remove_wait_report_sockets()
        self._stack.callback(self.layout.release)
        self.memory = prepare_ports_and_keys(self.layout, self.settings)
        self.url = f"https://127.0.0.1:{self.memory.port}"
        self.authority = CertificateAuthority(self.layout.directory / "pki")
        self.host = Host()
        self._stack.push_async_callback(self.host.close)
        if self.settings.container_runtime_endpoint:
            await prepare_runtime(self.settings.container_runtime_endpoint, self.host)
        before = load_options(self.layout).runtime
        await end_other_containers(runtime_endpoints(self.members, self.settings), before, self.host)
        self._lifeline = os.pipe()
        self._stack.callback(self._cut_lifeline)
        self._stack.callback(self.layout.ready.unlink, missing_ok=True)
        self.runs.write("up", os.getpid())
        self._stack.push_async_callback(self._stop)
        self._start_role("cloud", self._cloud())
        self._start_role("apiserver", self._apiserver())
        await self._connect()
        self.layout.save(self.memory)
        await self._apply((ROLES,))  # before the roles that need them start
        await self._wait_unless_role_failed(self._wait_for_cloud())
        self.discovered = await self._discover_drivers()
        self._start_role("controller-manager", self._manager())
        login = ["--kubeconfig", self._write_kubeconfig("system:kube-scheduler")]
        self._start_role("scheduler", [*login, NO_LEADER_ELECTION])
        # Links in a node's /dev may be from before a reboot until the disk service, which runs now, has
        # repaired them.
        for member in self.members:
            self._start_role(f"node/{member.name}", self._node(member))
        with save_options(self.layout, options_to_save(self.user_drivers, self.settings)):
            await self._deploy()
        if self.settings.ui == ON:
            page = serve_live_page(self.layout, self._transport, self.settings.ui_port)
            self.live_page = await self._stack.enter_async_context(page)
        await self._stack.enter_async_context(serve_role_control(str(self.layout.role_control), self))

    async def _discover_drivers(self) -> DiscoveredDrivers:
        await self._retry_unavailable(lambda: remove_probe(self.client))
        self.user_drivers = self.user_drivers.with_cloud(cloud_variables(self.memory))
        if not self.user_drivers.drivers or self.user_drivers.facts:
            return await user_drivers.discover_drivers(self.user_drivers, self.host)
        async with prepare_probe(self.client, self.layout, self.host) as surroundings:
            return await user_drivers.discover_drivers(self.user_drivers, self.host, surroundings)

    async def _deploy(self) -> None:
        builtin = self.user_drivers.builtin
        await self._apply(WITHOUT_PODS if builtin else WITHOUT_DRIVERS)
        await self._retry_unavailable(lambda: apply_aws_objects(self.client, self.memory))
        await self._wait_unless_role_failed(
            readiness.wait_for_first_nodes(self.client, self._running_members())
        )
        await self._apply(DRIVERS if builtin else ())
        if things := self.discovered.manifests(str(self.layout.driver_shares)):
            await user_drivers.apply(self._transport, things)

    async def _apply(self, manifests: Iterable[str]) -> None:
        """Apply manifests, even if the API server restarts meanwhile. Existing objects stay as they are."""
        await self._retry_unavailable(lambda: apply(self.client, manifests))

    async def _retry_unavailable(self, work: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.timeout(WAIT_TIMEOUT):
            await retry(
                work,
                on=(Unavailable, Timeout),
                backoff=POLL,
                report=lambda error: log.warning("the manifests are not applied yet: %s", error),
            )

    async def _connect(self) -> None:
        self._transport = transport = kubeconfig.load(self._write_kubeconfig("volplane", MASTERS))
        self._stack.push_async_callback(transport.close)
        self.client = Client(transport, component="volplane")
        self._stack.push_async_callback(self.client.close)
        await self._wait_unless_role_failed(self._wait_for_apiserver())

    async def _wait_for_cloud(self) -> None:
        try:
            async with asyncio.timeout(WAIT_TIMEOUT):
                _, writer = await retry(
                    lambda: asyncio.open_connection("127.0.0.1", self.memory.cloud_port),
                    on=ConnectionError,
                    backoff=POLL,
                )
                writer.close()
        except TimeoutError:
            raise ClusterNotReady(f"the disk service does not answer: see {self.runs.log('cloud')}") from None

    async def _wait_for_apiserver(self) -> None:
        try:
            async with asyncio.timeout(WAIT_TIMEOUT):
                await self.client.cache(Namespace).wait_synced()
        except TimeoutError:
            raise ClusterNotReady(
                f"the API server does not answer: see {self.runs.log('apiserver')}"
            ) from None

    async def _wait_unless_role_failed(self, work: Awaitable[None]) -> None:
        """Wait for `work`, or raise the error of a role that does not start."""
        async with background(work) as (waited,):
            await asyncio.wait({waited, *self._supervisors.values()}, return_when=asyncio.FIRST_COMPLETED)
            for supervisor in self._supervisors.values():
                if supervisor.done():
                    supervisor.result()
            await waited

    def _write_kubeconfig(self, user: str, *groups: str) -> str:
        """Write a kubeconfig with a client certificate for a role."""
        name = user.replace(":", "-")
        pair = self.authority.client(f"client-{name}", user, groups)
        path = self.layout.run / f"{name}.kubeconfig"
        write_kubeconfig(path, server=self.url, ca=self.authority.pair.cert, user=user, pair=pair)
        return str(path)

    def _cloud(self) -> list[str]:
        settings = cloud_options(self.layout, self.memory, self.members, self.settings)
        instances = self.layout.run / "instances.json"
        atomic_write(str(instances), msgspec.json.encode(settings.instances))
        zones = ",".join(settings.zones)
        where = ["--data-dir", settings.data_dir, "--port", str(settings.port), "--zones", zones]
        chosen = [f"--thin={settings.thin}", *([f"--latency={settings.latency}"] if settings.latency else [])]
        return [*where, *chosen, "--instances-file", str(instances)]

    def _apiserver(self) -> list[str]:
        settings = self.settings
        return [
            f"--data-dir={self.layout.directory}",
            f"--port={self.memory.port}",
            f"--default-not-ready-toleration-seconds={settings.default_not_ready_toleration_seconds}",
            f"--default-unreachable-toleration-seconds={settings.default_unreachable_toleration_seconds}",
        ]

    def _manager(self) -> list[str]:
        settings = self.settings
        return [
            "--kubeconfig",
            self._write_kubeconfig("system:kube-controller-manager"),
            NO_LEADER_ELECTION,
            "--root-ca-file",
            str(self.authority.pair.cert_path),
            f"--controllers={','.join(settings.controllers)}",
            f"--http-endpoint=127.0.0.1:{self.memory.controller_manager_port}",
            f"--cluster-signing-cert-file={self.authority.pair.cert_path}",
            f"--cluster-signing-key-file={self.authority.pair.key_path}",
            f"--pvclaimbinder-sync-period={settings.pvclaimbinder_sync_period}",
            f"--node-monitor-grace-period={settings.node_monitor_grace_period}",
            f"--max-wait-for-unmount={settings.max_wait_for_unmount}",
            f"--disable-force-detach-on-timeout={str(settings.disable_force_detach_on_timeout).lower()}",
            f"--wait-for-deleted-nodes={str(settings.wait_for_deleted_nodes).lower()}",
            f"--flex-volume-plugin-dir={settings.volume_plugin_dir}",
            f"--enable-distributed-snapshotting={str(self.user_drivers.may_snapshot_on_nodes).lower()}",
        ]

    def _node(self, member: ClusterMember) -> list[str]:
        settings = node_options(self.authority, member, self.memory, self.settings)
        plain = NodeOptions()
        flags = ["--kubeconfig", self._write_kubeconfig(f"system:node:{member.name}", NODES)]
        for field in NodeOptions.__struct_fields__:
            value = getattr(settings, field)
            if value != getattr(plain, field):
                shown = ",".join(value) if isinstance(value, tuple) else value
                flags.append(f"--{field.replace('_', '-')}={shown}")
        if self.settings.latency:
            flags.append(f"--latency={self.settings.latency}")
        if self.user_drivers.programs:
            file = self.layout.run / "programs.json"
            atomic_write(str(file), msgspec.json.encode(self.user_drivers.programs))
            flags.append(f"--programs-file={file}")
        return [*flags, f"--shared-dir={self.layout.shared}", f"--cover={self.layout.directory}"]

    def _environment(self, role: str, *, again: bool) -> dict[str, str]:
        memory = self.memory
        own = {k: v for k, v in os.environ.items() if k.startswith(("VOLPLANE_", "PYTHON", "OTEL_"))}
        if again:
            own.pop("VOLPLANE_FAILPOINT", None)  # kill a role there only once: the next process must recover
        return {
            **own,
            FILE: str(self.runs.log(role)),
            LIFELINE: str(self._lifeline[0]),
            WAITS: str(self.layout.wait_report_socket(role)),
            **recording_options(self.layout, self.settings).to_environment(role),
            "AWS_ENDPOINT_URL": disk_service_url(memory),
            "AWS_ACCESS_KEY_ID": memory.access_key,
            "AWS_SECRET_ACCESS_KEY": memory.secret_key,
            "AWS_DEFAULT_REGION": REGION,
        }

    # --- supervise

    def _start_role(self, role: str, arguments: list[str], *, verb: str = "") -> None:
        """Start and supervise a role. Its name is `verb` or `verb/instance`, unless the verb is given."""
        argv = [sys.executable, "-m", "volplane", verb or role.partition("/")[0], *arguments]
        self._supervisors[role] = asyncio.create_task(self._supervise_role(role, argv), name=role)

    async def _supervise_role(self, role: str, argv: list[str]) -> None:
        failures, again, failing = Failures(RESTART), False, 0.0
        delay = failures.next_delay()
        while True:
            await self._wait_while_crashed(role)
            began = clock.now()
            env = self._environment(role, again=again)
            again = True
            process = await self.host.spawn(
                argv,
                fds=[self._lifeline[0]],
                log=str(self.runs.log(role)),
                env=env,
                blocked_signals=BLOCKED_SIGNALS,
            )
            self._processes[role] = process
            self.runs.write(role, process.pid)
            if self.runs.crash_marker(role).exists():  # crashed during its start
                process.kill()
            code = await process.wait()
            self._handle_role_exit(role)
            lived = clock.now() - began
            # Killed, or it ran for a while: it is able to start.
            failing = 0.0 if code < 0 or lived > GIVE_UP else failing or began
            if failing and not self._is_up and clock.now() - failing > GIVE_UP:
                raise RoleFailed(f"{role} does not start: {self.runs.last_log_line(role)}")
            log.warning("%s ended with %d; starting it again", role, code, extra={"log": self.runs.log(role)})
            if lived > STABLE_FACTOR * delay:
                failures.reset()
            delay = failures.next_delay()
            await asyncio.sleep(delay)

    def _handle_role_exit(self, role: str) -> None:
        """Called for each process that ends by itself, before the role is restarted. For tests."""

    async def _wait_while_crashed(self, role: str) -> None:
        while self.runs.crash_marker(role).exists():
            self._marker_removed.clear()
            await self._marker_removed.wait()

    async def wait_ready(self) -> None:
        members = self._running_members()
        await self._wait_unless_role_failed(
            readiness.wait_ready(self.client, members, expected_drivers(self.discovered, members))
        )
        self._is_up = True
        self.layout.ready.write_text(f"{os.getpid()}\n")

    def _running_members(self) -> list[ClusterMember]:
        """All nodes except those that were crashed on purpose."""
        return [m for m in self.members if not self.runs.is_crashed(m.name)]

    # --- crash and start

    async def crash_role(self, role: str) -> str:
        self._check_role(role)
        if role.startswith("node/"):
            return await self._crash_node(role)
        if not await self._kill(role):
            raise RoleCannotChange(f"{role} does not run at this moment: it is restarted")
        return f"{role} was killed, and is restarted"

    async def issue_page_link(self) -> str:
        return issue_page_link(self.live_page)

    async def start_role(self, role: str) -> str:
        self._check_role(role)
        marker = self.runs.crash_marker(role)
        if not marker.exists():
            raise RoleCannotChange(f"{role} is not down: only a crashed node stays down")
        marker.unlink()
        self._marker_removed.set()
        return f"{role} is starting"

    def _check_role(self, role: str) -> None:
        if role not in self._supervisors:
            raise RoleCannotChange(
                f"this cluster has no role {role}; its roles: {', '.join(self._supervisors)}"
            )

    async def _crash_node(self, role: str) -> str:
        marker = self.runs.crash_marker(role)
        if marker.exists():
            raise RoleCannotChange(f"{role} is down already")
        marker.touch()
        await self._kill(role)
        (member,) = (m for m in self.members if role == f"node/{m.name}")
        await power_loss.lose_power(member.root, self.host, runtime_endpoint(member, self.settings))
        return describe_crash(role, self.layout.directory)

    async def _kill(self, role: str) -> bool:
        """Kill the role's process. Returns whether it ran."""
        process = self._processes.get(role)
        if process is None or not process.running:
            return False
        process.kill()
        await process.wait()
        return True

    async def wait(self) -> None:
        """Wait until the supervision of a role fails; the end of a role is not a failure."""
        done, _ = await asyncio.wait(self._supervisors.values(), return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    # --- stop

    async def _stop(self) -> None:
        """Stop the nodes first: unmounting volumes needs the driver, the disk service and the API server."""
        await self._end_nodes()
        for role in ("scheduler", "controller-manager", "cloud", "apiserver"):
            await self._end(role)

    async def _end_nodes(self) -> None:
        nodes = [role for role in self._supervisors if role.startswith("node/")]
        await asyncio.gather(*(self._end(role) for role in nodes))
        if nodes:
            if self.memory.pod_range:
                await self.host.call(network.remove_bridge, self.layout.bridge)
            if self.settings.container_runtime_endpoint:
                await self.host.call(cni.remove_idle_bridge)

    async def _end(self, role: str) -> None:
        supervisor, process = self._supervisors.pop(role, None), self._processes.pop(role, None)
        if supervisor is not None:
            await cancel_and_wait(supervisor)
        if process is not None and process.running:
            process.send(signal.SIGTERM)
            try:
                async with asyncio.timeout(WAIT_TIMEOUT + 10):
                    await process.wait()
            except TimeoutError:
                log.error("%s does not stop; killing it", role)
                process.kill()
                await process.wait()
        self.runs.pid_file(role).unlink(missing_ok=True)

    async def _discard(self) -> None:
        if not self._is_up:
            await power_loss.discard(self.layout, runtime_endpoints(self.members, self.settings))

    def _cut_lifeline(self) -> None:
        for end in self._lifeline:
            os.close(end)
