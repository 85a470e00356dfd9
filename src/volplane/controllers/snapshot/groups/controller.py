"""Groups of snapshots at work: a key is a group, with its content and its members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_never

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.selectors import Labels
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshot,
    VolumeSnapshotInfo,
)
from volplane.base import trace
from volplane.client.client import Client
from volplane.controllers.snapshot.defined import defined
from volplane.controllers.snapshot.groups import objects
from volplane.controllers.snapshot.groups import plan as plans
from volplane.controllers.snapshot.groups.plan import (
    Bind,
    DeleteContent,
    DeleteMember,
    Fail,
    Follow,
    Make,
    MakeMember,
    MarkDeleting,
    Settle,
    World,
)
from volplane.controllers.snapshot.settings import Settings
from volplane.controllers.snapshot.writing import COMPONENT, Writer
from volplane.loops.events import Recorder
from volplane.loops.queue import Backoff
from volplane.rules import binding, groups, snapshots
from volplane.rules.steps import Say, Wait


class Groups(Writer):
    name = "group-snapshot-controller"
    component = COMPONENT

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

    async def run(self) -> None:
        await defined(self.client, groups=True)
        await super().run()

    def setup(self) -> None:
        self.groups = self.watch(VolumeGroupSnapshot, self._group_changed)
        self.contents = self.watch(VolumeGroupSnapshotContent, self._content_changed)
        self.classes = self.watch(VolumeGroupSnapshotClass, self._class_changed)
        self.snapshots = self.watch(VolumeSnapshot, self._member_changed)
        self.claims = self.watch(PersistentVolumeClaim, self._claim_changed)
        self.volumes = self.watch(PersistentVolume)
        self.by_ref = self.contents.index("group", lambda c: [groups.group_key(c)])
        self.by_owner = self.snapshots.index("owner", lambda s: [o.uid for o in s.metadata.owner_references])
        self.by_handle = self.volumes.index("handle", _handle)
        self.restores = self.claims.index("restored from", snapshots.restored_from)

    # --- whom a change wakes

    def _group_changed(
        self, old: VolumeGroupSnapshot | None, new: VolumeGroupSnapshot | None
    ) -> Iterator[str]:
        if new is not None and (old is new or _facts(old) != _facts(new)):
            yield new.key

    def _content_changed(
        self, old: VolumeGroupSnapshotContent | None, new: VolumeGroupSnapshotContent | None
    ) -> Iterator[str]:
        content = new or old
        if content is not None:
            yield groups.group_key(content)

    def _class_changed(
        self, old: VolumeGroupSnapshotClass | None, new: VolumeGroupSnapshotClass | None
    ) -> Iterator[str]:
        if new is not None and old is not new:
            yield from (g.key for g in self.groups.all() if not groups.bound_name(g))

    def _member_changed(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> Iterator[str]:
        snapshot = new or old
        if snapshot is not None and (new is None or old is None):
            for owner in snapshot.metadata.owner_references:
                yield f"{snapshot.namespace}/{owner.name}"

    def _claim_changed(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        if claim is None or old is new:
            return
        if old is None or new is None or old.status.phase != new.status.phase:
            for group in self.groups.namespace(claim.namespace):
                if group.is_deleting or not groups.bound_name(group):
                    yield group.key

    # --- the work

    async def reconcile(self, key: str) -> None:
        for content in self.by_ref[key]:
            for held in plans.plan_content(content):
                await self.settle(content, held.finalizers)
        group = self.groups.at(key)
        if group is None:
            return
        world = self._world(group)
        for step in plans.plan(group, world):
            group = await self._act(group, world, step)

    def _world(self, group: VolumeGroupSnapshot) -> World:
        volumes, unfit = self._volumes(group)
        members = {s.name: s for s in self.by_owner[group.uid]}
        restoring = [
            s.key for s in members.values() if any(c.status.phase == "Pending" for c in self.restores[s.key])
        ]
        return World(
            content=self.contents.get(groups.named_content(group)),
            volumes=volumes,
            unfit=unfit,
            classes=self.classes.names(),
            members=members,
            restoring=tuple(restoring),
        )

    def _volumes(self, group: VolumeGroupSnapshot) -> tuple[tuple[PersistentVolume, ...], str]:
        """The volumes of the claims that the selector finds, or why there are none."""
        selector = group.spec.source.selector
        if selector is None:
            return (), ""
        wanted = Labels.of(selector)
        found = [c for c in self.claims.namespace(group.namespace) if wanted.matches(c.metadata.labels)]
        if not found:
            return (), f"label selector {wanted} for group snapshot not applied to any PVC"
        volumes = []
        for claim in sorted(found, key=lambda c: c.name):
            volume = self.volumes.get(claim.spec.volume_name)
            if claim.status.phase != "Bound" or volume is None:
                why = "is not yet bound to a PV, will not attempt to take a group snapshot"
                return (), f"the PVC {claim.name} {why}"
            if not binding.is_for(volume, claim):
                return (), "claim in dataSource not bound or invalid"
            volumes.append(volume)
        return tuple(volumes), ""

    async def _act(self, group: VolumeGroupSnapshot, world: World, step: plans.Step) -> VolumeGroupSnapshot:
        """The group as it is afterwards."""
        content = world.content
        match step:
            case Settle(finalizers, name):
                chosen = {"volumeGroupSnapshotClassName": name} if name is not None else None
                group = await self.settle(group, finalizers, chosen)
            case Make(made):
                with trace.span(COMPONENT, "make content", f"groupsnapshot/{group.key}"):
                    await self.client.create(made, exists_ok=True)
            case Bind():
                assert content is not None
                await self._bind(group, content)
            case MakeMember(info):
                assert content is not None
                await self._make_member(group, content, info)
            case Follow(status):
                await self.tell(group, status)
            case Fail(reason, message, unready, final):
                error = group.status.error if group.status is not None else None
                await self.fail(group, error, reason, message, unready=unready, final=final)
            case MarkDeleting():
                assert content is not None
                notes = {"annotations": {groups.BEING_DELETED: snapshots.YES}}
                await self.patch(content, {"metadata": notes})
            case DeleteContent():
                assert content is not None
                await self.drop(content)
            case DeleteMember(member):
                await self.drop(member)
            case Say(type, reason, message):
                self.events.event(group, type, reason, message)
            case Wait(seconds, why):
                self.queue.later(group.key, seconds, why)
            case _:
                assert_never(step)
        return group

    async def _bind(self, group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent) -> None:
        spec: dict[str, Any] = {"volumeGroupSnapshotRef": {"uid": group.uid}}
        if (name := group.spec.volume_group_snapshot_class_name) is not None:
            spec["volumeGroupSnapshotClassName"] = name
        await self.patch(content, {"spec": spec}, revision=content.metadata.resource_version)

    async def _make_member(
        self, group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent, info: VolumeSnapshotInfo
    ) -> None:
        """The status of the snapshot last: without one, all of it is done again."""
        volume = next(iter(self.by_handle[f"{content.spec.driver}/{info.volume_handle}"]), None)
        snapshot = await self.client.create(objects.member(group, info, volume), exists_ok=True)
        made = await self.client.create(
            objects.member_content(snapshot, info, content, volume), exists_ok=True
        )
        assert content.status is not None
        status = {
            "snapshotHandle": info.snapshot_handle,
            "volumeGroupSnapshotHandle": content.status.volume_group_snapshot_handle,
            "creationTime": info.creation_time,
            "restoreSize": info.restore_size,
            "readyToUse": info.ready_to_use,
        }
        await self.tell(made, {key: value for key, value in status.items() if value is not None})
        await self.tell(snapshot, {"boundVolumeSnapshotContentName": made.name})


def _handle(volume: PersistentVolume) -> list[str]:
    source = volume.spec.csi
    return [f"{source.driver}/{source.volume_handle}"] if source is not None else []


def _facts(group: VolumeGroupSnapshot | None) -> object:
    """What of a group is news: an error that we told on it must not cut a pause short."""
    if group is None:
        return None
    status = group.status
    told = (
        (status.bound_volume_group_snapshot_content_name, status.ready_to_use) if status is not None else None
    )
    return group.uid, group.is_deleting, group.metadata.finalizers, group.spec, told
