"""Snapshots of several volumes at one moment.

EC2 takes them for the volumes of one instance in one call. A volume that is not attached does not change, so
its snapshot is taken separately; volumes on several instances are refused. All snapshots are tagged with the
group's id, and after the last one the group is tagged as complete. A group without that tag was interrupted
before an answer was sent, and is taken again. A complete group with missing snapshots has lost them, and they
are not replaced.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from volplane.csi import v1
from volplane.drivers.ebs import error_codes, snapshot_parameters
from volplane.drivers.ebs.constants import CLUSTER_TAG, COMPLETE_TAG, GROUP_TAG, NAME
from volplane.drivers.ebs.ec2 import Ec2Error, Ec2Snapshot, Ec2Volume
from volplane.drivers.ebs.error_codes import translate_errors
from volplane.drivers.ebs.snapshots import SnapshotCalls, to_csi_snapshot
from volplane.sdk.errors import AlreadyExists, FailedPrecondition, Internal, InvalidArgument, NotFound


class GroupCalls(SnapshotCalls):
    async def create_volume_group_snapshot(
        self, request: v1.CreateVolumeGroupSnapshotRequest
    ) -> v1.CreateVolumeGroupSnapshotResponse:
        tags = snapshot_parameters.group_tags(request.parameters)
        group, wanted = group_id(request.name), frozenset(request.source_volume_ids)
        with translate_errors():
            found = await self._members(group)
            if found and {s.volume for s in found} != wanted:
                found = await self._check_existing_group(request.name, found, wanted)
            if not found:
                found = await self._take(wanted, {**tags, GROUP_TAG: group, CLUSTER_TAG: "true"})
            if not any(COMPLETE_TAG in s.tags for s in found):
                await self._ec2.create_tags([s.id for s in found], {COMPLETE_TAG: "true"})
        return v1.CreateVolumeGroupSnapshotResponse(group_snapshot=_to_csi_group(group, found))

    async def _check_existing_group(
        self, name: str, found: list[Ec2Snapshot], wanted: frozenset[str]
    ) -> list[Ec2Snapshot]:
        """Delete an interrupted group; raise an error if a complete one differs from the request."""
        volumes = {s.volume for s in found}
        if any(COMPLETE_TAG in s.tags for s in found):
            if volumes < wanted:
                missing = ", ".join(sorted(wanted - volumes))
                raise FailedPrecondition(f"the group {name} has lost its snapshots of {missing}")
            raise AlreadyExists(f"{name} is a group snapshot of {', '.join(sorted(volumes))}")
        await self._remove(found)
        return []

    async def _take(self, wanted: Iterable[str], tags: dict[str, str]) -> list[Ec2Snapshot]:
        volumes = [await self._require_volume(volume) for volume in sorted(wanted)]
        attached = {v.id: v.attachments[0].instance for v in volumes if v.attachments}
        instances = sorted(set(attached.values()))
        if len(instances) > 1:
            attached_to = ", ".join(instances)
            raise FailedPrecondition(f"the volumes of a group must be on one instance, not on {attached_to}")
        made = []
        for instance in instances:
            made += await self._take_attached(instance, attached, tags)
        for volume in (v.id for v in volumes if v.id not in attached):
            made.append(await self._ec2.create_snapshot(volume, f"Created by {NAME} for {volume}", tags))
        return made

    async def _take_attached(
        self, instance: str, wanted: Iterable[str], tags: dict[str, str]
    ) -> list[Ec2Snapshot]:
        others = [volume for volume in await self._ec2.data_volumes(instance) if volume not in wanted]
        description = f"Created by {NAME} for a group on {instance}"
        made = await self._ec2.create_snapshots(instance, others, description, tags)
        # Volumes attached or detached meanwhile make the set differ from the request.
        await self._remove([s for s in made if s.volume not in wanted])
        made = [s for s in made if s.volume in wanted]
        if {s.volume for s in made} != set(wanted):
            await self._remove(made)
            raise FailedPrecondition(f"a volume of the group was just detached from {instance}")
        return made

    async def _require_volume(self, volume: str) -> Ec2Volume:
        if not volume.startswith("vol-"):
            raise NotFound(f"volume {volume} does not exist")
        return await self._ec2.volume(volume)

    async def delete_volume_group_snapshot(
        self, request: v1.DeleteVolumeGroupSnapshotRequest
    ) -> v1.DeleteVolumeGroupSnapshotResponse:
        with translate_errors():
            found = await self._members(request.group_snapshot_id)
            # Missing ones are no error: an earlier call may have been interrupted.
            _check_members(
                request.group_snapshot_id, [s.id for s in found], request.snapshot_ids, all_there=False
            )
            await self._remove(found)
        return v1.DeleteVolumeGroupSnapshotResponse()

    async def get_volume_group_snapshot(
        self, request: v1.GetVolumeGroupSnapshotRequest
    ) -> v1.GetVolumeGroupSnapshotResponse:
        with translate_errors():
            found = await self._members(request.group_snapshot_id)
        if not found:
            raise NotFound(f"group snapshot {request.group_snapshot_id} does not exist")
        _check_members(request.group_snapshot_id, [s.id for s in found], request.snapshot_ids, all_there=True)
        return v1.GetVolumeGroupSnapshotResponse(
            group_snapshot=_to_csi_group(request.group_snapshot_id, found)
        )

    async def _members(self, group: str) -> list[Ec2Snapshot]:
        return await self._ec2.snapshots({f"tag:{GROUP_TAG}": group})

    async def _remove(self, snapshots: Iterable[Ec2Snapshot]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for snapshot in snapshots:
                tasks.create_task(self._delete_snapshot_if_exists(snapshot.id))

    async def _delete_snapshot_if_exists(self, snapshot: str) -> None:
        try:
            await self._ec2.delete_snapshot(snapshot)
        except Ec2Error as error:
            if error.code != error_codes.SNAPSHOT_NOT_FOUND:
                raise


def group_id(name: str) -> str:
    return f"snapgroup-{hashlib.sha256(name.encode()).hexdigest()[:17]}"


def _check_members(group: str, members: Sequence[str], given: Sequence[str], *, all_there: bool) -> None:
    """Check the caller's list of the group's snapshots, if there is one."""
    strange = set(members) - set(given) or (all_there and set(given) - set(members))
    if given and strange:
        raise InvalidArgument(f"{group} consists of {', '.join(sorted(members))}")


def _to_csi_group(group: str, members: Sequence[Ec2Snapshot]) -> v1.VolumeGroupSnapshot:
    for member in members:
        if member.state == "error":
            raise Internal(f"{member.id} of {member.volume} failed: {member.why}")
    found = [to_csi_snapshot(member) for member in sorted(members, key=lambda s: s.id)]
    cut: Timestamp = min((s.creation_time for s in found), key=lambda t: (t.seconds, t.nanos))
    return v1.VolumeGroupSnapshot(
        group_snapshot_id=group,
        snapshots=found,
        creation_time=cut,
        ready_to_use=all(s.ready_to_use for s in found),
    )
