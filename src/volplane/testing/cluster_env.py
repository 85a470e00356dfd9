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
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from msgspec import structs

from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.storage import StorageClass, VolumeAttachment
from volplane.cluster import power_loss
from volplane.cluster.apply import parse_object
from volplane.cluster.external_driver.model import DiscoveredDriver, ExternalDriver
from volplane.cluster.external_driver.workloads import KUBELET, build_manifests
from volplane.cluster.multi_process import MultiProcessCluster
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
    specs,
    unmounts,
)
from volplane.testing.call_audit import Inventory
from volplane.testing.capabilities import DriverCapabilities
from volplane.testing.case import CaseFailure, NotSupported
from volplane.testing.cleanup import NAMESPACE
from volplane.testing.failure_reason import find_reason
from volplane.testing.given_volumes import GivenVolumes
from volplane.testing.livelock import SHORT_LIMIT, LivelockDetector
from volplane.testing.specs import classes
from volplane.testing.waiting import until

CLEANUP_TIMEOUT = 30.0  # seconds; afterwards everything is removed by force
MAX_RESTART_DELAY = 0.5  # longest time until a killed driver is restarted, in seconds
_SHORT_BACKOFF = ("provisioner", "attacher", "resizer", "snapshotter")

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Resource)
R = TypeVar("R")


class ClusterEnv:
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
    ) -> None:
        self.external, self.capabilities = external, capabilities
        self.livelock = LivelockDetector(self._still_mounted)
        self.tap = CallInterceptor(on_end=self.livelock.observe_call)
        self.parameters, self.secrets = dict(parameters or {}), dict(secrets or {})
        self.mutable, self.given = dict(mutable or {}), given or GivenVolumes()
        self.directory, self.results = directory, directory / "results"
        self.random = Random(0)
        self.waiting = ""  # what the case waits for, while it waits
        self.case_timeout = math.inf  # seconds; set for each case
        self.repeated = 0  # always 0: the cluster's own components retry here
        self._settings = ClusterOptions(
            data_dir=str(directory / "c"),
            nodes=nodes,
            nodes_per_zone=nodes,
            max_container_restart_period=MAX_RESTART_DELAY,
        )
        self._user_drivers = UserDrivers(
            drivers=(with_short_backoff(external),), builtin=False, facts=tuple(facts)
        )
        self._known: set[tuple[type[Resource], str]] = set()
        self._controllers: set[str] = set()  # sockets
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

    @property
    def client(self) -> Any:
        return self.cluster.client

    @property
    def name(self) -> str:
        return self.capabilities.name

    async def _make_class(self) -> None:
        """Create the driver's classes with the parameters of the command line."""
        own = build_manifests(self.external, self.cluster.learned.facts[0])
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

    # --- create

    def new_name(self, prefix: str) -> str:
        return f"{prefix}-{self.random.getrandbits(32):08x}"

    async def request(self, work: Callable[[], Awaitable[R]]) -> R:
        """Send a request to the API server."""
        return await work()

    async def create(self, manifest: dict[str, Any]) -> Any:
        manifest["metadata"].setdefault("namespace", NAMESPACE)
        wanted = parse_object(manifest)
        self._known.add((type(wanted), wanted.name))
        return await self.request(lambda: self.client.create(wanted, exists_ok=True))

    async def claim(
        self,
        *,
        block: bool = False,
        mode: str = "ReadWriteOnce",
        source: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        name = self.new_name("claim")
        if self.capabilities.has("given"):
            if block or source:
                raise NotSupported("the given volumes are file systems without a source")
            await self._create_given(name, mode)
            return name
        await self.create(specs.claim(name, block=block, mode=mode, source=source, labels=labels))
        return name

    async def _create_given(self, claim: str, mode: str) -> None:
        """A volume for one of the given ids, and its claim. Raises NotSupported."""
        if self.given.read_only:
            raise NotSupported("the given volume is read-only, and pods of this case write")
        known = map(self.client.cache(PersistentVolume).get, self.created_names(PersistentVolume))
        used = {one.spec.csi.volume_handle for one in known if one is not None and one.spec.csi}
        handle, volume = self.given.take_id(used), self.new_name("given")
        for manifest in specs.given_volume_and_claim(
            volume, claim, driver=self.name, handle=handle, context=self.given.context, mode=mode
        ):
            await self.create(manifest)
        volumes = self.client.cache(PersistentVolume)
        await self.until(PersistentVolume, lambda: volumes.get(volume), f"volume {volume} exists")

    async def pod(
        self, script: str, claim: str = "", *, volume: Mapping[str, Any] | None = None, **more: Any
    ) -> str:
        """Create a pod that runs `script` with the volume at /data (or as /dev/data)."""
        name = self.new_name("pod")
        source = volume or {"persistentVolumeClaim": {"claimName": claim}}
        await self.create(specs.pod(name, script, volume=source, results=str(self.results), **more))
        return name

    # --- wait

    async def until(self, kind: type[T], holds: Callable[[], object], what: str) -> None:
        """Watch until `holds()`; limited by the timeout of the case."""
        self.waiting = what
        await self.livelock.wait_or_livelock(until(self.client, kind, holds))
        self.waiting = ""

    async def describe_wait(self) -> str:
        """What the case was waiting for when it ended, and why it did not happen."""
        reason = await find_reason(self.client, self.created_names) if self.waiting else ""
        return f"{self.waiting} ({reason})" if reason else self.waiting

    def get_pod(self, name: str) -> Pod | None:
        found: Pod | None = self.client.cache(Pod).get(name, NAMESPACE)
        return found

    async def run_to_end(self, name: str) -> Pod:
        """Wait until the pod's container has succeeded. Raises CaseFailure with its output if it fails."""

        def has_ended() -> bool:
            pod = self.get_pod(name)
            return pod is not None and pod.status.phase in ("Succeeded", "Failed")

        await self.until(Pod, has_ended, f"pod {name} has succeeded")
        pod = self.get_pod(name)
        assert pod is not None
        if pod.status.phase != "Succeeded":
            ended = [s.state.terminated for s in pod.status.container_statuses if s.state.terminated]
            code = ended[0].exit_code if ended else "?"
            raise CaseFailure(
                f"the container of pod {name} ends with {code}: {self.read(f'{name}.err') or 'no output'}"
            )
        return pod

    async def wait_until_running(self, name: str) -> Pod:
        def is_running() -> bool:
            pod = self.get_pod(name)
            return pod is not None and pod.status.phase in ("Running", "Succeeded", "Failed")

        await self.until(Pod, is_running, f"pod {name} runs")
        pod = self.get_pod(name)
        assert pod is not None
        return pod

    async def run(self, script: str, claim: str = "", **more: Any) -> Pod:
        """Run a pod until it succeeds, and delete it."""
        name = await self.pod(script, claim, **more)
        pod = await self.run_to_end(name)
        await self.remove_pod(name)
        return pod

    async def remove_pod(self, name: str) -> None:
        await self.delete(Pod, name)
        await self.until(Pod, lambda: self.get_pod(name) is None, f"pod {name} is gone")

    async def delete(self, kind: type[Resource], name: str) -> None:
        await self.request(lambda: self.client.delete(kind, name, NAMESPACE, missing_ok=True))

    async def remove_claim(self, name: str) -> None:
        claim = self.client.cache(PersistentVolumeClaim).get(name, NAMESPACE)
        volume = claim.spec.volume_name if claim else ""
        await self.wait_until_unused({volume})
        await self.delete(PersistentVolumeClaim, name)
        claims = self.client.cache(PersistentVolumeClaim)
        await self.until(
            PersistentVolumeClaim, lambda: claims.get(name, NAMESPACE) is None, f"claim {name} is gone"
        )
        volumes = self.client.cache(PersistentVolume)
        if volume:
            await self.delete_given({volume})
            await self.until(
                PersistentVolume, lambda: volumes.get(volume) is None, f"volume {volume} is gone"
            )

    async def delete_given(self, volumes: Collection[str]) -> None:
        """Delete the objects of given volumes; Kubernetes keeps them when their claims are gone."""
        for name in sorted(self.created_names(PersistentVolume) & set(volumes)):
            await self.delete(PersistentVolume, name)
            self._known.discard((PersistentVolume, name))

    async def wait_until_unused(
        self, volumes: Collection[str], first: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Wait before claims are deleted: if a driver attaches nothing, Kubernetes deletes a volume while a
        node may still have it staged.
        """
        if "PUBLISH_UNPUBLISH_VOLUME" not in self.capabilities.controller:
            if first is not None:
                await first()
            self.waiting = "the first unpublish and unstage on every node has ended"
            unmounted = unmounts.wait_until_unmounted(self, self._handles(volumes))
            await self.livelock.wait_or_livelock(unmounted)
            await self.wait_until_detached(volumes)

    def _handles(self, volumes: Collection[str]) -> set[str]:
        found = map(self.client.cache(PersistentVolume).get, volumes)
        return {volume.spec.csi.volume_handle for volume in found if volume is not None and volume.spec.csi}

    async def wait_until_detached(self, volumes: Collection[str] | None = None) -> None:
        """Wait until these volumes, or all, are detached."""
        cache = self.client.cache(VolumeAttachment)

        def attachments() -> list[VolumeAttachment]:
            return [
                a for a in cache.all() if volumes is None or a.spec.source.persistent_volume_name in volumes
            ]

        await self.until(VolumeAttachment, lambda: not attachments(), "every volume is detached")

    def read(self, name: str) -> str:
        try:
            return (self.results / name).read_text(errors="replace").strip()
        except FileNotFoundError:
            return ""

    async def second_node(self, claim: str) -> str:
        """Another node than the first that can use the claim's volume. Raises NotSupported."""
        found = self.client.cache(PersistentVolumeClaim).get(claim, NAMESPACE)
        volume = self.client.cache(PersistentVolume).get(found.spec.volume_name) if found else None
        affinity = volume.spec.node_affinity if volume is not None else None
        if affinity is not None and affinity.required is not None:
            terms = str(affinity.required)
            if "worker-1" in terms and "worker-2" not in terms:
                raise NotSupported("its volumes stay on their node")
        if len(self.cluster.members) < 2 or not self._has_driver("worker-2"):
            raise NotSupported("it runs on one node only")
        return "worker-2"

    def _has_driver(self, node: str) -> bool:
        return node in self.cluster.learned.expected_drivers([m.name for m in self.cluster.members])[0].nodes

    # --- disturb

    def calls_of_this_case(self) -> Callable[[CsiCall], bool]:
        """A filter for the calls that a case may disturb: those for objects that it creates from now on."""
        before = call_audit.requested_names(self.calls())
        return lambda call: not call_audit.names_any(call, before)

    async def kill_driver(self, socket: str = "") -> int:
        """Kill the driver's containers (SIGKILL), or the one that serves a socket; returns their number."""
        places = [member.root for member in self.cluster.members]
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
            return ["nor by force"]
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

    def created_names(self, kind: type[Resource]) -> set[str]:
        """Names of the objects of a kind that the case has created."""
        return {name for known, name in self._known if known is kind}

    async def recover(self) -> None:
        """Leave what hangs behind; the next case uses other names."""
        self.tap.remove_rules()
        await self.kill_driver()

    def log_positions(self) -> dict[str, int]:
        self.livelock.begin_case()
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
        self._controllers |= driver_query.controller_sockets(self.calls(), str(self.directory))
        volumes, snapshots = await driver_query.list_volumes_and_snapshots(
            self.capabilities, self._controllers
        )
        return Inventory(frozenset(await self.mounts_left()), frozenset(devices), volumes, snapshots)

    def calls(self) -> list[CsiCall]:
        """All recorded calls, in the order of their start."""
        return self.tap.calls


def with_short_backoff(external: ExternalDriver) -> ExternalDriver:
    """Shorten the backoff of the sidecars, so that a case waits for the driver and not for them."""
    known = {
        role: ("--retry-interval-start=100ms", *external.sidecars.get(role, ())) for role in _SHORT_BACKOFF
    }
    return structs.replace(external, sidecars={**external.sidecars, **known})
