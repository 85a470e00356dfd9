"""Snapshots get their contents and copy their status: a key is a snapshot, with every content that names it.

Upstream has two queues and polls where they meet. Here a snapshot is woken by what it waits for: its content,
its claim, a class, a claim that is restored from it. An error that this controller writes into a snapshot
does not wake it: otherwise the write would end the backoff early.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from volplane.client.client import Client
from volplane.controllers.snapshot import plan as plans
from volplane.controllers.snapshot.common_plan import plan_content
from volplane.controllers.snapshot.crd_wait import wait_for_crds
from volplane.controllers.snapshot.operation_metrics import SnapshotOperations
from volplane.controllers.snapshot.plan import AddClaimFinalizer, RemoveClaimFinalizer, SnapshotInputs
from volplane.controllers.snapshot.settings import SnapshotControllerOptions
from volplane.controllers.snapshot.status_writer import COMPONENT, SnapshotWriter, relevant_fields
from volplane.controllers.snapshot.steps import AddContentFinalizer, CopyStatus, SetFinalizers, SnapshotStep
from volplane.loops.controller import Continue, Outcome
from volplane.loops.events import EventRecorder
from volplane.rules import snapshots, topology
from volplane.rules.snapshots import AnyContent, AnySnapshot
from volplane.rules.steps import CommonStep

log = logging.getLogger(__name__)

CLAIM = "claim/"  # before the keys of claims, among those of snapshots


class SnapshotView(Struct, frozen=True):
    snapshot: VolumeSnapshot | None
    contents: Sequence[VolumeSnapshotContent]  # all that name the snapshot
    inputs: SnapshotInputs = SnapshotInputs()

    @property
    def claim(self) -> PersistentVolumeClaim | None:
        return self.inputs.claim


class SourceClaimView(Struct, frozen=True):
    """A claim that snapshots were taken of."""

    claim: PersistentVolumeClaim
    used: bool  # by a snapshot that is not ready yet


View = SnapshotView | SourceClaimView


class VolumeSnapshots(SnapshotWriter[View, plans.Step]):
    name = COMPONENT

    def __init__(
        self,
        client: Client,
        settings: SnapshotControllerOptions = SnapshotControllerOptions(),  # noqa: B008  (frozen)
        *,
        events: EventRecorder | None = None,
        distributed: bool = False,
    ) -> None:
        """`distributed`: label contents with their node, whatever the settings are."""
        super().__init__(client, settings, events=events)
        self.distributed = distributed or settings.enable_distributed_snapshotting

    @property
    def options(self) -> plans.SnapshotPlanOptions:
        return plans.SnapshotPlanOptions(keep_mode=self.settings.prevent_volume_mode_conversion)

    def setup(self) -> None:
        self.memory = SnapshotOperations()
        self.snapshots = self.watch(
            VolumeSnapshot, self.keys_of_snapshot, observe=self.memory.observe_snapshot
        )
        self.contents = self.watch(VolumeSnapshotContent, self.keys_of_content)
        self.classes = self.watch(VolumeSnapshotClass, self.keys_of_class)
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.volumes = self.watch(PersistentVolume)
        self.by_ref = self.contents.index("snapshot", lambda c: [snapshots.snapshot_key(c)])
        self.unready = self.snapshots.index("claim", lambda s: [] if snapshots.is_ready(s) else _source(s))
        self.by_content = self.snapshots.index("content", _named_content)
        self.unbound = self.snapshots.index("unbound", lambda s: [] if snapshots.bound_name(s) else ["all"])
        self.restores = self.claims.index("restored from", snapshots.restored_from)
        if self.distributed:
            self.nodes = self.watch(Node)
        if self.settings.groups:
            self.groups = self.watch(VolumeGroupSnapshot, self.keys_of_group)

    async def run(self) -> None:
        """Once the kinds of snapshots are served, which may be later, or never."""
        await wait_for_crds(self.client, groups=self.settings.groups)
        await super().run()

    # --- which keys a change wakes

    def keys_of_snapshot(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> Iterator[str]:
        snapshot = new or old
        if snapshot is not None and (old is new or relevant_fields(old) != relevant_fields(new)):
            yield snapshot.key
        if new is None and old is not None:
            yield from (CLAIM + key for key in _source(old))

    def keys_of_content(
        self, old: VolumeSnapshotContent | None, new: VolumeSnapshotContent | None
    ) -> Iterator[str]:
        content = new or old
        if content is not None:
            yield snapshots.snapshot_key(content)
            yield from (s.key for s in self.by_content[content.name])

    def keys_of_class(
        self, old: VolumeSnapshotClass | None, new: VolumeSnapshotClass | None
    ) -> Iterator[str]:
        if new is not None and old is not new:
            yield from (snapshot.key for snapshot in self.unbound["all"])

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        if new is not None and new.is_deleting and snapshots.CLAIM_AS_SOURCE in new.metadata.finalizers:
            yield CLAIM + new.key
        if claim is None or old is new or _relevant_claim_fields(old) == _relevant_claim_fields(new):
            return
        yield from (s.key for s in self.unready[claim.key])
        for key in snapshots.restored_from(old) if old is not None else ():
            snapshot = self.snapshots.at(key)
            if snapshot is not None and snapshot.is_deleting:
                yield key

    def keys_of_group(
        self, old: VolumeGroupSnapshot | None, new: VolumeGroupSnapshot | None
    ) -> Iterator[str]:
        if new is None and old is not None:
            for snapshot in self.snapshots.namespace(old.namespace):
                if snapshots.IN_GROUP in snapshot.metadata.finalizers and _owned_by(snapshot, old.uid):
                    yield snapshot.key

    # --- what the caches show

    def view(self, key: str) -> View | None:
        if key.startswith(CLAIM):
            claim = self.claims.at(key.removeprefix(CLAIM))
            return SourceClaimView(claim, bool(self.unready[claim.key])) if claim is not None else None
        snapshot, contents = self.snapshots.at(key), self.by_ref[key]
        if snapshot is None:
            return SnapshotView(None, contents) if contents else None
        return SnapshotView(snapshot, contents, self.view_inputs(snapshot))

    def view_inputs(self, snapshot: VolumeSnapshot) -> SnapshotInputs:
        name = snapshot.spec.source.persistent_volume_claim_name
        claim = self.claims.get(name, snapshot.namespace) if name is not None else None
        volume = self.volumes.get(claim.spec.volume_name) if claim is not None else None
        users = self.unready[f"{snapshot.namespace}/{name}"] if name is not None else []
        return SnapshotInputs(
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
        """With distributed snapshotting, a node that the volume's affinity allows."""
        if not self.distributed or volume is None:
            return ""
        if volume.spec.node_affinity is None:
            return ""
        return next(
            (n.name for n in self.nodes.all() if topology.is_reachable_from(volume, n.metadata.labels)), ""
        )

    def _driver(self, snapshot: VolumeSnapshot, inputs: SnapshotInputs) -> str:
        if inputs.content is not None:
            return inputs.content.spec.driver
        found = self.classes.get(snapshot.spec.volume_snapshot_class_name or "")
        return found.driver if found is not None else ""

    # --- what to do

    def plan(self, view: View) -> Iterator[plans.Step | CommonStep]:
        if isinstance(view, SourceClaimView):
            # The finalizers of its snapshot were removed by force: nothing else would release the claim.
            if not view.used and snapshots.CLAIM_AS_SOURCE in view.claim.metadata.finalizers:
                yield RemoveClaimFinalizer()
            return
        for content in view.contents:
            yield from plan_content(content)
        if view.snapshot is not None:
            yield from plans.plan(view.snapshot, view.inputs, self.options)

    def update_memory(self, key: str, view: View | None, steps: Sequence[plans.Step | CommonStep]) -> None:
        if isinstance(view, SnapshotView) and view.snapshot is not None:
            self.memory.begin(view.snapshot, self._driver(view.snapshot, view.inputs))

    # --- doing it

    def subject(self, view: View) -> VolumeSnapshot:
        assert isinstance(view, SnapshotView)
        assert view.snapshot is not None
        return view.snapshot

    async def act(self, key: str, view: View, step: plans.Step) -> Outcome[View]:
        match step:
            case AddContentFinalizer(content, finalizers):
                await self.set_finalizers(content, finalizers)
            case RemoveClaimFinalizer():
                removal = {"$deleteFromPrimitiveList/finalizers": [snapshots.CLAIM_AS_SOURCE]}
                await self._patch_claim(view.claim, removal)
            case AddClaimFinalizer():
                await self._patch_claim(view.claim, {"finalizers": [snapshots.CLAIM_AS_SOURCE]})
            case _:
                assert isinstance(view, SnapshotView)
                snapshot = self.subject(view)
                self._measure(snapshot, step)
                written = await self.act_on_snapshot(snapshot, view.inputs.content, step)
                return Continue(structs.replace(view, snapshot=written)) if written is not None else None
        return None

    def _measure(self, snapshot: VolumeSnapshot, step: SnapshotStep) -> None:
        """Finish the operations that a step completes."""
        if isinstance(step, SetFinalizers) and snapshot.is_deleting:
            self.memory.finish(snapshot, "DeleteSnapshot")
        elif isinstance(step, CopyStatus):
            self.memory.end(snapshot, step.status)

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

    async def create_content(self, snapshot: AnySnapshot, content: AnyContent) -> None:
        """With the version of the snapshot that the content is created for."""
        assert isinstance(content, VolumeSnapshotContent)
        version = snapshot.metadata.resource_version
        ref = structs.replace(content.spec.volume_snapshot_ref, resource_version=version)
        spec = structs.replace(content.spec, volume_snapshot_ref=ref)
        await super().create_content(snapshot, structs.replace(content, spec=spec))


def _source(snapshot: VolumeSnapshot) -> list[str]:
    name = snapshot.spec.source.persistent_volume_claim_name
    return [f"{snapshot.namespace}/{name}"] if name is not None else []


def _named_content(snapshot: VolumeSnapshot) -> list[str]:
    """The pre-provisioned content that it names; an index function."""
    name = snapshot.spec.source.volume_snapshot_content_name
    return [name] if name is not None else []


def _owned_by(snapshot: VolumeSnapshot, uid: str) -> bool:
    return any(owner.uid == uid for owner in snapshot.metadata.owner_references)


def _relevant_claim_fields(claim: PersistentVolumeClaim | None) -> object:
    if claim is None:
        return None
    return claim.uid, claim.is_deleting, claim.status.phase, claim.spec.volume_name
