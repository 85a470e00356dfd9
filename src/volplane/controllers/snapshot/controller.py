"""Snapshots get their contents and follow them: a key is a snapshot, with every content that names it.

Upstream keeps two queues and polls where they meet. Here what a snapshot waits for wakes it: its content, its
claim, a class, a claim that is restored from it. The subtle thing: an error that we tell on a snapshot is no
news to us, or it would cut its own pause short.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from msgspec import structs

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim
from volplane.api.errors import APIError, Conflict
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from volplane.base import trace
from volplane.client.client import Client
from volplane.controllers.snapshot import plan as plans
from volplane.controllers.snapshot.defined import defined
from volplane.controllers.snapshot.plan import (
    Bind,
    DeleteContent,
    Fail,
    Follow,
    FreeClaim,
    HoldClaim,
    Make,
    MarkDeleting,
    Settle,
    World,
)
from volplane.controllers.snapshot.settings import Settings
from volplane.controllers.snapshot.timing import Operations
from volplane.controllers.snapshot.writing import COMPONENT, Writer
from volplane.loops.events import Recorder
from volplane.loops.queue import Backoff
from volplane.rules import snapshots, topology
from volplane.rules.steps import Say, Wait

log = logging.getLogger(__name__)

CLAIM = "claim/"  # before the keys of claims, among those of snapshots


class Snapshots(Writer):
    name = COMPONENT

    def __init__(
        self,
        client: Client,
        settings: Settings = Settings(),  # noqa: B008  (frozen)
        *,
        events: Recorder | None = None,
    ) -> None:
        self.workers = settings.worker_threads
        self.backoff = Backoff(settings.retry_interval_start, settings.retry_interval_max)
        self.resync = settings.resync_period
        super().__init__(client, events=events)
        self.settings = settings
        self.facts = plans.Settings(keep_mode=settings.prevent_volume_mode_conversion)
        self.times = Operations()

    def setup(self) -> None:
        self.snapshots = self.watch(VolumeSnapshot, self._snapshot_changed)
        self.contents = self.watch(VolumeSnapshotContent, self._content_changed)
        self.classes = self.watch(VolumeSnapshotClass, self._class_changed)
        self.claims = self.watch(PersistentVolumeClaim, self._claim_changed)
        self.volumes = self.watch(PersistentVolume)
        self.by_ref = self.contents.index("snapshot", lambda c: [snapshots.snapshot_key(c)])
        self.unready = self.snapshots.index("claim", lambda s: [] if snapshots.is_ready(s) else _source(s))
        self.by_content = self.snapshots.index("content", _named)
        self.unbound = self.snapshots.index("unbound", lambda s: [] if snapshots.bound_name(s) else ["all"])
        self.restores = self.claims.index("restored from", snapshots.restored_from)
        if self.settings.enable_distributed_snapshotting:
            self.nodes = self.watch(Node)
        if self.settings.groups:
            self.groups = self.watch(VolumeGroupSnapshot, self._group_changed)

    async def run(self) -> None:
        """A cluster may get the kinds of snapshots later, or never."""
        await defined(self.client, groups=self.settings.groups)
        await super().run()

    # --- whom a change wakes

    def _snapshot_changed(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> Iterator[str]:
        snapshot = new or old
        if snapshot is not None and (old is new or _facts(old) != _facts(new)):
            yield snapshot.key
        if new is None and old is not None:
            self.times.drop(old.uid)
            yield from (CLAIM + key for key in _source(old))

    def _content_changed(
        self, old: VolumeSnapshotContent | None, new: VolumeSnapshotContent | None
    ) -> Iterator[str]:
        content = new or old
        if content is not None:
            yield snapshots.snapshot_key(content)
            yield from (s.key for s in self.by_content[content.name])

    def _class_changed(
        self, old: VolumeSnapshotClass | None, new: VolumeSnapshotClass | None
    ) -> Iterator[str]:
        if new is not None and old is not new:
            yield from (snapshot.key for snapshot in self.unbound["all"])

    def _claim_changed(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        if new is not None and new.is_deleting and snapshots.CLAIM_AS_SOURCE in new.metadata.finalizers:
            yield CLAIM + new.key
        if claim is None or old is new or _claim_facts(old) == _claim_facts(new):
            return
        yield from (s.key for s in self.unready[claim.key])
        for key in snapshots.restored_from(old) if old is not None else ():
            snapshot = self.snapshots.at(key)
            if snapshot is not None and snapshot.is_deleting:
                yield key

    def _group_changed(
        self, old: VolumeGroupSnapshot | None, new: VolumeGroupSnapshot | None
    ) -> Iterator[str]:
        if new is None and old is not None:
            for snapshot in self.snapshots.namespace(old.namespace):
                if snapshots.IN_GROUP in snapshot.metadata.finalizers and _owned_by(snapshot, old.uid):
                    yield snapshot.key

    # --- the work

    async def reconcile(self, key: str) -> None:
        if key.startswith(CLAIM):
            return await self._let_go(self.claims.at(key.removeprefix(CLAIM)))
        for content in self.by_ref[key]:
            for held in plans.plan_content(content):
                await self.settle(content, held.finalizers)
        snapshot = self.snapshots.at(key)
        if snapshot is None:
            return
        world = self.world(snapshot)
        self.times.begin(snapshot, self._driver(snapshot, world))
        for step in plans.plan(snapshot, world, self.facts):
            snapshot = await self._act(snapshot, world, step)

    def world(self, snapshot: VolumeSnapshot) -> World:
        name = snapshot.spec.source.persistent_volume_claim_name
        claim = self.claims.get(name, snapshot.namespace) if name is not None else None
        volume = self.volumes.get(claim.spec.volume_name) if claim is not None else None
        users = self.unready[f"{snapshot.namespace}/{name}"] if name is not None else []
        return World(
            content=self.contents.get(snapshots.named_content(snapshot)),
            claim=claim,
            volume=volume,
            classes=self.classes.names(),
            restoring=tuple(c.key for c in self.restores[snapshot.key] if c.status.phase == "Pending"),
            claim_is_used=any(u.uid != snapshot.uid for u in users),
            group=self._group(snapshot),
            node=self._node(volume),
        )

    def _group(self, snapshot: VolumeSnapshot) -> str:
        if not self.settings.groups:
            return ""
        owners = {owner.uid for owner in snapshot.metadata.owner_references}
        found = (g.name for g in self.groups.namespace(snapshot.namespace) if g.uid in owners)
        return next(found, "")

    def _node(self, volume: PersistentVolume | None) -> str:
        """Who handles it, where nodes handle their own: a node that the volume's affinity allows."""
        if not self.settings.enable_distributed_snapshotting or volume is None:
            return ""
        if volume.spec.node_affinity is None:
            return ""
        return next(
            (n.name for n in self.nodes.all() if topology.reachable_from(volume, n.metadata.labels)), ""
        )

    def _driver(self, snapshot: VolumeSnapshot, world: World) -> str:
        if world.content is not None:
            return world.content.spec.driver
        found = self.classes.get(snapshot.spec.volume_snapshot_class_name or "")
        return found.driver if found is not None else ""

    async def _act(self, snapshot: VolumeSnapshot, world: World, step: plans.Step) -> VolumeSnapshot:
        """The snapshot as it is afterwards."""
        match step:
            case Settle():
                snapshot = await self._settle(snapshot, step)
            case HoldClaim():
                await self._patch_claim(world.claim, {"finalizers": [snapshots.CLAIM_AS_SOURCE]})
            case FreeClaim():
                await self._free(world.claim)
            case Make(content):
                await self._make(snapshot, content)
            case Bind():
                assert world.content is not None
                await self._bind(snapshot, world.content)
            case Follow(status):
                self.times.end(snapshot, status)
                await self.tell(snapshot, status)
            case Fail(reason, message, unready, final):
                error = snapshot.status.error if snapshot.status is not None else None
                await self.fail(snapshot, error, reason, message, unready=unready, final=final)
            case MarkDeleting():
                assert world.content is not None
                notes = {"annotations": {snapshots.BEING_DELETED: snapshots.YES}}
                await self.patch(world.content, {"metadata": notes})
            case DeleteContent():
                assert world.content is not None
                await self.drop(world.content)
            case Say(type, reason, message):
                self.events.event(snapshot, type, reason, message)
            case Wait(seconds, why):
                self.queue.later(snapshot.key, seconds, why)
            case _:
                assert_never(step)
        return snapshot

    async def _let_go(self, claim: PersistentVolumeClaim | None) -> None:
        """A claim that was held for a snapshot which somebody took away by force would be held for ever."""
        if claim is None or snapshots.CLAIM_AS_SOURCE not in claim.metadata.finalizers:
            return
        if not self.unready[claim.key]:
            await self._free(claim)

    async def _free(self, claim: PersistentVolumeClaim | None) -> None:
        gone = {"$deleteFromPrimitiveList/finalizers": [snapshots.CLAIM_AS_SOURCE]}
        await self._patch_claim(claim, gone)

    # --- what is written

    async def _settle(self, snapshot: VolumeSnapshot, step: Settle) -> VolumeSnapshot:
        if snapshot.is_deleting:
            self.times.finished(snapshot, "DeleteSnapshot")
        chosen = {"volumeSnapshotClassName": step.class_name} if step.class_name is not None else None
        return await self.settle(snapshot, step.finalizers, chosen)

    async def _patch_claim(self, claim: PersistentVolumeClaim | None, metadata: Mapping[str, Any]) -> None:
        assert claim is not None
        await self.client.patch(
            PersistentVolumeClaim,
            claim.name,
            claim.namespace,
            strategic={"metadata": metadata},
            uid=claim.uid,
            missing_ok="finalizers" not in metadata,
        )

    async def _make(self, snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> None:
        ref = structs.replace(
            content.spec.volume_snapshot_ref, resource_version=snapshot.metadata.resource_version
        )
        content = structs.replace(content, spec=structs.replace(content.spec, volume_snapshot_ref=ref))
        with trace.span(COMPONENT, "make content", f"snapshot/{snapshot.key}"):
            await self.client.create(content, exists_ok=True)
        log.info("Content made", extra={"snapshot": snapshot.key, "content": content.name})

    async def _bind(self, snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> None:
        spec: dict[str, Any] = {"volumeSnapshotRef": {"uid": snapshot.uid}}
        if (name := snapshot.spec.volume_snapshot_class_name) is not None:
            spec["volumeSnapshotClassName"] = name
        try:
            await self.patch(content, {"spec": spec}, revision=content.metadata.resource_version)
        except Conflict:
            raise  # it has changed meanwhile: whose it is, the next look tells
        except APIError as error:
            told = f"Snapshot failed to bind VolumeSnapshotContent, {error}"
            known = snapshot.status.error if snapshot.status is not None else None
            await self.fail(snapshot, known, "SnapshotBindFailed", told, unready=True, final=False)


def _source(snapshot: VolumeSnapshot) -> list[str]:
    name = snapshot.spec.source.persistent_volume_claim_name
    return [f"{snapshot.namespace}/{name}"] if name is not None else []


def _named(snapshot: VolumeSnapshot) -> list[str]:
    """The content from elsewhere that it asks for; an index function."""
    name = snapshot.spec.source.volume_snapshot_content_name
    return [name] if name is not None else []


def _owned_by(snapshot: VolumeSnapshot, uid: str) -> bool:
    return any(owner.uid == uid for owner in snapshot.metadata.owner_references)


def _facts(snapshot: VolumeSnapshot | None) -> object:
    """What of a snapshot is news: an error that we told on it must not cut a pause short."""
    if snapshot is None:
        return None
    meta, status = snapshot.metadata, snapshot.status
    told = (status.bound_volume_snapshot_content_name, status.ready_to_use) if status is not None else None
    return snapshot.uid, snapshot.is_deleting, meta.finalizers, snapshot.spec, told


def _claim_facts(claim: PersistentVolumeClaim | None) -> object:
    if claim is None:
        return None
    return claim.uid, claim.is_deleting, claim.status.phase, claim.spec.volume_name
