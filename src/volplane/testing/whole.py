"""The world of a whole cluster: claims and pods, and the driver under everything that lies between.

All roles run in this process, so that the tap sees and disturbs each call of every sidecar and node; the
driver's instances are processes in containers. What a container does is written into its script, and what it
found comes back in a directory that all pods share with us.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from msgspec import structs

from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from volplane.api.storage import StorageClass, VolumeAttachment
from volplane.cluster.apply import typed
from volplane.cluster.brought import Brought
from volplane.cluster.guest.deploy import manifests
from volplane.cluster.guest.model import Guest
from volplane.cluster.whole import Cluster, Settings
from volplane.csi.tap import Tap
from volplane.node.containers import records
from volplane.testing.case import Broken, NotPromised
from volplane.testing.promises import Promises
from volplane.testing.waiting import until

NAMESPACE = "default"
CLASS = "volplane-test"
SHELF = "/shelf"
DATA = "/data"
GIB = 1 << 30
KUBELET_PARTS = ("pods", "plugins/kubernetes.io/csi")
_SECRETS = (
    "provisioner",
    "controller-publish",
    "node-stage",
    "node-publish",
    "controller-expand",
    "node-expand",
)

T = TypeVar("T", bound=Resource)


class Whole:
    """`async with Whole(…) as world`: the cluster is ready inside."""

    def __init__(
        self,
        guest: Guest,
        directory: Path,
        promises: Promises,
        *,
        tap: Tap,
        nodes: int = 2,
        parameters: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        self.guest, self.promises, self.tap = guest, promises, tap
        self.parameters, self.secrets = dict(parameters or {}), dict(secrets or {})
        self.directory, self.shelf = directory, directory / "shelf"
        self.random = Random(0)
        self.waiting = ""  # for what, while it does
        self._settings = Settings(data_dir=str(directory / "c"), nodes=nodes, nodes_per_zone=nodes)
        self._brought = Brought(guests=(guest,), ours=False)
        self._known: set[tuple[type[Resource], str]] = set()
        self.cluster: Cluster

    async def __aenter__(self) -> Whole:
        self.shelf.mkdir(parents=True, exist_ok=True)
        await self._start()
        try:
            await self._make_class()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _start(self) -> None:
        self.cluster = await Cluster(self._settings, self._brought).__aenter__()
        try:
            await self.cluster.ready()
            for kind in (Pod, PersistentVolumeClaim, PersistentVolume, VolumeAttachment, Node):
                await self.client.cache(kind).synced()
        except BaseException:
            await self.cluster.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.cluster.__aexit__()

    @property
    def client(self) -> Any:
        return self.cluster.client

    @property
    def name(self) -> str:
        return self.promises.name

    async def _make_class(self) -> None:
        """The driver's own class with what was said on the command line."""
        facts = self.cluster.learned.facts[0]
        classes = [o for o in manifests(self.guest, facts) if isinstance(o, StorageClass)]
        if not classes:
            return
        own = classes[0]
        more = dict(self.parameters)
        snapshots: dict[str, str] = {}
        if self.secrets:
            secret = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": CLASS, "namespace": NAMESPACE},
                "stringData": self.secrets,
            }
            await self.client.create(typed(secret))
            for call in _SECRETS:
                more[f"csi.storage.k8s.io/{call}-secret-name"] = CLASS
                more[f"csi.storage.k8s.io/{call}-secret-namespace"] = NAMESPACE
            for part, value in (("name", CLASS), ("namespace", NAMESPACE)):
                snapshots[f"csi.storage.k8s.io/snapshotter-secret-{part}"] = value
        meta = structs.replace(own.metadata, name=CLASS, annotations={})
        await self.client.create(
            structs.replace(own, metadata=meta, parameters={**own.parameters, **more}), namespace=""
        )
        for made in manifests(self.guest, facts):
            if isinstance(made, VolumeSnapshotClass):
                meta = structs.replace(made.metadata, name=CLASS, annotations={})
                given = {**made.parameters, **snapshots}
                await self.client.create(structs.replace(made, metadata=meta, parameters=given))
                break

    # --- what cases make

    def fresh(self, prefix: str) -> str:
        return f"{prefix}-{self.random.getrandbits(32):08x}"

    async def make(self, thing: dict[str, Any]) -> Any:
        thing["metadata"].setdefault("namespace", NAMESPACE)
        made = await self.client.create(typed(thing))
        self._known.add((type(made), made.name))
        return made

    async def claim(
        self, *, block: bool = False, mode: str = "ReadWriteOnce", source: Mapping[str, str] | None = None
    ) -> str:
        spec: dict[str, Any] = {
            "accessModes": [mode],
            "storageClassName": CLASS,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        if block:
            spec["volumeMode"] = "Block"
        if source:
            spec["dataSource"] = dict(source)
        thing = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": self.fresh("claim")},
        }
        made = await self.make({**thing, "spec": spec})
        return str(made.name)

    async def pod(
        self,
        script: str,
        claim: str = "",
        *,
        node: str = "",
        block: bool = False,
        readonly: bool = False,
        volume: Mapping[str, Any] | None = None,
        sub_path: str = "",
        **more: Any,
    ) -> str:
        """A pod whose container runs `script` with the volume at /data (or as /dev/data)."""
        name = self.fresh("pod")
        container: dict[str, Any] = {"name": "main", "image": "busybox", "command": ["sh", "-c", script]}
        container["volumeMounts"] = [{"name": "shelf", "mountPath": SHELF}]
        if block:
            container["volumeDevices"] = [{"name": "data", "devicePath": "/dev/data"}]
        else:
            mount = {"name": "data", "mountPath": DATA, "readOnly": readonly}
            container["volumeMounts"].append({**mount, **({"subPath": sub_path} if sub_path else {})})
        source = volume or {"persistentVolumeClaim": {"claimName": claim}}
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [{"name": "data", **source}, {"name": "shelf", "hostPath": {"path": str(self.shelf)}}],
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            **more,
        }
        await self.make({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        return name

    # --- what cases wait for

    async def until(self, kind: type[T], holds: Callable[[], object], what: str) -> None:
        """By watching; ends with the case's own time."""
        self.waiting = what
        await until(self.client, kind, holds)
        self.waiting = ""

    def get_pod(self, name: str) -> Pod | None:
        found: Pod | None = self.client.cache(Pod).get(name, NAMESPACE)
        return found

    async def ended(self, name: str) -> Pod:
        """The pod when its container has ended well; what it says otherwise. Raises Broken."""

        def over() -> bool:
            pod = self.get_pod(name)
            return pod is not None and pod.status.phase in ("Succeeded", "Failed")

        await self.until(Pod, over, f"pod {name} has done its work")
        pod = self.get_pod(name)
        assert pod is not None
        if pod.status.phase != "Succeeded":
            said = [s.state.terminated for s in pod.status.container_statuses if s.state.terminated]
            code = said[0].exit_code if said else "?"
            raise Broken(
                f"the container of pod {name} ends with {code}: {self.read(f'{name}.err') or 'no words'}"
            )
        return pod

    async def running(self, name: str) -> Pod:
        def up() -> bool:
            pod = self.get_pod(name)
            return pod is not None and pod.status.phase in ("Running", "Succeeded", "Failed")

        await self.until(Pod, up, f"pod {name} runs")
        pod = self.get_pod(name)
        assert pod is not None
        return pod

    async def run(self, script: str, claim: str = "", **more: Any) -> Pod:
        """A pod to its end, and gone."""
        name = await self.pod(script, claim, **more)
        pod = await self.ended(name)
        await self.remove_pod(name)
        return pod

    async def remove_pod(self, name: str) -> None:
        await self.client.delete(Pod, name, NAMESPACE, missing_ok=True)
        await self.until(Pod, lambda: self.get_pod(name) is None, f"pod {name} is gone")

    async def remove_claim(self, name: str) -> None:
        claim = self.client.cache(PersistentVolumeClaim).get(name, NAMESPACE)
        volume = claim.spec.volume_name if claim else ""
        await self.client.delete(PersistentVolumeClaim, name, NAMESPACE, missing_ok=True)
        gone = self.client.cache(PersistentVolumeClaim)
        await self.until(
            PersistentVolumeClaim, lambda: gone.get(name, NAMESPACE) is None, f"claim {name} is gone"
        )
        volumes = self.client.cache(PersistentVolume)
        if volume:
            await self.until(
                PersistentVolume, lambda: volumes.get(volume) is None, f"volume {volume} is gone"
            )

    async def detached(self) -> None:
        cache = self.client.cache(VolumeAttachment)
        await self.until(VolumeAttachment, lambda: not list(cache.all()), "every volume is detached")

    def read(self, name: str) -> str:
        try:
            return (self.shelf / name).read_text(errors="replace").strip()
        except FileNotFoundError:
            return ""

    async def second_node(self, claim: str) -> str:
        """A node that the volume of the claim can be used on, other than the first. Raises NotPromised."""
        found = self.client.cache(PersistentVolumeClaim).get(claim, NAMESPACE)
        volume = self.client.cache(PersistentVolume).get(found.spec.volume_name) if found else None
        affinity = volume.spec.node_affinity if volume is not None else None
        if affinity is not None and affinity.required is not None:
            told = str(affinity.required)
            if "worker-1" in told and "worker-2" not in told:
                raise NotPromised("its volumes stay on their node")
        if len(self.cluster.members) < 2 or not self._has_driver("worker-2"):
            raise NotPromised("it runs on one node only")
        return "worker-2"

    def _has_driver(self, node: str) -> bool:
        return node in self.cluster.learned.expected([m.name for m in self.cluster.members])[0].nodes

    # --- what the field does

    async def kill_driver(self, node: str = "", *, controller: bool = False) -> int:
        """kill -9 of the driver's containers; how many there were."""
        killed = 0
        for member in self.cluster.members:
            if node and member.name != node:
                continue
            for record in await self.cluster.host.call(records.load_all, str(member.root / "containers")):
                spec = record.started.spec
                mine = spec.name == "driver" and (
                    not controller or spec.pod_name.startswith(("controller", "driver"))
                )
                if mine and record.ending is None and record.started.lives:
                    with suppress(ProcessLookupError):
                        os.kill(record.started.pid, signal.SIGKILL)
                        killed += 1
        return killed

    async def restart(self) -> None:
        """The whole control plane ends and starts again on what it has stored."""
        await self.cluster.__aexit__()
        await self._start()

    # --- between cases

    async def clean(self) -> list[str]:
        self.tap.clear()
        for kind in (Pod, VolumeSnapshot, PersistentVolumeClaim):
            for known, name in sorted(self._known, key=lambda pair: pair[1]):
                if known is kind:
                    await self.client.delete(kind, name, NAMESPACE, missing_ok=True)
        await self.until(Pod, lambda: not self._mine(Pod), "the case's pods are gone")
        await self.until(
            PersistentVolumeClaim, lambda: not self._mine(PersistentVolumeClaim), "its claims are gone"
        )
        cache = self.client.cache(PersistentVolume)
        await self.until(PersistentVolume, lambda: not list(cache.all()), "its volumes are gone")
        if any(kind is VolumeSnapshot for kind, _ in self._known):
            contents = self.client.cache(VolumeSnapshotContent)
            await self.until(
                VolumeSnapshotContent, lambda: not list(contents.all()), "its snapshots are gone"
            )
        await self.detached()
        self._known.clear()
        return []

    def _mine(self, kind: type[Resource]) -> list[str]:
        cache = self.client.cache(kind)
        return [name for known, name in self._known if known is kind and cache.get(name, NAMESPACE)]

    async def revive(self) -> None:
        """What hangs is left; the next case has names of its own."""
        self.tap.clear()
        await self.kill_driver()

    def marks(self) -> dict[str, int]:
        return {}

    def logs(self, since: dict[str, int]) -> dict[str, str]:
        """The warnings that the cluster has told, and what was waited for last."""
        told = []
        for event in self.client.cache(Event).all():
            if event.type == "Warning":
                about = event.involved_object
                told.append(
                    f"{event.last_timestamp} {about.kind} {about.name}: {event.reason}: {event.message}"
                )
        made = {"warnings": "\n".join(sorted(told)[-40:])}
        return {**made, **({"waiting for": self.waiting} if self.waiting else {})}

    async def left(self) -> list[str]:
        """Mounts of the driver's volumes on any node."""
        table = await self.cluster.host.mounts()
        places = [str(member.root / part) for member in self.cluster.members for part in KUBELET_PARTS]
        mine = ("kubernetes.io~csi", "kubernetes.io/csi")
        return [e.target for place in places for e in table.under(place) if any(m in e.target for m in mine)]
