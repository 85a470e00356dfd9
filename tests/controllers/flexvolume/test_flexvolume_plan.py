"""What the attachment of a FlexVolume needs next, by its state and its driver's."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.finalizers import FLEX_ATTACHMENT_FINALIZER
from volplane.api.storage import VolumeAttachment
from volplane.controllers.flexvolume.plan import (
    AttachFlexVolume,
    DetachFlexVolume,
    FlexAttachmentView,
    ReloadFlexDriver,
    VerifyFlexVolume,
    WriteFlexError,
    plan,
)
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.volumes.flex.options import FlexVolume

DRIVER = "example.com/disks"
FLEX = FlexVolume("pv", DRIVER)
MISSING = "FlexVolume driver example.com/disks was not found"


def attachment(*, deleting: bool = False, finalizer: bool = False, **status: Any) -> VolumeAttachment:
    metadata: dict[str, Any] = {"name": "one"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if finalizer:
        metadata["finalizers"] = [FLEX_ATTACHMENT_FINALIZER]
    spec = {"nodeName": "a", "source": {"persistentVolumeName": "pv"}}
    return codec.convert(VolumeAttachment, {"metadata": metadata, "spec": spec, "status": status})


def view(given: VolumeAttachment, **more: Any) -> FlexAttachmentView:
    known = {"unique_name": f"{DRIVER}/pv", "driver": DRIVER, "flex": FLEX}
    return FlexAttachmentView(given, **{**known, **more})


def missing_wait(*, backoff: bool = False) -> Wait:
    data = WaitData(node="a", driver=DRIVER)
    return Wait(WaitReason.FLEX_DRIVER_MISSING, data, message=MISSING, backoff=backoff)


@pytest.mark.parametrize("finalizer", [False, True])
def test_a_new_attachment_is_attached(finalizer: bool) -> None:
    assert list(plan(view(attachment(finalizer=finalizer)))) == [AttachFlexVolume(FLEX, finalizer)]


def test_an_attachment_that_is_deleted_is_detached_if_attach_may_have_been_called() -> None:
    assert list(plan(view(attachment(deleting=True)))) == []
    steps = list(plan(view(attachment(deleting=True, finalizer=True), flex=None)))
    assert steps == [DetachFlexVolume(DRIVER, "pv")]


def test_a_missing_driver_is_reported_once_and_waited_for() -> None:
    reported: dict[str, Any] = {"attachError": {"message": MISSING}}
    assert list(plan(view(attachment(), missing=MISSING))) == [WriteFlexError(MISSING), missing_wait()]
    assert list(plan(view(attachment(**reported), missing=MISSING))) == [missing_wait()]
    leaving = attachment(deleting=True, finalizer=True, **reported)
    assert list(plan(view(leaving, missing=MISSING))) == [WriteFlexError(MISSING), missing_wait()]


def test_a_driver_that_is_being_loaded_is_waited_for_without_an_error() -> None:
    assert list(plan(view(attachment(), missing=MISSING, is_loading=True))) == [missing_wait()]


def test_a_driver_whose_init_failed_is_loaded_again() -> None:
    steps = list(plan(view(attachment(), missing=MISSING, has_failed=True)))
    assert steps == [WriteFlexError(MISSING), ReloadFlexDriver(DRIVER), missing_wait(backoff=True)]


def test_an_attachment_without_a_name_or_volume_is_an_error() -> None:
    error, wait = plan(view(attachment(), unique_name="", driver="", flex=None))
    assert isinstance(error, WriteFlexError)
    assert "has no annotation flexvolume.volplane.io/volume" in error.message
    assert isinstance(wait, Wait)
    assert wait.reason is WaitReason.ATTACHMENT_INVALID
    error, wait = plan(view(attachment(), flex=None))
    assert error == WriteFlexError('persistentvolume "pv" does not exist or has no flexVolume source')
    assert isinstance(wait, Wait)
    assert (wait.reason, wait.data.volume) == (WaitReason.VOLUME_NOT_FOUND, "pv")


def test_an_attached_volume_is_verified_when_it_is_due() -> None:
    attached = attachment(attached=True, finalizer=True)
    assert list(plan(view(attached))) == []
    assert list(plan(view(attached, verify_after=-1.0, flex=None))) == []
    assert list(plan(view(attached, verify_after=-1.0, missing=MISSING))) == []
    steps = list(plan(view(attached, verify_after=30.0, sync_period=60.0)))
    assert steps == [Wait(WaitReason.FLEX_VERIFICATION, seconds=30.0)]
    steps = list(plan(view(attached, verify_after=0.0, sync_period=60.0)))
    assert steps == [VerifyFlexVolume(FLEX), Wait(WaitReason.FLEX_VERIFICATION, seconds=60.0)]
