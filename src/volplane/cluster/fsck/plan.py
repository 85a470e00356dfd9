"""Compare what the stores, the disks and the machine say. Pure: a survey in, findings out."""

from __future__ import annotations

from collections.abc import Iterator

from volplane.cloud.model import GIB, AttachmentState, CloudVolume, SnapshotState, VolumeState
from volplane.cluster.fsck.model import (
    CheckFinding,
    DetachLoop,
    DirectorySurvey,
    EndContainers,
    RemoveBridge,
    RemoveFile,
    RemoveMount,
    Repair,
    SetAside,
    Severity,
)

EBS, EFS = "ebs.csi.aws.com", "efs.csi.aws.com"
CREATED_FOR = "kubernetes.io/created-for/pv/name"  # tag that the driver gives a disk
RENEWED = 30  # days before it expires, a certificate is renewed at a start

_ATTACHED = (AttachmentState.ATTACHING, AttachmentState.ATTACHED)


def plan(survey: DirectorySurvey) -> Iterator[CheckFinding]:
    yield from _check_stores(survey)
    yield from _check_volumes(survey)
    yield from _check_disks(survey)
    yield from _check_snapshots(survey)
    yield from _check_certificates(survey)
    yield from _check_machine(survey) if survey.running else _check_leftovers(survey)
    for path in survey.temporary:
        yield _warn(f"file/{path}", "left by a process that was killed while it wrote", RemoveFile(path))


def _check_stores(survey: DirectorySurvey) -> Iterator[CheckFinding]:
    for store in survey.stores:
        if store.damage:
            yield _fail(f"store/{store.name}", f"is damaged ({store.damage}): restore a backup")
        for key, why in store.unreadable.items():
            yield _fail(f"record{key}", f"cannot be read by this version: {why}")
        for resource, count in store.unknown.items():
            yield _warn(f"resource/{resource}", f"{count} objects of a kind that this version does not know")


def _check_volumes(survey: DirectorySurvey) -> Iterator[CheckFinding]:
    for volume in survey.volumes:
        claim = f", claim {volume.claim}" if volume.claim else ""
        if volume.driver == EBS and volume.handle not in survey.disks:
            known = "cannot be read" if volume.handle in survey.unreadable_records else "is missing"
            yield _fail(f"pv/{volume.name}", f"the record of its disk {volume.handle} {known}{claim}")
        if volume.driver == EFS and volume.handle not in survey.access_points:
            yield _fail(f"pv/{volume.name}", f"the record of its directory {volume.handle} is missing{claim}")
    for handle in survey.lost_directories:
        yield _fail(f"directory/{handle}", "is missing: restore its files from a backup")
    for path in survey.unreadable_points:
        yield _fail(
            f"file/{path}", "the record of a shared directory cannot be read: restore it from a backup"
        )
    attached = {
        (disk.id, attachment.instance)
        for disk in survey.disks.values()
        for attachment in disk.attachments
        if attachment.state in _ATTACHED
    }
    for attachment in survey.attachments:
        if attachment.handle in survey.disks and (attachment.handle, attachment.instance) not in attached:
            yield _warn(
                f"volumeattachment/{attachment.name}",
                f"counts as attached to {attachment.node}, but {attachment.handle} is not: delete its pod to"
                " attach it again",
            )


def _check_disks(survey: DirectorySurvey) -> Iterator[CheckFinding]:
    volumes = {volume.name for volume in survey.volumes}
    for disk in survey.disks.values():
        if lost := _describe_loss(survey, disk):
            yield _fail(f"disk/{disk.id}", f"{lost}: put its file back and start the cluster again")
        owner = disk.tags.get(CREATED_FOR, "")
        if owner and owner not in volumes and disk.state is VolumeState.AVAILABLE:
            yield _warn(
                f"disk/{disk.id}",
                f"was created for the PersistentVolume {owner}, which does not exist. To delete its data:"
                f" aws ec2 delete-volume --volume-id {disk.id}",
            )
    if survey.running:
        return  # a disk that is being created has a file, and no record yet
    for name in survey.images.keys() - survey.disks.keys() - survey.unreadable_records:
        image = survey.images[name]
        path = f"cloud/disks/{name}.img"
        yield _warn(
            f"file/{path}",
            "has no record" + ("" if image.is_blank else ", but data"),
            RemoveFile(path) if image.is_blank else SetAside(path),
        )
    for path in survey.orphaned:
        yield _warn(
            f"file/{path}", "was set aside because it had no record: copy what you need, and remove it"
        )


def _describe_loss(survey: DirectorySurvey, disk: CloudVolume) -> str:
    """What of a disk's data is missing; "" if nothing is."""
    if not disk.used or disk.state in (VolumeState.CREATING, VolumeState.DELETING):
        return ""  # an empty file is created again
    image = survey.images.get(disk.id)
    if image is None:
        return "its file is missing"
    if image.size < disk.shape.size * GIB and not image.is_blank:
        return f"its file has {image.size} bytes instead of {disk.shape.size * GIB}"
    return ""


def _check_snapshots(survey: DirectorySurvey) -> Iterator[CheckFinding]:
    for snapshot in survey.snapshots.values():
        if snapshot.state is SnapshotState.COMPLETED and snapshot.id not in survey.snapshot_images:
            yield _fail(f"snapshot/{snapshot.id}", "its file is missing: restore it from a backup")
    if survey.running:
        return
    for name in survey.snapshot_images.keys() - survey.snapshots.keys() - survey.unreadable_records:
        path = f"cloud/snapshots/{name}.img"
        yield _warn(f"file/{path}", "has no record", SetAside(path))


def _check_certificates(survey: DirectorySurvey) -> Iterator[CheckFinding]:
    for each in survey.certificates:
        if each.problem:
            yield _fail(f"certificate/{each.file}", each.problem)
        elif each.days < 0:
            yield _warn(f"certificate/{each.file}", "has expired: the next start renews it")
        elif each.days < RENEWED:
            yield _warn(f"certificate/{each.file}", f"expires in {each.days} days: the next start renews it")


def _check_machine(survey: DirectorySurvey) -> Iterator[CheckFinding]:
    """Of a running cluster: loop devices and mounts that belong to nothing."""
    attached = {disk.id for disk in survey.disks.values() if disk.attachments}
    bound = {_disk_of(file): device for device, file in survey.loops.items()}
    for name in bound.keys() & survey.disks.keys() - attached:
        yield _warn(f"disk/{name}", f"has the loop device {bound[name]}, but is not attached")
    for name in attached - bound.keys():
        disk = survey.disks[name]
        if disk.state is VolumeState.IN_USE and any(a.state in _ATTACHED[1:] for a in disk.attachments):
            yield _fail(f"disk/{name}", "is attached, but has no loop device: restart the cluster")
    for mount in survey.mounts:
        if mount.pod and mount.pod not in survey.pods:
            yield _warn(f"mount/{mount.target}", f"belongs to the pod {mount.pod}, which does not exist")


def _check_leftovers(survey: DirectorySurvey) -> Iterator[CheckFinding]:
    """Of a stopped cluster: everything that is still on the machine."""
    again = "the next start takes it over"
    for directory, text in survey.containers.items():
        yield _warn(
            f"container/{text}", f"runs although the cluster does not; {again}", EndContainers(directory)
        )
    for mount in survey.mounts:
        yield _warn(f"mount/{mount.target}", f"is left; {again}", RemoveMount(mount.target))
    for device, file in survey.loops.items():
        yield _warn(f"device/{device}", f"is bound to {file}; {again}", DetachLoop(device, file))
    if survey.has_bridge:
        yield _warn("network", f"the network of the pods is left; {again}", RemoveBridge())


def _disk_of(file: str) -> str:
    return file.rpartition("/")[2].removesuffix(".img")


def _fail(about: str, message: str) -> CheckFinding:
    return CheckFinding(Severity.ERROR, about, message)


def _warn(about: str, message: str, repair: Repair | None = None) -> CheckFinding:
    return CheckFinding(Severity.WARNING, about, message, repair)
