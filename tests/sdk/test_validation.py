"""Requests that no driver should have to look at."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from volplane.csi import convert, v1
from volplane.csi.services import METHODS
from volplane.sdk import validation
from volplane.sdk.errors import FailedPrecondition, InvalidArgument

MODE = v1.VolumeCapability.AccessMode
MOUNT = convert.capability(MODE.SINGLE_NODE_WRITER)


@pytest.mark.parametrize(
    ("method", "field"), [(m, f) for m, fields in validation.REQUIRED.items() for f in fields]
)
def test_a_required_field_that_is_missing_is_named(method: str, field: str) -> None:
    request = METHODS[method].request()
    for other in validation.REQUIRED[method]:
        if other == field:
            break
        value = getattr(request, other)
        if isinstance(value, Message):
            value.SetInParent()
        elif isinstance(value, str):
            setattr(request, other, "/x")
        elif other == "volume_capabilities":
            value.append(MOUNT)
        else:
            value.append("x")
    with pytest.raises(InvalidArgument, match=field):
        validation.check(method, request)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            v1.CreateVolumeRequest(name="n", volume_capabilities=[v1.VolumeCapability()]),
            "neither block nor mount",
        ),
        (
            v1.CreateVolumeRequest(name="n", volume_capabilities=[convert.capability(MODE.UNKNOWN)]),
            "no access mode",
        ),
        (
            v1.CreateVolumeRequest(
                name="n", volume_capabilities=[MOUNT], capacity_range={"required_bytes": -1}
            ),
            "negative",
        ),
        (
            v1.CreateVolumeRequest(
                name="n", volume_capabilities=[MOUNT], capacity_range={"required_bytes": 2, "limit_bytes": 1}
            ),
            "more than its limit",
        ),
    ],
)
def test_contradictions(request_: v1.CreateVolumeRequest, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        validation.check("CreateVolume", request_)


def test_paths_are_absolute_and_publish_follows_stage() -> None:
    request = v1.NodePublishVolumeRequest(volume_id="v", target_path="here", volume_capability=MOUNT)
    with pytest.raises(InvalidArgument, match="not absolute"):
        validation.check("NodePublishVolume", request)
    request.target_path = "/here"
    validation.check("NodePublishVolume", request)
    with pytest.raises(FailedPrecondition):
        validation.check("NodePublishVolume", request, stages=True)
