"""Group snapshots get their contents and members: a key is a group, with its content and its members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from volplane.controllers.snapshot.common_plan import plan_content
from volplane.controllers.snapshot.crd_wait import wait_for_crds
from volplane.controllers.snapshot.groups import objects
from volplane.controllers.snapshot.groups import plan as plans
from volplane.controllers.snapshot.groups.plan import CreateMember, DeleteMember, GroupSnapshotInputs
from volplane.controllers.snapshot.status_writer import COMPONENT, SnapshotWriter, relevant_fields
from volplane.controllers.snapshot.steps import AddContentFinalizer
from volplane.loops.controller import Continue, Outcome
from volplane.rules import binding, snapshots
from volplane.rules.steps import CommonStep


class GroupSnapshotView(Struct, frozen=True):
    group: VolumeGroupSnapshot | None
    contents: Sequence[VolumeGroupSnapshotContent]  # all that name the group
    inputs: GroupSnapshotInputs = GroupSnapshotInputs()


class VolumeGroupSnapshots(SnapshotWriter[GroupSnapshotView, plans.Step]):
    name = "group-snapshot-controller"
    component = COMPONENT

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
        self.by_ref = self.contents.index("group", lambda c: [snapshots.snapshot_key(c)])
        self.by_owner = self.snapshots.index("owner", lambda s: [o.uid for o in s.metadata.owner_references])
        self.by_handle = self.volumes.index("handle", _handle)
        self.restores = self.claims.index("restored from", snapshots.restored_from)

    # --- which keys a change wakes

    def keys_of_group(
        self, old: VolumeGroupSnapshot | None, new: VolumeGroupSnapshot | None
    ) -> Iterator[str]:
        if new is not None and (old is new or relevant_fields(old) != relevant_fields(new)):
            yield new.key

    def keys_of_content(
        self, old: VolumeGroupSnapshotContent | None, new: VolumeGroupSnapshotContent | None
    ) -> Iterator[str]:
        content = new or old
        if content is not None:
            yield snapshots.snapshot_key(content)

    def keys_of_class(
        self, old: VolumeGroupSnapshotClass | None, new: VolumeGroupSnapshotClass | None
    ) -> Iterator[str]:
        if new is not None and old is not new:
            yield from (g.key for g in self.groups.all() if not snapshots.bound_name(g))

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
                if group.is_deleting or not snapshots.bound_name(group):
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
            content=self.contents.get(snapshots.named_content(group)),
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
            yield from plan_content(content)
        if view.group is not None:
            yield from plans.plan(view.group, view.inputs)

    # --- doing it

    def subject(self, view: GroupSnapshotView) -> VolumeGroupSnapshot:
        assert view.group is not None
        return view.group

    async def act(self, key: str, view: GroupSnapshotView, step: plans.Step) -> Outcome[GroupSnapshotView]:
        if isinstance(step, AddContentFinalizer):
            await self.set_finalizers(step.content, step.finalizers)
            return None
        group, content = self.subject(view), view.inputs.content
        match step:
            case CreateMember(info):
                assert content is not None
                await self._create_member(group, content, info)
            case DeleteMember(member):
                await self.delete(member)
            case _:
                written = await self.act_on_snapshot(group, content, step)
                return Continue(structs.replace(view, group=written)) if written is not None else None
        return None

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
