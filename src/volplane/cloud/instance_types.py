"""The instance types that nodes can have, with AWS's figures for them."""

from __future__ import annotations

from msgspec import Struct

from volplane.cloud.errors import Ec2ErrorResponse, invalid_parameter

DEFAULT_INSTANCE_TYPE = "m5.large"
EBS_CARDS = 1  # of each instance type


class EbsBandwidth(Struct, frozen=True):
    mbps: int
    iops: int

    @property
    def megabytes(self) -> str:
        """MB/s, which is an eighth of the bandwidth."""
        return str(self.mbps / 8)


class InstanceType(Struct, frozen=True):
    name: str
    vcpus: int
    memory: int  # MiB
    baseline: EbsBandwidth
    maximum: EbsBandwidth
    interfaces: int
    addresses: int  # IPv4 addresses of an interface


_MAXIMUM = EbsBandwidth(4750, 18750)
_ALL = (
    InstanceType("m5.large", 2, 8192, EbsBandwidth(650, 3600), _MAXIMUM, 3, 10),
    InstanceType("m5.xlarge", 4, 16384, EbsBandwidth(1150, 6000), _MAXIMUM, 4, 15),
    InstanceType("m5.2xlarge", 8, 32768, EbsBandwidth(2300, 12000), _MAXIMUM, 4, 15),
)
INSTANCE_TYPES = {kind.name: kind for kind in _ALL}


def require_instance_type(name: str) -> str:
    """The name of a known type. Raises Ec2ErrorResponse."""
    if name not in INSTANCE_TYPES:
        raise invalid_parameter("instanceType", name, f"Valid values: {', '.join(INSTANCE_TYPES)}.")
    return name


def find_instance_types(names: list[str]) -> list[InstanceType]:
    """All types, or those with these names. Raises Ec2ErrorResponse."""
    unknown = [name for name in names if name not in INSTANCE_TYPES]
    if unknown:
        text = f"The following supplied instance types do not exist: [{', '.join(unknown)}]"
        raise Ec2ErrorResponse("InvalidInstanceType", text)
    return [INSTANCE_TYPES[name] for name in dict.fromkeys(names)] or list(INSTANCE_TYPES.values())
