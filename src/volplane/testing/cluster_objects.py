"""The objects of a cluster case: create claims and pods, wait for them, and delete them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.storage import VolumeAttachment
from volplane.cluster.apply import parse_object
from volplane.csi.call_interceptor import CsiCall
from volplane.testing import specs, unmounts
from volplane.testing.capabilities import DriverCapabilities
from volplane.testing.case import CaseFailure, NotSupported
from volplane.testing.cleanup import NAMESPACE
from volplane.testing.failure_reason import find_reason
from volplane.testing.given_volumes import GivenVolumes
from volplane.testing.livelock import LivelockDetector
from volplane.testing.waiting import until

T = TypeVar("T", bound=Resource)
R = TypeVar("R")


class ClusterObjects:
    cluster: Any
    capabilities: DriverCapabilities
    given: GivenVolumes
    livelock: LivelockDetector
    random: Random
    results: Path  # a directory that all pods share with the test
    waiting: str  # what the case waits for, while it waits
    _known: set[tuple[type[Resource], str]]  # what the case has created

    @property
    def client(self) -> Any:
        return self.cluster.client

    @property
    def name(self) -> str:
        return self.capabilities.name

    def calls(self) -> list[CsiCall]:
        """All recorded calls, in the order of their start."""
        raise NotImplementedError

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
        drivers = self.cluster.discovered.expected_drivers([m.name for m in self.cluster.members])
        return node in drivers[0].nodes

    def created_names(self, kind: type[Resource]) -> set[str]:
        """Names of the objects of a kind that the case has created."""
        return {name for known, name in self._known if known is kind}
