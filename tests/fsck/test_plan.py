"""What a check finds, by situation."""

from __future__ import annotations

import pytest
from msgspec import structs

from volplane.cloud.model import (
    AttachmentState,
    CloudAttachment,
    CloudSnapshot,
    CloudVolume,
    SnapshotState,
    VolumeShape,
    VolumeState,
)
from volplane.cluster.fsck.model import (
    CertificateSurvey,
    CheckFinding,
    DetachLoop,
    DirectorySurvey,
    EndContainers,
    ImageSurvey,
    MountSurvey,
    RemoveBridge,
    RemoveFile,
    RemoveMount,
    SetAside,
    StoredAttachment,
    StoredVolume,
    StoreSurvey,
)
from volplane.cluster.fsck.plan import CREATED_FOR, EBS, EFS, plan

GIB = 1 << 30
SHAPE = VolumeShape(1)
WHOLE = ImageSurvey(GIB, is_blank=False)
BLANK = ImageSurvey(GIB, is_blank=True)
ATTACHED = CloudAttachment("i-1", "/dev/xvdba", AttachmentState.ATTACHED)
DETACHING = CloudAttachment("i-1", "/dev/xvdba", AttachmentState.DETACHING)


def disk(state: VolumeState = VolumeState.AVAILABLE, **values: object) -> CloudVolume:
    made = CloudVolume("vol-1", "us-east-1a", SHAPE, state, used=True, tags={CREATED_FOR: "pv-1"})
    return structs.replace(made, **values)


def snapshot(state: SnapshotState = SnapshotState.COMPLETED) -> CloudSnapshot:
    return CloudSnapshot("snap-1", "vol-1", 1, state, "now")


IN_USE = disk(VolumeState.IN_USE, attachments=(ATTACHED,))
VOLUME = StoredVolume("pv-1", EBS, "vol-1", "default/data")
SHARED = StoredVolume("pv-2", EFS, "fs-1::fsap-1")
HEALTHY = DirectorySurvey(
    stores=[StoreSurvey("state.db", records=9)],
    volumes=[VOLUME],
    disks={"vol-1": disk()},
    images={"vol-1": WHOLE},
    certificates=[CertificateSurvey("ca.crt", 3000)],
)
RUNNING = structs.replace(
    HEALTHY,
    running=True,
    disks={"vol-1": IN_USE},
    loops={"/dev/loop1": "/d/cloud/disks/vol-1.img"},
    attachments=[StoredAttachment("csi-1", "vol-1", "worker-1", "i-1")],
    pods=frozenset({"uid-1"}),
    mounts=[MountSurvey("/d/n/1/pods/uid-1/volumes/x", "uid-1"), MountSurvey("/d/n/1/plugins/y")],
)


@pytest.mark.parametrize("survey", [HEALTHY, RUNNING, DirectorySurvey()])
def test_a_healthy_directory_has_no_findings(survey: DirectorySurvey) -> None:
    assert list(plan(survey)) == []


SITUATIONS: dict[str, tuple[DirectorySurvey, dict[str, object], list[str]]] = {
    "a database is damaged": (
        HEALTHY,
        {"stores": [StoreSurvey("state.db", damage="malformed")]},
        ["error store/state.db is damaged (malformed): restore a backup"],
    ),
    "an object cannot be read": (
        HEALTHY,
        {"stores": [StoreSurvey("state.db", unreadable={"/registry/x": "why"}, unknown={"foos.x": 2})]},
        [
            "error record/registry/x cannot be read by this version: why",
            "warning resource/foos.x 2 objects of a kind that this version does not know",
        ],
    ),
    "a volume without a disk": (
        HEALTHY,
        {"disks": {}, "images": {}},
        ["error pv/pv-1 the record of its disk vol-1 is missing, claim default/data"],
    ),
    "a volume whose disk cannot be read": (
        HEALTHY,
        {"disks": {}, "unreadable_records": frozenset({"vol-1"})},
        ["error pv/pv-1 the record of its disk vol-1 cannot be read, claim default/data"],
    ),
    "a shared volume without a record": (
        HEALTHY,
        {"volumes": [VOLUME, SHARED]},
        ["error pv/pv-2 the record of its directory fs-1::fsap-1 is missing"],
    ),
    "a shared volume with all it needs": (
        HEALTHY,
        {"volumes": [VOLUME, SHARED], "access_points": frozenset({"fs-1::fsap-1"})},
        [],
    ),
    "a volume of another driver": (HEALTHY, {"volumes": [VOLUME, StoredVolume("x", "nfs", "h")]}, []),
    "a shared directory is missing": (
        HEALTHY,
        {"lost_directories": ["fs-1::fsap-1"], "unreadable_points": ["efs/.points/x.json"]},
        [
            "error directory/fs-1::fsap-1 is missing: restore its files from a backup",
            "error file/efs/.points/x.json the record of a shared directory cannot be read: restore it from"
            " a backup",
        ],
    ),
    "a disk's file is missing": (
        HEALTHY,
        {"images": {}},
        ["error disk/vol-1 its file is missing: put its file back and start the cluster again"],
    ),
    "a disk's file is too short": (
        HEALTHY,
        {"images": {"vol-1": ImageSurvey(5, is_blank=False)}},
        [
            f"error disk/vol-1 its file has 5 bytes instead of {GIB}: put its file back and start the cluster"
            " again"
        ],
    ),
    "a blank file is too short": (HEALTHY, {"images": {"vol-1": ImageSurvey(5, is_blank=True)}}, []),
    "the file of an unused disk is missing": (
        HEALTHY,
        {"images": {}, "disks": {"vol-1": disk(used=False)}},
        [],
    ),
    "a disk is being created": (
        HEALTHY,
        {"images": {}, "disks": {"vol-1": disk(VolumeState.CREATING)}},
        [],
    ),
    "a disk whose volume is gone": (
        HEALTHY,
        {"volumes": []},
        [
            "warning disk/vol-1 was created for the PersistentVolume pv-1, which does not exist. To delete"
            " its data: aws ec2 delete-volume --volume-id vol-1"
        ],
    ),
    "a disk that a user has created": (HEALTHY, {"volumes": [], "disks": {"vol-1": disk(tags={})}}, []),
    "files without a record": (
        HEALTHY,
        {"images": {"vol-1": WHOLE, "vol-2": BLANK}, "orphaned": ["cloud/disks/vol-4.img.orphaned"]},
        [
            "warning file/cloud/disks/vol-2.img has no record RemoveFile",
            "warning file/cloud/disks/vol-4.img.orphaned was set aside because it had no record: copy what"
            " you need, and remove it",
        ],
    ),
    "a file with data and without a record": (
        HEALTHY,
        {"images": {"vol-1": WHOLE, "vol-3": WHOLE}},
        ["warning file/cloud/disks/vol-3.img has no record, but data SetAside"],
    ),
    "files without a record in a running cluster": (
        RUNNING,
        {"images": {"vol-1": WHOLE, "vol-2": BLANK}, "snapshot_images": {"snap-1": WHOLE}},
        [],
    ),
    "a snapshot's file is missing": (
        HEALTHY,
        {"snapshots": {"snap-1": snapshot()}},
        ["error snapshot/snap-1 its file is missing: restore it from a backup"],
    ),
    "a snapshot is being taken": (
        HEALTHY,
        {"snapshots": {"snap-1": snapshot(SnapshotState.PENDING)}},
        [],
    ),
    "a snapshot without a record": (
        HEALTHY,
        {"snapshot_images": {"snap-1": WHOLE}},
        ["warning file/cloud/snapshots/snap-1.img has no record SetAside"],
    ),
    "certificates": (
        HEALTHY,
        {
            "certificates": [
                CertificateSurvey("a.crt", 0, "its key is gone"),
                CertificateSurvey("b.crt", -1),
                CertificateSurvey("c.crt", 29),
                CertificateSurvey("d.crt", 30),
            ]
        },
        [
            "error certificate/a.crt its key is gone",
            "warning certificate/b.crt has expired: the next start renews it",
            "warning certificate/c.crt expires in 29 days: the next start renews it",
        ],
    ),
    "an attachment that the disk service does not have": (
        RUNNING,
        {"disks": {"vol-1": disk()}, "loops": {}},
        [
            "warning volumeattachment/csi-1 counts as attached to worker-1, but vol-1 is not: delete its pod"
            " to attach it again"
        ],
    ),
    "an attachment whose disk is unknown": (
        RUNNING,
        {"disks": {}, "loops": {}, "volumes": []},
        [],
    ),
    "a disk that is being detached": (
        RUNNING,
        {
            "disks": {"vol-1": disk(VolumeState.IN_USE, attachments=(DETACHING,))},
            "loops": {},
            "attachments": [],
        },
        [],
    ),
    "a loop device without an attachment": (
        RUNNING,
        {"disks": {"vol-1": disk()}, "attachments": []},
        ["warning disk/vol-1 has the loop device /dev/loop1, but is not attached"],
    ),
    "an attachment without a loop device": (
        RUNNING,
        {"loops": {}},
        ["error disk/vol-1 is attached, but has no loop device: restart the cluster"],
    ),
    "a mount of a pod that is gone": (
        RUNNING,
        {"pods": frozenset()},
        ["warning mount//d/n/1/pods/uid-1/volumes/x belongs to the pod uid-1, which does not exist"],
    ),
    "a stopped cluster that has left everything": (
        HEALTHY,
        {
            "containers": {"/d/n/1/containers/c": "user/main"},
            "mounts": [MountSurvey("/d/n/1/x")],
            "loops": {"/dev/loop1": "/d/cloud/disks/vol-1.img"},
            "has_bridge": True,
            "temporary": ["pki/.ca.key.1.2.tmp"],
        },
        [
            "warning container/user/main runs although the cluster does not; the next start takes it over"
            " EndContainers",
            "warning mount//d/n/1/x is left; the next start takes it over RemoveMount",
            "warning device//dev/loop1 is bound to /d/cloud/disks/vol-1.img; the next start takes it over"
            " DetachLoop",
            "warning network the network of the pods is left; the next start takes it over RemoveBridge",
            "warning file/pki/.ca.key.1.2.tmp left by a process that was killed while it wrote RemoveFile",
        ],
    ),
}


def describe(finding: CheckFinding) -> str:
    repair = f" {type(finding.repair).__name__}" if finding.repair is not None else ""
    return f"{finding.severity} {finding.about} {finding.message}{repair}"


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_is_found(situation: str) -> None:
    survey, changes, wanted = SITUATIONS[situation]
    assert list(map(describe, plan(structs.replace(survey, **changes)))) == wanted


@pytest.mark.parametrize(
    ("repair", "text"),
    [
        (RemoveFile("a"), "remove a"),
        (SetAside("a"), "rename a to *.orphaned"),
        (EndContainers("/d/c"), "end the containers in /d/c"),
        (RemoveMount("/d/m"), "unmount /d/m"),
        (DetachLoop("/dev/loop1", "f"), "detach /dev/loop1"),
        (RemoveBridge(), "remove the network of the pods"),
    ],
)
def test_a_repair_says_what_it_does(repair: object, text: str) -> None:
    assert str(repair) == text
