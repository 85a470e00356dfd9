"""The disks as other programs of the same user see them, on the socket of wait reports."""

from __future__ import annotations

from volplane.cloud.model import CloudVolume
from volplane.cloud.records import CloudRecords
from volplane.loops.disk_states import DiskState


def list_disk_states(records: CloudRecords) -> list[DiskState]:
    return [_describe(records, volume) for volume in records.volumes.values()]


def _describe(records: CloudRecords, volume: CloudVolume) -> DiskState:
    held = volume.attachments
    return DiskState(
        id=volume.id,
        zone=volume.zone,
        size=volume.shape.size,
        type=volume.shape.type,
        state=volume.state,
        node=", ".join(_node_name(records, attachment.instance) for attachment in held),
        device=", ".join(sorted({attachment.device for attachment in held})),
        attachment=", ".join(sorted({attachment.state for attachment in held})),
    )


def _node_name(records: CloudRecords, instance: str) -> str:
    known = records.instances.get(instance)
    return known.name if known is not None and known.name else instance
