"""Pure parts of the disk service: recovery's plan, volume types, filters, pages."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.cloud import filters, limits
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.model import (
    AttachmentState,
    CloudAttachment,
    CloudSnapshot,
    CloudVolume,
    SnapshotState,
    VolumeShape,
    VolumeState,
)
from volplane.cloud.plan import (
    AttachDisk,
    DeleteDisk,
    DetachDisk,
    FinishCopy,
    MarkLost,
    MarkRecovered,
    RecreateFile,
    Step,
    UnbindDisk,
    plan,
    plan_snapshot,
)
from volplane.cloud.query import QueryParameters


def volume(
    state: VolumeState = VolumeState.AVAILABLE,
    held: AttachmentState | None = None,
    *,
    used: bool = False,
    number: int = 1,
    lost: bool = False,
    id_returned: bool = False,
    snapshot: str = "",
    **tags: str,
) -> CloudVolume:
    attachment = CloudAttachment("i-1", "/dev/xvdba", held) if held else None
    return CloudVolume(
        f"vol-{number}",
        "us-east-1a",
        VolumeShape(1),
        state,
        attachments=(attachment,) if attachment else (),
        used=used,
        lost=lost,
        id_returned=id_returned,
        snapshot=snapshot,
        tags=tags,
    )


A, V = AttachmentState, VolumeState


@pytest.mark.parametrize(
    ("known", "has_file", "bound", "steps"),
    [
        (volume(), True, False, []),
        (volume(), True, True, [UnbindDisk()]),
        (volume(), False, False, [RecreateFile()]),
        (volume(used=True), False, False, [MarkLost()]),
        (volume(V.ERROR, used=True, lost=True), True, False, [MarkRecovered()]),
        (volume(V.CREATING, id_returned=True, snapshot="snap-1"), False, False, [FinishCopy()]),
        (volume(V.CREATING, id_returned=True), False, False, [MarkLost()]),
        (volume(V.CREATING), False, False, [DeleteDisk()]),
        (volume(V.CREATING), True, False, [DeleteDisk()]),
        (volume(V.DELETING), True, True, [UnbindDisk(), DeleteDisk()]),
        (volume(V.DELETING), False, False, [DeleteDisk()]),
        (volume(V.IN_USE, A.ATTACHING, used=True), True, False, [AttachDisk("i-1")]),
        (volume(V.IN_USE, A.ATTACHED, used=True), True, True, [AttachDisk("i-1")]),
        (volume(V.IN_USE, A.DETACHING, used=True), True, True, [DetachDisk("i-1")]),
        (volume(V.IN_USE, A.DETACHING, used=True), True, False, [DetachDisk("i-1")]),
        # Of several instances: the others have the disk again before one leaves it.
        (
            volume(V.IN_USE, A.DETACHING, used=True).with_attachment(
                CloudAttachment("i-2", "/dev/xvdba", A.ATTACHED)
            ),
            True,
            False,
            [AttachDisk("i-2"), DetachDisk("i-1")],
        ),
    ],
)
def test_every_half_done_operation_has_an_end(
    known: CloudVolume, has_file: bool, bound: bool, steps: list[Step]
) -> None:
    assert list(plan(known, has_file=has_file, bound=bound)) == steps


def test_a_file_that_lost_its_size_but_no_data_is_made_again() -> None:
    assert list(plan(volume(used=True), has_file=False, bound=False, blank=True)) == [RecreateFile()]


S = SnapshotState


@pytest.mark.parametrize(
    ("state", "fields", "has_file", "steps"),
    [
        (S.COMPLETED, {}, True, []),
        (S.COMPLETED, {}, False, [MarkLost()]),
        (S.COMPLETED, {"deleting": True}, True, [DeleteDisk()]),
        (S.PENDING, {"id_returned": True}, True, [MarkLost()]),
        (S.PENDING, {}, True, [DeleteDisk()]),
        (S.ERROR, {}, False, []),
    ],
)
def test_every_half_done_snapshot_has_an_end(
    state: SnapshotState, fields: dict[str, Any], has_file: bool, steps: list[Step]
) -> None:
    snapshot = CloudSnapshot("snap-1", "vol-1", 1, state, "2026-01-01T00:00:00Z", **fields)
    assert list(plan_snapshot(snapshot, has_file=has_file)) == steps


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (VolumeShape(1, "gp3"), VolumeShape(1, "gp3", 3000, 125)),
        (VolumeShape(100, "gp3", 10000, 500), VolumeShape(100, "gp3", 10000, 500)),
        (VolumeShape(500, "gp2"), VolumeShape(500, "gp2", 1500, 0)),
        (VolumeShape(10, "io2", 5000), VolumeShape(10, "io2", 5000, 0)),
        (VolumeShape(125, "st1"), VolumeShape(125, "st1", 0, 0)),
        (VolumeShape(4, "io1", 100, multi_attach=True), VolumeShape(4, "io1", 100, multi_attach=True)),
    ],
)
def test_types_fill_in_their_defaults(shape: VolumeShape, expected: VolumeShape) -> None:
    assert limits.validate_shape(shape) == expected


@pytest.mark.parametrize(
    ("shape", "code"),
    [
        (VolumeShape(0, "gp3"), "InvalidParameterValue"),
        (VolumeShape(-1, "gp3"), "InvalidParameterValue"),
        (VolumeShape(1, "st1"), "InvalidParameterValue"),
        (VolumeShape(1, "floppy"), "InvalidParameterValue"),
        (VolumeShape(1, "gp3", 10000), "InvalidParameterValue"),
        (VolumeShape(10, "io1"), "InvalidParameterCombination"),
        (VolumeShape(10, "gp2", 100), "InvalidParameterCombination"),
        (VolumeShape(100, "gp3", 3000, 1000), "InvalidParameterValue"),
        (VolumeShape(125, "st1", 100), "InvalidParameterCombination"),
        (VolumeShape(4, "io2", 100, 125), "InvalidParameterCombination"),
        (VolumeShape(4, "gp3", multi_attach=True), "InvalidParameterCombination"),
    ],
)
def test_shapes_that_no_type_has(shape: VolumeShape, code: str) -> None:
    with pytest.raises(Ec2ErrorResponse) as caught:
        limits.validate_shape(shape)
    assert caught.value.code == code


def apply(query: str, *volumes: CloudVolume) -> list[str]:
    found = filters.apply_filters(volumes, filters.VOLUME, lambda v: v.tags, QueryParameters.parse(query))
    return [v.id for v in found]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["vol-1", "vol-2", "vol-3"]),
        ("Filter.1.Name=status&Filter.1.Value.1=in-use", ["vol-2"]),
        (
            "Filter.1.Name=status&Filter.1.Value.1=in-use&Filter.1.Value.2=available",
            ["vol-1", "vol-2", "vol-3"],
        ),
        ("Filter.1.Name=tag:app&Filter.1.Value.1=d?t*", ["vol-1"]),
        ("Filter.1.Name=tag-key&Filter.1.Value.1=app", ["vol-1", "vol-3"]),
        (
            "Filter.1.Name=tag-key&Filter.1.Value.1=app&Filter.2.Name=attachment.instance-id&Filter.2.Value.1=*",
            [],
        ),
        ("Filter.1.Name=attachment.instance-id&Filter.1.Value.1=i-1", ["vol-2"]),
    ],
)
def test_filters(query: str, ids: list[str]) -> None:
    volumes = (volume(app="data"), volume(V.IN_USE, A.ATTACHED, number=2), volume(number=3, app="x"))
    assert apply(query, *volumes) == ids


def test_an_unknown_filter_is_refused() -> None:
    with pytest.raises(Ec2ErrorResponse, match="The filter 'colour' is invalid"):
        apply("Filter.1.Name=colour&Filter.1.Value.1=red", volume())


def test_pages_stay_right_while_volumes_go() -> None:
    names = [f"vol-{i:02}" for i in range(12)]
    first, token = filters.page(names, str, QueryParameters.parse("MaxResults=5"))
    assert first == names[:5]
    names.remove("vol-04")
    second, token = filters.page(names, str, QueryParameters.parse(f"MaxResults=5&NextToken={token}"))
    assert second == ["vol-05", "vol-06", "vol-07", "vol-08", "vol-09"]
    third, token = filters.page(names, str, QueryParameters.parse(f"MaxResults=5&NextToken={token}"))
    assert (third, token) == (["vol-10", "vol-11"], None)
    for wrong in ("MaxResults=1", "NextToken=%%%", "NextToken=_w"):
        with pytest.raises(Ec2ErrorResponse):
            filters.page(names, str, QueryParameters.parse(wrong))
