"""Situations of a VolumeAttachment and the steps that follow."""

from __future__ import annotations

import pytest
from msgspec import structs

from volplane.api.annotations import ATTACHMENT_NODE_ID_ANNOTATION
from volplane.api.core import (
    AWSElasticBlockStoreVolumeSource,
    CSIPersistentVolumeSource,
    PersistentVolume,
    PersistentVolumeSpec,
    SecretReference,
)
from volplane.api.meta import ObjectMeta
from volplane.api.storage import (
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
    VolumeAttachmentStatus,
    VolumeError,
)
from volplane.rules.attachments import is_relevant_change
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.sidecars.attacher.plan import (
    AddAttacherFinalizer,
    AttachedVolumeView,
    AttacherDriverInfo,
    ControllerPublish,
    ControllerUnpublish,
    MarkAttached,
    RemoveAttacherFinalizer,
    ReportAttachError,
    Step,
    is_disputed,
    may_release,
    plan,
    plan_release,
)

DRIVER = AttacherDriverInfo("hostpath.csi.k8s.io")
FINALIZER = "external-attacher/hostpath-csi-k8s-io"
NOW = "2026-01-01T00:00:00Z"


def attachment(
    *,
    deleting: bool = False,
    finalizer: bool = False,
    attached: bool = False,
    node_id: str = "",
    **spec: object,
) -> VolumeAttachment:
    meta = ObjectMeta(
        name="csi-1",
        uid="u1",
        deletion_timestamp=NOW if deleting else None,
        finalizers=(FINALIZER,) if finalizer else (),
        annotations={ATTACHMENT_NODE_ID_ANNOTATION: node_id} if node_id else {},
    )
    source = VolumeAttachmentSource(persistent_volume_name="pv1")
    made = VolumeAttachmentSpec(attacher=DRIVER.name, source=source, node_name="worker-1")
    return VolumeAttachment(
        metadata=meta, spec=structs.replace(made, **spec), status=VolumeAttachmentStatus(attached=attached)
    )


def volume(*, held: bool = False, deleting: bool = False, **csi: object) -> PersistentVolume:
    source = CSIPersistentVolumeSource(driver=DRIVER.name, volume_handle="vol-1")
    return PersistentVolume(
        metadata=ObjectMeta(
            name="pv1",
            finalizers=(FINALIZER,) if held else (),
            deletion_timestamp=NOW if deleting else None,
        ),
        spec=PersistentVolumeSpec(
            csi=structs.replace(source, **csi), access_modes=("ReadWriteOnce",), mount_options=("noatime",)
        ),
    )


def node(driver: str = DRIVER.name) -> CSINode:
    registered = CSINodeDriver(name=driver, node_id="i-1")
    return CSINode(metadata=ObjectMeta(name="worker-1"), spec=CSINodeSpec(drivers=(registered,)))


EBS = AttacherDriverInfo("ebs.csi.aws.com")


def in_tree(disk: str) -> PersistentVolume:
    return PersistentVolume(
        metadata=ObjectMeta(name="pv1"),
        spec=PersistentVolumeSpec(
            aws_elastic_block_store=AWSElasticBlockStoreVolumeSource(volume_id=disk),
            access_modes=("ReadWriteOnce",),
        ),
    )


PUBLISH = ControllerPublish("vol-1", "i-1", ("ReadWriteOnce",), mount_options=("noatime",))
SECRET = SecretReference(name="s", namespace="ns")
INLINE = VolumeAttachmentSource(inline_volume_spec=volume().spec)
NOTHING: list[Step | Wait] = []


def refuse(message: str, reason: WaitReason) -> list[Step | Wait]:
    """The error is reported, and the attachment is retried after the backoff."""
    data = WaitData(node="worker-1", driver=DRIVER.name)
    return [ReportAttachError(message, reason), Wait(reason, data, message=message, backoff=True)]


CASES: dict[str, tuple[list[Step | Wait], list[Step | Wait]]] = {
    "a new attachment holds the volume, then is published": (
        list(plan(attachment(), volume(), node(), DRIVER)),
        [structs.replace(PUBLISH, hold="pv1")],
    ),
    "a volume that is held already is only published": (
        list(plan(attachment(), volume(held=True), node(), DRIVER)),
        [PUBLISH],
    ),
    "after a crash what was noted is not noted again": (
        list(plan(attachment(finalizer=True, node_id="i-1"), volume(held=True), node(), DRIVER)),
        [structs.replace(PUBLISH, intent_written=True)],
    ),
    "a node that was registered anew is noted again": (
        list(plan(attachment(finalizer=True, node_id="i-0"), volume(held=True), node(), DRIVER)),
        [PUBLISH],
    ),
    "an attached one is left alone": (
        list(plan(attachment(attached=True, finalizer=True), volume(held=True), node(), DRIVER)),
        NOTHING,
    ),
    "unless the driver's list says otherwise": (
        list(
            plan(
                attachment(attached=True, finalizer=True, node_id="i-1"),
                volume(held=True),
                node(),
                DRIVER,
                forced=True,
            )
        ),
        [structs.replace(PUBLISH, intent_written=True)],
    ),
    "another driver's is not ours": (
        list(plan(attachment(attacher="other.example.com"), volume(), node(), DRIVER)),
        NOTHING,
    ),
    "a volume that is to go is not attached": (
        list(plan(attachment(), volume(deleting=True), node(), DRIVER)),
        refuse('PersistentVolume "pv1" is marked for deletion', WaitReason.ATTACHMENT_INVALID),
    ),
    "a volume that is not there": (
        list(plan(attachment(), None, node(), DRIVER)),
        refuse('persistentvolume "pv1" not found', WaitReason.VOLUME_NOT_FOUND),
    ),
    "a node where the driver is not registered": (
        list(plan(attachment(), volume(held=True), node("other.example.com"), DRIVER)),
        refuse(
            "CSINode worker-1 does not contain driver hostpath.csi.k8s.io", WaitReason.DRIVER_NOT_REGISTERED
        ),
    ),
    "a node without a CSINode": (
        list(plan(attachment(), volume(held=True), None, DRIVER)),
        refuse('csinode.storage.k8s.io "worker-1" not found', WaitReason.DRIVER_NOT_REGISTERED),
    ),
    "the annotation alone does not attach": (
        list(plan(attachment(node_id="i-1"), volume(held=True), None, DRIVER)),
        refuse('csinode.storage.k8s.io "worker-1" not found', WaitReason.DRIVER_NOT_REGISTERED),
    ),
    "read-only needs PUBLISH_READONLY": (
        list(plan(attachment(), volume(held=True, read_only=True), node(), DRIVER)),
        [PUBLISH],
    ),
    "and is passed on with it": (
        list(
            plan(
                attachment(),
                volume(held=True, read_only=True),
                node(),
                AttacherDriverInfo(DRIVER.name, publishes_readonly=True),
            )
        ),
        [structs.replace(PUBLISH, read_only=True)],
    ),
    "secret, attributes and file system go along": (
        list(
            plan(
                attachment(),
                volume(
                    held=True,
                    controller_publish_secret_ref=SECRET,
                    volume_attributes={"a": "b"},
                    fs_type="xfs",
                ),
                node(),
                DRIVER,
            )
        ),
        [structs.replace(PUBLISH, secret=SECRET, attributes={"a": "b"}, fs_type="xfs")],
    ),
    "an in-tree volume is published by its CSI driver": (
        list(plan(attachment(attacher=EBS.name), in_tree("aws://us-east-1a/vol-1"), node(EBS.name), EBS)),
        [ControllerPublish("vol-1", "i-1", ("ReadWriteOnce",), attributes={"partition": "0"}, hold="pv1")],
    ),
    "an in-tree volume without a valid id": (
        list(plan(attachment(attacher=EBS.name), in_tree("aws://x"), node(EBS.name), EBS))[:1],
        [
            ReportAttachError(
                'PersistentVolume pv1: spec.awsElasticBlockStore.volumeID: "aws://x" is not a volume id: '
                "use vol-…, aws:///vol-… or aws://<zone>/vol-…"
            )
        ],
    ),
    "an inline volume has nothing to hold": (
        list(plan(attachment(source=INLINE), None, node(), DRIVER)),
        [PUBLISH],
    ),
    "no source at all": (
        list(plan(attachment(source=VolumeAttachmentSource()), None, node(), DRIVER)),
        refuse(
            "neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source",
            WaitReason.ATTACHMENT_INVALID,
        ),
    ),
    "two sources": (
        list(
            plan(
                attachment(source=structs.replace(INLINE, persistent_volume_name="pv1")),
                volume(),
                node(),
                DRIVER,
            )
        ),
        refuse(
            "both InlineCSIVolumeSource and PersistentVolumeName specified in VA source",
            WaitReason.ATTACHMENT_INVALID,
        ),
    ),
    "deleting: unpublished": (
        list(
            plan(attachment(deleting=True, finalizer=True, attached=True), volume(held=True), node(), DRIVER)
        ),
        [ControllerUnpublish("vol-1", "i-1")],
    ),
    "deleting, driver no longer registered: the annotation knows the node": (
        list(plan(attachment(deleting=True, finalizer=True, node_id="i-9"), volume(), None, DRIVER)),
        [ControllerUnpublish("vol-1", "i-9")],
    ),
    "deleting, nothing knows the node": (
        list(plan(attachment(deleting=True, finalizer=True), volume(), None, DRIVER)),
        refuse('csinode.storage.k8s.io "worker-1" not found', WaitReason.DRIVER_NOT_REGISTERED),
    ),
    "deleting without our finalizer: nothing was ever attached": (
        list(plan(attachment(deleting=True), volume(), node(), DRIVER)),
        NOTHING,
    ),
    "deleting without a volume": (
        list(plan(attachment(deleting=True, finalizer=True), None, node(), DRIVER)),
        refuse('persistentvolume "pv1" not found', WaitReason.VOLUME_NOT_FOUND),
    ),
    "a driver that does not attach: trusted": (
        list(plan(attachment(), None, None, AttacherDriverInfo(DRIVER.name, attaches=False))),
        [MarkAttached()],
    ),
    "and let go at once": (
        list(plan(attachment(deleting=True), None, None, AttacherDriverInfo(DRIVER.name, attaches=False))),
        NOTHING,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_plan(case: str) -> None:
    steps, expected = CASES[case]
    assert steps == expected


def test_a_finalizer_never_ends_in_a_dash() -> None:
    assert AttacherDriverInfo("a.b.").finalizer == "external-attacher/a-b-X"
    assert DRIVER.finalizer == FINALIZER


def test_a_change_that_only_tells_of_an_error_keeps_the_backoff() -> None:
    before = attachment(finalizer=True)
    failed = structs.replace(
        before, status=VolumeAttachmentStatus(attach_error=VolumeError(time=NOW, message="no"))
    )
    deleted = structs.replace(before, metadata=structs.replace(before.metadata, deletion_timestamp=NOW))
    assert not is_relevant_change(before, failed)
    assert not is_relevant_change(failed, before)
    assert is_relevant_change(failed, deleted)
    assert is_relevant_change(before, before)  # a resync
    assert is_relevant_change(None, before)


def test_a_volume_is_released_when_it_is_to_go_and_nothing_attaches_it() -> None:
    assert may_release(volume(held=True, deleting=True), [], FINALIZER)
    assert not may_release(volume(held=True, deleting=True), [attachment()], FINALIZER)
    assert not may_release(volume(held=True), [], FINALIZER)
    assert not may_release(volume(deleting=True), [], FINALIZER)


def test_a_volume_keeps_the_finalizer_while_it_is_attached() -> None:
    going = volume(held=True, deleting=True)
    data = WaitData(volume="pv1", nodes=("worker-1",))
    attached = AttachedVolumeView(going, [attachment()], FINALIZER)
    assert list(plan_release(attached)) == [Wait(WaitReason.VOLUME_STILL_ATTACHED, data)]
    assert list(plan_release(AttachedVolumeView(going, [], FINALIZER))) == [RemoveAttacherFinalizer()]
    assert list(plan_release(AttachedVolumeView(volume(held=True), [attachment()], FINALIZER))) == []


def test_a_status_is_disputed_when_the_drivers_list_says_otherwise() -> None:
    listed = {"vol-1": frozenset({"i-1"})}
    assert is_disputed(attachment(attached=True, node_id="i-1"), "vol-1", {})
    assert not is_disputed(attachment(attached=True, node_id="i-1"), "vol-1", listed)
    assert is_disputed(attachment(node_id="i-1"), "vol-1", listed)
    assert not is_disputed(attachment(attached=True), "vol-1", {})  # nothing says which node it is


def test_a_volume_gets_its_finalizer_while_its_node_is_not_registered() -> None:
    refused = refuse('csinode.storage.k8s.io "worker-1" not found', WaitReason.DRIVER_NOT_REGISTERED)
    assert list(plan(attachment(), volume(), None, DRIVER)) == [AddAttacherFinalizer("pv1"), *refused]
    assert list(plan(attachment(), volume(held=True), None, DRIVER)) == refused
