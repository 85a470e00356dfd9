"""Snapshots through the EC2 API.

EC2 has no client token for snapshots, so a snapshot with the name's tag is looked up first. The SDK never
runs two calls with the same name at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from volplane.base import clock
from volplane.csi import v1
from volplane.drivers.ebs import error_codes, snapshot_parameters
from volplane.drivers.ebs.constants import CLUSTER_TAG, GROUP_TAG, NAME, SNAPSHOT_TAG, VERSION
from volplane.drivers.ebs.ec2 import Ec2, Ec2Error, Ec2Snapshot
from volplane.drivers.ebs.error_codes import translate_errors
from volplane.drivers.ebs.parameters import GIB
from volplane.drivers.ebs.snapshot_parameters import SnapshotParameters
from volplane.sdk import Driver
from volplane.sdk.errors import Aborted, AlreadyExists, Internal, InvalidArgument, NotFound

_SNAPSHOT = re.compile(r"snap-[0-9a-f]{8,17}")


class SnapshotCalls(Driver):
    name, version = NAME, VERSION

    def __init__(self, ec2: Ec2) -> None:
        Driver.__init__(self)
        self._ec2 = ec2

    async def create_snapshot(self, request: v1.CreateSnapshotRequest) -> v1.CreateSnapshotResponse:
        wanted = snapshot_parameters.parse(request.parameters)
        with translate_errors():
            await self._check_zones(wanted.fast_restore_zones)
            found = await self._ec2.snapshots({f"tag:{SNAPSHOT_TAG}": request.name})
            for snapshot in found:
                if snapshot.volume != request.source_volume_id:
                    raise AlreadyExists(f"{request.name} is a snapshot of {snapshot.volume}")
                await self._complete(snapshot.id, wanted)
                return _answer(snapshot)
            volume = request.source_volume_id
            tags = {**wanted.tags, SNAPSHOT_TAG: request.name, CLUSTER_TAG: "true"}
            made = await self._ec2.create_snapshot(volume, f"Created by {NAME} for {volume}", tags)
            try:
                await self._complete(made.id, wanted)
            except (Ec2Error, Internal):
                await self._ec2.delete_snapshot(made.id)
                raise
        return _answer(made)

    async def _check_zones(self, wanted: Sequence[str]) -> None:
        known = set(await self._ec2.zones()) if wanted else set()
        if unknown := next((zone for zone in wanted if zone not in known), None):
            raise InvalidArgument(f"Availability zone {unknown} is not supported for fast snapshot restore")

    async def _complete(self, snapshot: str, wanted: SnapshotParameters) -> None:
        """Enable fast restores and lock a snapshot, unless that is done."""
        zones = set(wanted.fast_restore_zones)
        missing = zones - await self._ec2.fast_restore_zones(snapshot) if zones else zones
        why = await self._ec2.enable_fast_restores(snapshot, sorted(missing)) if missing else ""
        if why:
            raise Internal(f"Failed to create Fast Snapshot Restores: {why}")
        if wanted.lock and not await self._ec2.is_locked(snapshot):
            await self._ec2.lock_snapshot(snapshot, wanted.lock)

    async def delete_snapshot(self, request: v1.DeleteSnapshotRequest) -> v1.DeleteSnapshotResponse:
        if _SNAPSHOT.fullmatch(request.snapshot_id):
            with translate_errors():
                try:
                    await self._ec2.delete_snapshot(request.snapshot_id)
                except Ec2Error as error:
                    if error.code != error_codes.SNAPSHOT_NOT_FOUND:
                        raise
        return v1.DeleteSnapshotResponse()

    async def list_snapshots(self, request: v1.ListSnapshotsRequest) -> v1.ListSnapshotsResponse:
        after, most = request.starting_token, request.max_entries
        if after and not _SNAPSHOT.fullmatch(after):
            raise Aborted(f"{after!r} is not a valid token")
        with translate_errors():
            found = await self._list_snapshots(request.snapshot_id, request.source_volume_id)
        found = [s for s in sorted(found, key=lambda s: s.id) if s.id > after]
        page = found[:most] if most else found
        token = page[-1].id if len(page) < len(found) else ""
        entries = [v1.ListSnapshotsResponse.Entry(snapshot=to_csi_snapshot(s)) for s in page]
        return v1.ListSnapshotsResponse(entries=entries, next_token=token)

    async def _list_snapshots(self, snapshot: str, volume: str) -> list[Ec2Snapshot]:
        filters = {"volume-id": volume} if volume else {}
        if snapshot:
            filters["snapshot-id"] = snapshot
        return await self._ec2.snapshots(filters)

    async def get_snapshot(self, request: v1.GetSnapshotRequest) -> v1.GetSnapshotResponse:
        with translate_errors():
            snapshot = await self._ec2.snapshot(require_snapshot_id(request.snapshot_id))
        return v1.GetSnapshotResponse(snapshot=to_csi_snapshot(snapshot))


def require_snapshot_id(snapshot: str) -> str:
    if not _SNAPSHOT.fullmatch(snapshot):
        raise NotFound(f"snapshot {snapshot} does not exist")
    return snapshot


def _answer(snapshot: Ec2Snapshot) -> v1.CreateSnapshotResponse:
    if snapshot.state == "error":
        raise Internal(f"{snapshot.id} of {snapshot.volume} failed: {snapshot.why}")
    return v1.CreateSnapshotResponse(snapshot=to_csi_snapshot(snapshot))


def to_csi_snapshot(snapshot: Ec2Snapshot) -> v1.Snapshot:
    cut = Timestamp()
    cut.FromDatetime(clock.parse(snapshot.started))
    return v1.Snapshot(
        snapshot_id=snapshot.id,
        source_volume_id=snapshot.volume,
        size_bytes=snapshot.size * GIB,
        creation_time=cut,
        ready_to_use=snapshot.state == "completed",
        group_snapshot_id=snapshot.tags.get(GROUP_TAG, ""),
    )
