"""The environment of cluster cases: the driver in a cluster, used through claims and pods.

All roles run in this process, so that the call interceptor sees every call of the sidecars and nodes; the
driver's instances are processes in containers. A pod runs a script, and writes its results to a directory
that all pods share with the test.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TypeVar

from msgspec import structs

from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.storage import StorageClass, VolumeAttachment
from volplane.cluster import power_loss
from volplane.cluster.errors import CannotStart
from volplane.cluster.external_driver.model import DiscoveredDriver, ExternalDriver
from volplane.cluster.external_driver.workloads import KUBELET, build_manifests
from volplane.cluster.multi_process import MultiProcessCluster
from volplane.cluster.role_control import RoleCannotChange
from volplane.cluster.single_process import Cluster, ClusterOptions, runtime_endpoint
from volplane.cluster.user_drivers import UserDrivers
from volplane.csi.call_interceptor import CallInterceptor, CsiCall
from volplane.host import Host, copies, mounts
from volplane.testing import (
    call_audit,
    cleanup,
    driver_logs,
    driver_query,
    kill_driver,
    leftovers,
    unmounts,
)
from volplane.testing.call_audit import Inventory
from volplane.testing.capabilities import DriverCapabilities
from volplane.testing.case import CaseFailure
from volplane.testing.cleanup import NAMESPACE
from volplane.testing.cluster_objects import ClusterObjects
from volplane.testing.crash_loop import CrashLoopDetector
from volplane.testing.given_volumes import GivenVolumes
from volplane.testing.livelock import SHORT_LIMIT, LivelockDetector
from volplane.testing.specs import classes

CLEANUP_TIMEOUT = 30.0  # seconds; afterwards everything is removed by force
LAST_LINES = 3  # of the log of a driver that does not start
MAX_RESTART_DELAY = 0.5  # longest time until a killed driver is restarted, in seconds
_SHORT_BACKOFF = ("provisioner", "attacher", "resizer", "snapshotter")

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Resource)
R = TypeVar("R")


class ClusterEnv(ClusterObjects):
    """`async with ClusterEnv(…) as env`: the cluster is ready inside."""

    def __init__(
        self,
        external: ExternalDriver,
        directory: Path,
        capabilities: DriverCapabilities,
        *,
        nodes: int = 2,
        parameters: Mapping[str, str] | None = None,
        mutable: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        given: GivenVolumes | None = None,
        facts: Sequence[DiscoveredDriver] = (),
        runtime: str = "",
    ) -> None:
        """`runtime`: the endpoint of the nodes' container runtime, for a driver in its own image."""
        self.runtime = runtime if external.runs_images else ""
        self.external, self.capabilities = external, capabilities
        self.livelock = LivelockDetector(self._still_mounted, self._wait_for_crash_loop)
        self._crash_loop = CrashLoopDetector(self._last_log_lines)
        self.tap = CallInterceptor(on_end=self.livelock.observe_call)
        self.parameters, self.secrets = dict(parameters or {}), dict(secrets or {})
        self.mutable, self.given = dict(mutable or {}), given or GivenVolumes()
        self.directory, self.results = directory, directory / "results"
        self.random = Random(0)
        self.waiting = ""  # what the case waits for, while it waits
        self.case_timeout = math.inf  # seconds; set for each case
        self.repeated = 0  # always 0: the cluster's own components retry here
        self._settings = ClusterOptions(
            ui="off",
            data_dir=str(directory / "c"),
            nodes=nodes,
            nodes_per_zone=nodes,
            max_container_restart_period=MAX_RESTART_DELAY,
            container_runtime_endpoint=self.runtime,
        )
        self._user_drivers = UserDrivers(
            drivers=(with_short_backoff(external),), builtin=False, facts=tuple(facts)
        )
        self._known: set[tuple[type[Resource], str]] = set()
        self._controllers: set[str] = set()  # sockets
        self._clusters = 1  # that were started
        self.cluster: Cluster | MultiProcessCluster

    async def __aenter__(self) -> ClusterEnv:
        self.results.mkdir(parents=True, exist_ok=True)
        await self._start()
        try:
            await self._make_class()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    def _make_cluster(self) -> Cluster | MultiProcessCluster:
        return Cluster(self._settings, self._user_drivers, interceptor=self.tap)

    async def _start(self) -> None:
        self.cluster = self._make_cluster()
        try:
            await self.cluster.__aenter__()
            await self.cluster.wait_ready()
            for kind in (Pod, PersistentVolumeClaim, PersistentVolume, VolumeAttachment, Node):
                await self.client.cache(kind).wait_synced()
        except BaseException:
            await self._stop()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        try:
            await self.cluster.__aexit__()
        finally:
            await self._release_machine()

    async def _release_machine(self) -> None:
        """Clean up the machine: a driver that does not unmount keeps its node from stopping cleanly."""
        host = Host()
        try:
            for member in self.cluster.members:
                runtime = runtime_endpoint(member, self.cluster.settings)
                await power_loss.lose_power(member.root, host, runtime)
            await leftovers.release_devices(host, self.directory, self.calls())
        finally:
            await host.close()

    async def _start_anew(self) -> list[str]:
        """Leave the cluster behind, with the driver's state, and start a new one; returns what failed."""
        for member in self.cluster.members:  # a stop would wait for its unmounts
            with suppress(RoleCannotChange):
                await self.cluster.crash_role(f"node/{member.name}")
        await self._stop()
        self._clusters += 1
        self._settings = structs.replace(self._settings, data_dir=str(self.directory / f"c{self._clusters}"))
        self._controllers.clear()
        try:
            await self._start()
            await self._make_class()
        except CannotStart as error:
            return [f"a new cluster does not start: {error}"]
        return []

    async def _make_class(self) -> None:
        """Create the driver's classes with the parameters of the command line."""
        own = build_manifests(self.external, self.cluster.discovered.facts[0])
        made = classes(
            own,
            self.name,
            namespace=NAMESPACE,
            parameters=self.parameters,
            mutable=self.mutable if self.capabilities.has("modify") else {},
            secrets=self.secrets,
        )
        for one in made:
            await self.client.create(one)
            # Claims of given volumes have no class.
            if isinstance(one, StorageClass) and one.allow_volume_expansion and not self.given.ids:
                self.capabilities.probed.add("expand-claim")

    # --- disturb

    async def _wait_for_crash_loop(self) -> str:
        """Wait until the driver ends by itself after each start; returns why."""
        await self._crash_loop.wait(self.client.cache(Pod).all)
        return self._crash_loop.reason

    def _last_log_lines(self, pod: str) -> str:
        logs = driver_logs.read_logs(self._roots, {})
        lines = "\n".join(text for who, text in logs.items() if who.split(" on ")[0] == pod).splitlines()
        return "; ".join(line.partition(" ")[2] for line in lines[-LAST_LINES:])

    def calls_of_this_case(self) -> Callable[[CsiCall], bool]:
        """A filter for the calls that a case may disturb: those for objects that it creates from now on."""
        before = call_audit.requested_names(self.calls())
        return lambda call: not call_audit.names_any(call, before)

    async def kill_driver(self, socket: str = "") -> int:
        """Kill the driver's containers (SIGKILL), or the one that serves a socket; returns their number."""
        places = [member.root for member in self.cluster.members]
        if self.runtime:
            return await kill_driver.kill_in_runtime(self.runtime, places, socket)
        return await self.cluster.host.call(kill_driver.kill_driver, places, socket)

    async def restart(self) -> None:
        """Restart the whole control plane."""
        await self.cluster.__aexit__()
        await self._start()

    # --- between cases

    async def clean(self) -> list[str]:
        self.tap.remove_rules()
        found = self.livelock.has_livelock
        self.livelock.begin_case()
        if self._crash_loop.reason:
            self._known.clear()
            return await self._start_anew()
        try:
            if found:  # the case has failed because of it, so do not wait for its unmounts
                self.livelock.limit = SHORT_LIMIT
                await self._force_unmount()
            async with asyncio.timeout(CLEANUP_TIMEOUT):
                await self.delete_created()
        except (CaseFailure, TimeoutError) as error:
            return [
                str(error) or f"not within {CLEANUP_TIMEOUT:g} s: {self.waiting}",
                *await self._clean_by_force(),
            ]
        finally:
            self._known.clear()
        return []

    async def _clean_by_force(self) -> list[str]:
        self.livelock.begin_case()
        await self._force_unmount()
        try:
            async with asyncio.timeout(CLEANUP_TIMEOUT):
                await self.delete_created()
        except (CaseFailure, TimeoutError):
            return ["nor by force", *await self._start_anew()]
        return []

    async def _force_unmount(self) -> None:
        """Unmount what the driver does not unmount, so that the other cases can run."""
        for target in reversed(await self.mounts_left()):
            with suppress(OSError):
                await self.cluster.host.call(copies.thaw, target)
            await self.cluster.host.unmount(target, detach=True)
        self._clear_backoff()

    def _clear_backoff(self) -> None:
        """Retry at once what was delayed by backoff while the driver failed."""
        assert isinstance(self.cluster, Cluster)
        for node in self.cluster.nodes.values():
            node.volumes.driver_changed(self.name)

    def _still_mounted(self, call: CsiCall) -> bool:
        """Whether the node still has the mount that the call should have unmounted."""
        request = json.loads(call.request)
        path = request.get("target_path") or request.get("staging_target_path") or KUBELET
        below = os.path.relpath(path, KUBELET)
        roots = (m.root for m in self.cluster.members if call.address.startswith(f"{m.root}/"))
        return any(mounts.is_mount(str(root / below)) for root in roots)

    async def delete_created(self) -> None:
        """Delete everything that the case has created, and wait until it is gone."""
        await cleanup.delete_all(self)

    async def recover(self) -> None:
        """Leave what hangs behind; the next case uses other names."""
        self.tap.remove_rules()
        await self.kill_driver()

    def log_positions(self) -> dict[str, int]:
        self.livelock.begin_case()
        self._crash_loop.begin_case()
        self.waiting = ""
        return driver_logs.log_sizes(self._roots)

    @property
    def _roots(self) -> dict[str, Path]:
        return {member.name: member.root for member in self.cluster.members}

    def logs(self, since: dict[str, int]) -> dict[str, str]:
        """The driver's logs, the cluster's warnings, and what the case was waiting for."""
        warnings = []
        for event in self.client.cache(Event).all():
            if event.type == "Warning":
                about = event.involved_object
                warnings.append(
                    f"{event.last_timestamp} {about.kind} {about.name}: {event.reason}: {event.message}"
                )
        made = {**driver_logs.read_logs(self._roots, since), "warnings": "\n".join(sorted(warnings)[-40:])}
        return {**made, **({"waiting for": self.waiting} if self.waiting else {})}

    # --- inspect

    async def mounts_left(self) -> list[str]:
        """Mounts of the driver's volumes on any node, at this moment."""
        return await leftovers.find_mounts(self.cluster.host, self._roots.values())

    async def wait_for_unmounts(self, known: Collection[str] = ()) -> list[str]:
        """The mounts other than `known` that are left when the nodes had time to unmount them."""
        return await unmounts.wait_for_unmounts(self, known)

    async def take_inventory(self) -> Inventory:
        loops = await leftovers.find_devices(self.cluster.host, self.directory, self.calls())
        devices = (f"{device} ({file})" for device, file in loops.items())
        # Remembered, because old calls are dropped.
        self._controllers |= driver_query.controller_sockets(self.calls(), self._settings.data_dir)
        volumes, snapshots = await self.livelock.wait_or_livelock(
            driver_query.list_volumes_and_snapshots(self.capabilities, self._controllers)
        )
        return Inventory(frozenset(await self.mounts_left()), frozenset(devices), volumes, snapshots)

    def calls(self) -> list[CsiCall]:
        return self.tap.calls


def with_short_backoff(external: ExternalDriver) -> ExternalDriver:
    """Shorten the backoff of the sidecars, so that a case waits for the driver and not for them."""
    known = {
        role: ("--retry-interval-start=100ms", *external.sidecars.get(role, ())) for role in _SHORT_BACKOFF
    }
    return structs.replace(external, sidecars={**external.sidecars, **known})
