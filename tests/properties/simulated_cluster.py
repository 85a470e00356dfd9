"""The neighbours of the control plane, as small as they can be while they keep to the contract.

A provisioner, an attacher and nodes that take their time, fail now and then, and check what they are asked
for: the disk is never in two places, and is never taken from a node that mounts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any

from volplane.api import codec, names
from volplane.api.annotations import (
    PROVISIONED_BY_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
)
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.errors import Conflict, NotFound
from volplane.api.meta import Resource
from volplane.api.storage import VolumeAttachment
from volplane.client.client import Client
from volplane.rules import pods
from volplane.rules.binding import is_pair

DRIVER = "ebs.csi.aws.com"
FINALIZER = "external-attacher/ebs-csi-aws-com"
ZONE = "topology.kubernetes.io/zone"


class SimulatedCloud:
    """What is really the case: where each disk is, and who mounts it."""

    def __init__(self) -> None:
        self.attached: dict[str, str] = {}  # volume → node
        self.mounted: set[tuple[str, str]] = set()  # volume, node
        self.refused = 0
        self.errors: list[BaseException] = []


class SimulatedRole:
    """Wakes for every change of its kinds, and works one key at a time."""

    def __init__(self, client: Client, cloud: SimulatedCloud, random: Random, trouble: float) -> None:
        self.client, self.cloud, self.random, self.trouble = client, cloud, random, trouble
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, kind: type[Any], work: Callable[[str], Awaitable[None]]) -> Any:
        cache = self.client.cache(kind)

        def wake(old: Any, new: Any) -> None:
            self.wake((new or old).key, work)

        cache.subscribe(wake)
        return cache

    def wake(self, key: str, work: Callable[[str], Awaitable[None]]) -> None:
        if key in self._busy:
            self._again.add(key)
            return
        self._busy.add(key)
        task = asyncio.create_task(self._work(key, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, key: str, work: Callable[[str], Awaitable[None]]) -> None:
        while True:
            self._again.discard(key)
            await asyncio.sleep(self.random.uniform(0.001, 0.3))
            try:
                await work(key)
            except (Conflict, NotFound):
                self._again.add(key)
            except Exception as error:
                self.cloud.errors.append(error)
                raise
            if key not in self._again:
                break
        self._busy.discard(key)

    def fails(self) -> bool:
        return self.random.random() < self.trouble

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Provisioner(SimulatedRole):
    def start(self) -> None:
        self.nodes = self.client.cache(Node)
        self.claims = self.watch(PersistentVolumeClaim, self.claim)
        self.volumes = self.watch(PersistentVolume, self.volume)
        self.attachments = self.client.cache(VolumeAttachment)
        self.attachments.subscribe(lambda old, new: self._keys_of_freed(old, new))

    def _keys_of_freed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        if new is None and old is not None:
            self.wake(old.spec.source.persistent_volume_name or "", self.volume)

    async def claim(self, key: str) -> None:
        claim = self.claims.at(key)
        if (
            claim is None
            or claim.spec.volume_name
            or STORAGE_PROVISIONER_ANNOTATION not in claim.metadata.annotations
        ):
            return
        chosen = claim.metadata.annotations.get(SELECTED_NODE_ANNOTATION)
        if chosen is None and claim.spec.storage_class_name == "late":
            return
        if chosen is not None and self.fails():
            gone = {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: None}}}
            await self.client.patch(
                PersistentVolumeClaim, claim.name, claim.namespace, merge=gone, uid=claim.uid
            )
            return
        node = self.nodes.get(chosen) if chosen else None
        zone = node.metadata.labels[ZONE] if node else "a"
        await self.client.create(_disk(claim, zone), exists_ok=True)

    async def volume(self, name: str) -> None:
        volume = self.volumes.get(name)
        if volume is None or volume.status.phase != "Released" or volume.is_deleting:
            return
        if any(a.spec.source.persistent_volume_name == name for a in self.attachments.all()):
            return
        await self.client.delete(PersistentVolume, name, uid=volume.uid, missing_ok=True)


def _disk(claim: PersistentVolumeClaim, zone: str) -> PersistentVolume:
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    name = f"pvc-{claim.uid}"
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": dict(claim.spec.resources.requests),
        "storageClassName": claim.spec.storage_class_name,
        "persistentVolumeReclaimPolicy": "Delete",
        "csi": {"driver": DRIVER, "volumeHandle": name},
        "claimRef": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    metadata = {"name": name, "annotations": {PROVISIONED_BY_ANNOTATION: DRIVER}}
    return codec.convert(PersistentVolume, {"metadata": metadata, "spec": spec})


class Attacher(SimulatedRole):
    def start(self) -> None:
        self.attachments = self.watch(VolumeAttachment, self.attachment)

    async def attachment(self, name: str) -> None:
        seen = await self.client.find(VolumeAttachment, name)
        if seen is None:
            return
        volume, node = seen.spec.source.persistent_volume_name or "", seen.spec.node_name
        if seen.is_deleting:
            await self._detach(seen, volume, node)
        elif not seen.status.attached:
            await self._attach(seen, volume, node)

    async def _attach(self, seen: VolumeAttachment, volume: str, node: str) -> None:
        if FINALIZER not in seen.metadata.finalizers:
            held = {"metadata": {"finalizers": [FINALIZER]}}
            await self.client.patch(VolumeAttachment, seen.name, merge=held, uid=seen.uid)
        elsewhere = self.cloud.attached.get(volume, node) != node
        self.cloud.refused += elsewhere
        if elsewhere or self.fails():
            await self._say(seen, attachError={"message": "not now"})
            await asyncio.sleep(1.0)
            self._again.add(seen.name)
            return
        self.cloud.attached[volume] = node
        await self._say(seen, attached=True, attachError=None)

    async def _detach(self, seen: VolumeAttachment, volume: str, node: str) -> None:
        if self.fails():
            await self._say(seen, detachError={"message": "not now"})
            await asyncio.sleep(1.0)
            self._again.add(seen.name)
            return
        if self.cloud.attached.get(volume) == node:
            assert (volume, node) not in self.cloud.mounted, f"{volume} is taken from {node}, which mounts it"
            del self.cloud.attached[volume]
        await self.client.patch(
            VolumeAttachment,
            seen.name,
            merge={"metadata": {"finalizers": None}},
            uid=seen.uid,
            missing_ok=True,
        )

    async def _say(self, seen: VolumeAttachment, **status: Any) -> None:
        await self.client.patch(
            VolumeAttachment, seen.name, merge={"status": status}, subresource="status", uid=seen.uid
        )


class Kubelet(SimulatedRole):
    """Says what it uses, then mounts what is attached; a pod that goes is unmounted first."""

    def start(self, name: str) -> None:
        self.name = name
        self.pods = self.client.cache(Pod)
        self.claims = self.client.cache(PersistentVolumeClaim)
        self.volumes = self.client.cache(PersistentVolume)
        for kind in (Pod, PersistentVolumeClaim, PersistentVolume):
            self.client.cache(kind).subscribe(lambda old, new: self.wake(self.name, self.sync))
        self.client.cache(Node).subscribe(self._node_changed)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None and new.name == self.name:
            self.wake(self.name, self.sync)

    async def sync(self, _: str) -> None:
        mine = [p for p in self.pods.all() if p.spec.node_name == self.name]
        wanted = {v.name: v for p in mine if not p.is_deleting for v in self._volumes_of(p)}
        for volume, node in list(self.cloud.mounted):
            if node == self.name and volume not in wanted:
                self.cloud.mounted.discard((volume, node))
        await self._report(wanted.values())
        status = (await self.client.get(Node, self.name)).status
        listed = {v.name for v in status.volumes_attached}
        used = set(status.volumes_in_use)
        for name, needed in wanted.items():
            assert needed.spec.csi is not None
            unique = names.csi_volume_name(DRIVER, needed.spec.csi.volume_handle)
            if unique in listed and unique in used:
                assert self.cloud.attached.get(name) == self.name, (
                    f"{name} is mounted where it is not attached"
                )
                self.cloud.mounted.add((name, self.name))
        for pod in mine:
            await self._serve(pod)

    async def _report(self, wanted: Iterable[PersistentVolume]) -> None:
        mounted = {v for v, node in self.cloud.mounted if node == self.name}
        handles = mounted | {v.spec.csi.volume_handle for v in wanted if v.spec.csi}
        used = sorted(names.csi_volume_name(DRIVER, handle) for handle in handles)
        if list((await self.client.get(Node, self.name)).status.volumes_in_use) != used:
            patch = {"status": {"volumesInUse": used}}
            await self.client.patch(Node, self.name, merge=patch, subresource="status")

    async def _serve(self, pod: Pod) -> None:
        volumes = self._volumes_of(pod)
        if pod.is_deleting:
            await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, grace=0, missing_ok=True)
            return
        whole = len(volumes) == len(pods.claim_keys(pod))
        if pod.status.phase != "Running" and whole and self._has_mounted(volumes):
            running = {"phase": "Running", "containerStatuses": [_running()]}
            await self.client.patch(
                Pod, pod.name, pod.namespace, merge={"status": running}, subresource="status", uid=pod.uid
            )

    def _has_mounted(self, volumes: list[PersistentVolume]) -> bool:
        return all((v.name, self.name) in self.cloud.mounted for v in volumes)

    def _volumes_of(self, pod: Pod) -> list[PersistentVolume]:
        found = []
        for key in pods.claim_keys(pod):
            claim = self.claims.at(key)
            volume = self.volumes.get(claim.spec.volume_name) if claim else None
            if claim is not None and volume is not None and is_pair(claim, volume):
                found.append(volume)
        return found


def _running() -> dict[str, Any]:
    return {
        "name": "c",
        "image": "i",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {}},
    }


def names_of(objects: Iterable[Resource]) -> list[str]:
    return sorted(obj.name for obj in objects)
