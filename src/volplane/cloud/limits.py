"""AWS's volume types: the sizes, IOPS and throughput that they support."""

from __future__ import annotations

from msgspec import Struct, structs

from volplane.cloud.errors import Ec2ErrorResponse, invalid_parameter
from volplane.cloud.model import VolumeShape

MAX_ATTACHMENTS = 28  # volumes of one instance
MAX_MULTI_ATTACH = 16  # instances of one volume


class VolumeTypeLimits(Struct, frozen=True):
    smallest: int  # GiB
    largest: int
    iops: tuple[int, int] | None = None  # None: the type has no such setting
    ratio: int = 0  # IOPS per GiB
    throughput: tuple[int, int] | None = None  # MiB/s


TYPES = {
    "gp3": VolumeTypeLimits(1, 65536, (3000, 80000), 500, (125, 2000)),
    "gp2": VolumeTypeLimits(1, 16384),
    "io1": VolumeTypeLimits(4, 16384, (100, 64000), 50),
    "io2": VolumeTypeLimits(4, 65536, (100, 256000), 1000),
    "st1": VolumeTypeLimits(125, 16384),
    "sc1": VolumeTypeLimits(125, 16384),
    "standard": VolumeTypeLimits(1, 1024),
}
_MIB_PER_IOPS = 0.25  # gp3: the most throughput per IOPS
_IOPS_REQUIRED = frozenset({"io1", "io2"})
_MULTI_ATTACH = frozenset({"io1", "io2"})


def validate_shape(shape: VolumeShape) -> VolumeShape:
    """The shape with AWS's defaults. Raises Ec2ErrorResponse."""
    kind = TYPES.get(shape.type)
    if kind is None:
        raise invalid_parameter("volumeType", shape.type, f"Valid values: {', '.join(TYPES)}.")
    if not kind.smallest <= shape.size <= kind.largest:
        text = f"{shape.type} volumes have {kind.smallest} to {kind.largest} GiB."
        raise invalid_parameter("size", shape.size, text)
    if shape.multi_attach and shape.type not in _MULTI_ATTACH:
        raise _not_supported("multiAttachEnabled", shape.type)
    return structs.replace(shape, iops=_iops(shape, kind), throughput=_throughput(shape, kind))


def _iops(shape: VolumeShape, kind: VolumeTypeLimits) -> int:
    if kind.iops is None:
        if shape.iops:
            raise _not_supported("iops", shape.type)
        return min(max(100, 3 * shape.size), 16000) if shape.type == "gp2" else 0
    if not shape.iops:
        if shape.type in _IOPS_REQUIRED:
            text = f"The parameter iops must be specified for {shape.type} volumes."
            raise Ec2ErrorResponse("InvalidParameterCombination", text)
        return kind.iops[0]
    low, high = kind.iops
    if not low <= shape.iops <= high:
        raise invalid_parameter("iops", shape.iops, f"{shape.type} volumes have {low} to {high} IOPS.")
    if shape.iops > max(low, kind.ratio * shape.size):
        text = (
            f"Iops to volume size ratio of {shape.iops / shape.size:f} is too high; maximum is {kind.ratio}."
        )
        raise Ec2ErrorResponse("InvalidParameterValue", text)
    return shape.iops


def _throughput(shape: VolumeShape, kind: VolumeTypeLimits) -> int:
    if kind.throughput is None:
        if shape.throughput:
            raise _not_supported("throughput", shape.type)
        return 0
    low, high = kind.throughput
    if shape.throughput and not low <= shape.throughput <= high:
        raise invalid_parameter(
            "throughput", shape.throughput, f"{shape.type} volumes have {low} to {high} MiB/s."
        )
    wanted = shape.throughput or low
    ratio = wanted / _iops(shape, kind)
    if ratio > _MIB_PER_IOPS:
        text = f"Throughput (MiBps) to iops ratio of {ratio:f} is too high; maximum is {_MIB_PER_IOPS:f}."
        raise Ec2ErrorResponse("InvalidParameterValue", text)
    return wanted


def _not_supported(parameter: str, kind: str) -> Ec2ErrorResponse:
    return Ec2ErrorResponse(
        "InvalidParameterCombination", f"The parameter {parameter} is not supported for {kind} volumes."
    )
