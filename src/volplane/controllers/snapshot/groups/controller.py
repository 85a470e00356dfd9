"""The group snapshot controller. A key is a group snapshot with its content and its members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, assert_never

from msgspec import Struct, structs

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.selectors import LabelMatcher
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshot,
    VolumeSnapshotInfo,
)
from volplane.base import trace
from volplane.client.client import Client
from volplane.controllers.snapshot.crd_wait import wait_for_crds
from volplane.controllers.snapshot.groups import objects
from volplane.controllers.snapshot.groups import plan as plans
from volplane.controllers.snapshot.groups.plan import (
    AddGroupContentFinalizer,
    CreateGroupContent,
    CreateMember,
    DeleteMember,
    GroupSnapshotInputs,
)
from volplane.controllers.snapshot.settings import SnapshotControllerOptions
from volplane.controllers.snapshot.status_writer import COMPONENT, SnapshotWriter
from volplane.controllers.snapshot.steps import (
    AnnotateBeingDeleted,
    BindContent,
    CopyStatus,
    DeleteContent,
    ReportError,
    SetFinalizers,
)
from volplane.loops.controller import Continue, Outcome
from volplane.loops.events import EventRecorder
from volplane.loops.queue import Backoff
from volplane.rules import binding, groups, snapshots
from volplane.rules.steps import CommonStep


class GroupSnapshotView(Struct, frozen=True):
    group: VolumeGroupSnapshot | None
    contents: Sequence[VolumeGroupSnapshotContent]  # all that name the group
    inputs: GroupSnapshotInputs = GroupSnapshotInputs()

    @property
    def content(self) -> VolumeGroupSnapshotContent:
        assert self.inputs.content is not None
        return self.inputs.content


class VolumeGroupSnapshots(SnapshotWriter[GroupSnapshotView, plans.Step]):
    name = "group-snapshot-controller"
    component = COMPONENT

    def __init__(
        self,
        client: Client,
        settings: SnapshotControllerOptions = SnapshotControllerOptions(),  # noqa: B008  (frozen)
        *,
        events: EventRecorder | None = None,
    ) -> None:
        super().__init__(
            client,
            events=events,
            workers=settings.worker_threads,
            backoff=Backoff(settings.retry_interval_start, settings.retry_interval_max),
            resync=settings.resync_period,
        )

    async def run(self) -> None:
        await wait_for_crds(self.client, groups=True)
        await super().run()

    def setup(self) -> None:
        self.groups = self.watch(VolumeGroupSnapshot, self.keys_of_group)
        self.contents = self.watch(VolumeGroupSnapshotContent, self.keys_of_content)
        self.classes = self.watch(VolumeGroupSnapshotClass, self.keys_of_class)
        self.snapshots = self.watch(VolumeSnapshot, self.keys_of_member)
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.volumes = self.watch(PersistentVolume)
        self.by_ref = self.contents.index("group", lambda c: [groups.group_key(c)])
        self.by_owner = self.snapshots.index("owner", lambda s: [o.uid for o in s.metadata.owner_references])
        self.by_handle = self.volumes.index("handle", _handle)
        self.restores = self.claims.index("restored from", snapshots.restored_from)

    # --- which keys a change wakes

    def keys_of_group(
        self, old: VolumeGroupSnapshot | None, new: VolumeGroupSnapshot | None
    ) -> Iterator[str]:
        if new is not None and (old is new or _relevant_fields(old) != _relevant_fields(new)):
            yield new.key

    def keys_of_content(
        self, old: VolumeGroupSnapshotContent | None, new: VolumeGroupSnapshotContent | None
    ) -> Iterator[str]:
        content = new or old
        if content is not None:
            yield groups.group_key(content)

    def keys_of_class(
        self, old: VolumeGroupSnapshotClass | None, new: VolumeGroupSnapshotClass | None
    ) -> Iterator[str]:
        if new is not None and old is not new:
            yield from (g.key for g in self.groups.all() if not groups.bound_name(g))

    def keys_of_member(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> Iterator[str]:
        snapshot = new or old
        if snapshot is not None and (new is None or old is None):
            for owner in snapshot.metadata.owner_references:
                yield f"{snapshot.namespace}/{owner.name}"

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        if claim is None or old is new:
            return
        if old is None or new is None or old.status.phase != new.status.phase:
            for group in self.groups.namespace(claim.namespace):
                if group.is_deleting or not groups.bound_name(group):
                    yield group.key

    # --- what the caches show

    def view(self, key: str) -> GroupSnapshotView | None:
        group, contents = self.groups.at(key), self.by_ref[key]
        if group is None:
            return GroupSnapshotView(None, contents) if contents else None
        return GroupSnapshotView(group, contents, self._inputs(group))

    def _inputs(self, group: VolumeGroupSnapshot) -> GroupSnapshotInputs:
        volumes, unfit = self._volumes(group)
        members = {s.name: s for s in self.by_owner[group.uid]}
        restoring = [
            s.key for s in members.values() if any(c.status.phase == "Pending" for c in self.restores[s.key])
        ]
        return GroupSnapshotInputs(
            content=self.contents.get(groups.named_content(group)),
            volumes=volumes,
            unfit=unfit,
            classes=self.classes.names(),
            members=members,
            restoring=tuple(restoring),
        )

    def _volumes(self, group: VolumeGroupSnapshot) -> tuple[tuple[PersistentVolume, ...], str]:
        """The volumes of the claims that the selector matches, or why there are none."""
        selector = group.spec.source.selector
        if selector is None:
            return (), ""
        wanted = LabelMatcher.of(selector)
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

    # --- what to do

    def plan(self, view: GroupSnapshotView) -> Iterator[plans.Step | CommonStep]:
        for content in view.contents:
            yield from plans.plan_content(content)
        if view.group is not None:
            yield from plans.plan(view.group, view.inputs)

    # --- doing it

    def subject(self, view: GroupSnapshotView) -> VolumeGroupSnapshot:
        assert view.group is not None
        return view.group

    async def act(self, key: str, view: GroupSnapshotView, step: plans.Step) -> Outcome[GroupSnapshotView]:
        if isinstance(step, AddGroupContentFinalizer):
            await self.set_finalizers(step.content, step.finalizers)
            return None
        group = self.subject(view)
        match step:
            case SetFinalizers(finalizers, name):
                spec = {"volumeGroupSnapshotClassName": name} if name is not None else None
                written = await self.set_finalizers(group, finalizers, spec)
                return Continue(structs.replace(view, group=written))
            case CreateGroupContent(made):
                with trace.span(COMPONENT, "create content", f"groupsnapshot/{group.key}"):
                    await self.client.create(made, exists_ok=True)
            case BindContent():
                await self._bind(group, view.content)
            case CreateMember(info):
                await self._create_member(group, view.content, info)
            case CopyStatus(status):
                await self.set_status(group, status)
            case ReportError(reason, message, unready, final):
                error = group.status.error if group.status is not None else None
                await self.report_error(group, error, reason, message, unready=unready, final=final)
            case AnnotateBeingDeleted():
                annotations = {"annotations": {groups.BEING_DELETED: snapshots.YES}}
                await self.patch(view.content, {"metadata": annotations})
            case DeleteContent():
                await self.delete_content(view.content)
            case DeleteMember(member):
                await self.delete_content(member)
            case _:
                assert_never(step)
        return None

    async def _bind(self, group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent) -> None:
        spec: dict[str, Any] = {"volumeGroupSnapshotRef": {"uid": group.uid}}
        if (name := group.spec.volume_group_snapshot_class_name) is not None:
            spec["volumeGroupSnapshotClassName"] = name
        await self.patch(content, {"spec": spec}, revision=content.metadata.resource_version)

    async def _create_member(
        self, group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent, info: VolumeSnapshotInfo
    ) -> None:
        """Write the status of the snapshot last: without one, all of it is done again."""
        volume = next(iter(self.by_handle[f"{content.spec.driver}/{info.volume_handle}"]), None)
        snapshot = await self.client.create(objects.make_member(group, info, volume), exists_ok=True)
        made = await self.client.create(
            objects.make_member_content(snapshot, info, content, volume), exists_ok=True
        )
        assert content.status is not None
        status = {
            "snapshotHandle": info.snapshot_handle,
            "volumeGroupSnapshotHandle": content.status.volume_group_snapshot_handle,
            "creationTime": info.creation_time,
            "restoreSize": info.restore_size,
            "readyToUse": info.ready_to_use,
        }
        await self.set_status(made, {key: value for key, value in status.items() if value is not None})
        await self.set_status(snapshot, {"boundVolumeSnapshotContentName": made.name})


def _handle(volume: PersistentVolume) -> list[str]:
    source = volume.spec.csi
    return [f"{source.driver}/{source.volume_handle}"] if source is not None else []


def _relevant_fields(group: VolumeGroupSnapshot | None) -> object:
    """The fields whose change matters; our own error in the status must not cut a backoff short."""
    if group is None:
        return None
    status = group.status
    shown = (
        (status.bound_volume_group_snapshot_content_name, status.ready_to_use) if status is not None else None
    )
    return group.uid, group.is_deleting, group.metadata.finalizers, group.spec, shown
