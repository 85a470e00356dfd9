"""Records as elements of EC2's XML responses."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.cloud.model import (
    OWNER,
    CloudAttachment,
    CloudInstance,
    CloudModification,
    CloudSnapshot,
    CloudVolume,
)
from volplane.cloud.xml import Value
from volplane.rules import instances
from volplane.rules.zones import zone_id


def tags(found: Mapping[str, str]) -> list[Value]:
    return [{"key": key, "value": value} for key, value in sorted(found.items())]


def volume(v: CloudVolume) -> dict[str, Value]:
    return {
        "volumeId": v.id,
        "size": v.shape.size,
        "snapshotId": v.snapshot,
        "sourceVolumeId": v.source or None,
        "availabilityZone": v.zone,
        "availabilityZoneId": zone_id(v.zone),
        "status": v.state,
        "createTime": v.created,
        "attachmentSet": [attachment(v.id, a) for a in v.attachments],
        "tagSet": tags(v.tags) or None,
        "volumeType": v.shape.type,
        "iops": v.shape.iops or None,
        "throughput": v.shape.throughput or None,
        "encrypted": v.encrypted,
        "kmsKeyId": v.kms_key or None,
        "fastRestored": v.fast_restored,
        "multiAttachEnabled": v.shape.multi_attach,
        "operator": {"managed": False},
        "volumeInitializationRate": v.initialization_rate or None,
    }


def attachment(volume_id: str, a: CloudAttachment) -> dict[str, Value]:
    return {
        "volumeId": volume_id,
        "instanceId": a.instance,
        "device": a.device,
        "status": a.state,
        "attachTime": a.since,
        "deleteOnTermination": False,
        "ebsCardIndex": a.card,
    }


def snapshot(s: CloudSnapshot, progress: int, owner: str) -> dict[str, Value]:
    return {
        "snapshotId": s.id,
        "volumeId": s.volume,
        "status": s.state,
        "statusMessage": s.why or None,
        "startTime": s.started,
        "completionTime": s.ended or None,
        "progress": f"{progress}%",
        "ownerId": owner,
        "volumeSize": s.size,
        "description": s.description,
        "encrypted": s.encrypted,
        "kmsKeyId": s.kms_key or None,
        "completionDurationMinutes": s.duration or None,
        "fullSnapshotSizeInBytes": s.stored or None,
        "storageTier": "standard",
        "tagSet": tags(s.tags) or None,
    }


def member(s: CloudSnapshot, progress: int, owner: str) -> dict[str, Value]:
    """One snapshot of CreateSnapshots, which names the state differently from other actions."""
    shown = snapshot(s, progress, owner)
    names = ("description", "encrypted", "ownerId", "progress", "snapshotId", "startTime", "tagSet")
    return {
        **{name: shown[name] for name in (*names, "volumeId", "volumeSize")},
        "state": shown["status"],
    }


def modification(m: CloudModification) -> dict[str, Value]:
    return {
        "volumeId": m.volume,
        "modificationState": m.state,
        "statusMessage": m.failed or None,
        "targetSize": m.target.size,
        "targetIops": m.target.iops or None,
        "targetVolumeType": m.target.type,
        "targetThroughput": m.target.throughput or None,
        "targetMultiAttachEnabled": m.target.multi_attach,
        "originalSize": m.original.size,
        "originalIops": m.original.iops or None,
        "originalVolumeType": m.original.type,
        "originalThroughput": m.original.throughput or None,
        "originalMultiAttachEnabled": m.original.multi_attach,
        "progress": 100 if m.ended else 0,
        "startTime": m.started,
        "endTime": m.ended or None,
    }


def state(i: CloudInstance) -> dict[str, Value]:
    return {"code": 16, "name": "running"} if i.running else {"code": 80, "name": "stopped"}


def instance(i: CloudInstance, volumes: list[CloudVolume]) -> dict[str, Value]:
    mapping: list[Value] = [_mapping(v.id, a) for v in volumes if (a := v.find_attachment(i.id))]
    return {
        "instanceId": i.id,
        "instanceState": state(i),
        "privateDnsName": i.name,
        "instanceType": i.type,
        "launchTime": i.launched,
        "placement": {
            "availabilityZone": i.zone,
            "availabilityZoneId": zone_id(i.zone),
            "tenancy": "default",
        },
        "rootDeviceType": "ebs",
        "rootDeviceName": instances.ROOT_DEVICE,
        "blockDeviceMapping": mapping,
        "networkInterfaceSet": [_interface(i)],
        "operator": {"managed": False},
        "tagSet": tags(i.tags) or None,
    }


def _interface(i: CloudInstance) -> dict[str, Value]:
    held: dict[str, Value] = {
        "attachmentId": instances.interface_attachment_id(i.id),
        "deviceIndex": 0,
        "networkCardIndex": 0,
        "status": "attached",
        "attachTime": i.launched,
        "deleteOnTermination": True,
    }
    return {
        "networkInterfaceId": instances.interface_id(i.id),
        "macAddress": instances.mac_address(i.id),
        "ownerId": OWNER,
        "status": "in-use",
        "interfaceType": "interface",
        "privateDnsName": i.name,
        "attachment": held,
    }


def _mapping(volume_id: str, a: CloudAttachment) -> dict[str, Value]:
    disk: dict[str, Value] = {
        "volumeId": volume_id,
        "status": a.state,
        "attachTime": a.since,
        "deleteOnTermination": False,
        "ebsCardIndex": a.card,
    }
    return {"deviceName": a.device, "ebs": disk}
