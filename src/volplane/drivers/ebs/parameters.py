"""Translates the parameters of a StorageClass to those of EC2's CreateVolume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from volplane.csi import v1
from volplane.drivers.ebs import format_options, tag_templates
from volplane.sdk.errors import InvalidArgument, OutOfRange

GIB = 1 << 30
DEFAULT_TYPE = "gp3"
DEFAULT_SIZE = 100  # GiB, if the request has no size
FILESYSTEMS = frozenset({"", "ext2", "ext3", "ext4", "xfs", "btrfs"})

# GiB: smallest and largest. A smaller request gets the smallest.
_SIZES = {
    "gp3": (1, 65536),
    "gp2": (1, 16384),
    "io1": (4, 16384),
    "io2": (4, 65536),
    "st1": (125, 16384),
    "sc1": (125, 16384),
    "standard": (1, 1024),
}
_IOPS_PER_GIB = {"io1": (50, 100, 64000), "io2": (1000, 100, 256000), "gp3": (500, 3000, 80000)}
_NAMES = {
    "csi.storage.k8s.io/pvc/name": ".PVCName",
    "csi.storage.k8s.io/pvc/namespace": ".PVCNamespace",
    "csi.storage.k8s.io/pv/name": ".PVName",
}
_CREATED_FOR = {name: name.replace("csi.storage.k8s.io", "kubernetes.io/created-for") for name in _NAMES}
# Without effect: the file system is in the capability, all io2 disks are Block Express, and IOPS are never
# below the least of a type.
_UNUSED = frozenset({"fstype", "csi.storage.k8s.io/fstype", "blockexpress", "allowautoiopspergbincrease"})
WAIT_INITIALIZED = "blockattachuntilinitialized"
# Tags of AWS's driver, with the settings that count when a disk is expanded.
IOPS_PER_GIB_TAG = "ebs.csi.aws.com/IOPSPerGb"
GROW_IOPS_TAG = "ebs.csi.aws.com/AllowAutoIOPSIncreaseOnModify"
_Mode = v1.VolumeCapability.AccessMode
# A disk is attached to one instance at a time, but a raw disk with Multi-Attach to several.
MODES = frozenset(
    {
        _Mode.SINGLE_NODE_WRITER,
        _Mode.SINGLE_NODE_READER_ONLY,
        _Mode.SINGLE_NODE_SINGLE_WRITER,
        _Mode.SINGLE_NODE_MULTI_WRITER,
    }
)


class DiskParameters(Struct, frozen=True):
    """The properties of a disk in the parameters, without size and zone."""

    type: str = DEFAULT_TYPE
    iops: int = 0
    iops_per_gib: int = 0
    throughput: int = 0
    encrypted: bool = False
    key: str = ""
    initialization_rate: int = 0  # MiB/s
    multi_attach: bool = False
    tags: Mapping[str, str] = {}
    removed_tags: tuple[str, ...] = ()
    context: Mapping[str, str] = {}  # for the node and for the attachment

    def size(self, wanted: v1.CapacityRange, *, least: int = 0) -> int:
        """GiB for a capacity range, rounded up, within its limit, and at least the size of the source."""
        low, high = _SIZES[self.type]
        if wanted.required_bytes:
            size = max(-(-wanted.required_bytes // GIB), low)
            if size < least:
                raise OutOfRange(f"{size} GiB are requested, but the source has {least} GiB")
        else:
            size = max(least or DEFAULT_SIZE, low)
            if wanted.limit_bytes:
                size = min(size, max(wanted.limit_bytes // GIB, low, least))
        if wanted.limit_bytes and size * GIB > wanted.limit_bytes:
            raise OutOfRange(f"{size} GiB, the smallest fitting {self.type} disk, is above the limit")
        if size > high:
            raise OutOfRange(f"{size} GiB are requested, but the largest {self.type} disk has {high} GiB")
        return size

    @property
    def largest(self) -> int:
        return _SIZES[self.type][1]

    def request(self, size: int, zone: str) -> dict[str, str]:
        """CreateVolume's parameters."""
        given = {"Size": str(size), "AvailabilityZone": zone, "VolumeType": self.type}
        iops = self.iops or self._proportional(size)
        if iops:
            given["Iops"] = str(iops)
        if self.throughput:
            given["Throughput"] = str(self.throughput)
        if self.encrypted:
            given["Encrypted"] = "true"
        if self.key:
            given["KmsKeyId"] = self.key
        if self.initialization_rate:
            given["VolumeInitializationRate"] = str(self.initialization_rate)
        if self.multi_attach:
            given["MultiAttachEnabled"] = "true"
        return given

    def changes(self, size: int, *, type: str, iops: int, speed: int) -> dict[str, str]:
        """ModifyVolume's parameters for a disk with these properties."""
        wanted = {"VolumeType": self.type} if self.type and self.type != type else {}
        kind = structs.replace(self, type=self.type or type)
        number = kind.iops or kind._proportional(size)
        if number and (number != iops or wanted):
            wanted["Iops"] = str(number)
        if self.throughput and (self.throughput != speed or wanted):
            wanted["Throughput"] = str(self.throughput)
        return wanted

    def _proportional(self, size: int) -> int:
        if not self.iops_per_gib or self.type not in _IOPS_PER_GIB:
            return 0
        ratio, low, high = _IOPS_PER_GIB[self.type]
        return min(max(self.iops_per_gib * size, low), min(ratio * size, high))


def parse(parameters: Mapping[str, str]) -> DiskParameters:
    """Keys are case-insensitive, as in AWS's driver; an unknown key is an error."""
    known: dict[str, object] = {}
    tags: dict[str, str] = {}
    specifications: dict[str, str] = {}
    names = dict.fromkeys(_NAMES.values(), "")
    context: dict[str, str] = {}
    for key, value in parameters.items():
        match key.lower():
            case "type":
                known["type"] = _type(value)
            case "iops":
                known["iops"] = _number(key, value)
            case "iopspergb":
                known["iops_per_gib"] = _number(key, value)
                tags[IOPS_PER_GIB_TAG] = value
            case "allowautoiopsincreaseonmodify":
                tags[GROW_IOPS_TAG] = "true" if value == "true" else "false"
            case "throughput":
                known["throughput"] = _number(key, value)
            case "encrypted":
                known["encrypted"] = _flag(key, value)
            case "kmskeyid":
                known["key"] = value
            case "volumeinitializationrate":
                known["initialization_rate"] = _number(key, value)
            case lowered if lowered == WAIT_INITIALIZED:
                if value == "true":
                    context[lowered] = value
            case lowered if lowered in format_options.OPTIONS:
                if given := format_options.parse_option(key, value):
                    context[lowered] = given
            case lowered if lowered in _UNUSED:
                pass
            case lowered if lowered in _CREATED_FOR:
                tags[_CREATED_FOR[lowered]] = names[_NAMES[lowered]] = value
            case lowered if lowered.startswith(tag_templates.PREFIX):
                specifications[key] = value
            case _:
                raise InvalidArgument(f"Invalid parameter key {key} for CreateVolume")
    tags |= tag_templates.parse_tags(specifications, names)
    disk = DiskParameters(**known, tags=tags, context=context)  # type: ignore[arg-type]
    if disk.iops_per_gib and disk.type not in _IOPS_PER_GIB:
        raise InvalidArgument(f"iopsPerGB is not supported for disks of type {disk.type}")
    if disk.iops_per_gib and disk.iops:
        raise InvalidArgument("iops and iopsPerGB cannot be set together")
    return disk


def grown_iops(tags: Mapping[str, str], kind: str, size: int) -> int:
    """The IOPS of a disk that keeps its ratio when it is expanded; 0 if it does not."""
    ratio = tags.get(IOPS_PER_GIB_TAG, "")
    if tags.get(GROW_IOPS_TAG) != "true" or not ratio.isdecimal():
        return 0
    return DiskParameters(type=kind, iops_per_gib=int(ratio))._proportional(size)


def driver_parameters(given: Mapping[str, str]) -> dict[str, str]:
    """The parameters that are not for sidecars, which pass all of them to GetCapacity."""
    return {key: value for key, value in given.items() if not key.lower().startswith("csi.storage.k8s.io/")}


def parse_change(wanted: Mapping[str, str]) -> DiskParameters:
    """The parameters of a VolumeAttributesClass; an empty type keeps the type of the disk."""
    known: dict[str, object] = {"type": ""}
    specifications: dict[str, str] = {}
    names = dict.fromkeys(_NAMES.values(), "")
    settings: dict[str, str] = {}
    removed: list[str] = []
    for key, value in wanted.items():
        match key.lower():
            case "type" | "volumetype":
                known["type"] = _type(value)
            case "iops":
                known["iops"] = _number(key, value)
            case "iopspergb":
                known["iops_per_gib"] = _number(key, value)
                settings[IOPS_PER_GIB_TAG] = value
            case "allowautoiopsincreaseonmodify":
                settings[GROW_IOPS_TAG] = value
            case "throughput":
                known["throughput"] = _number(key, value)
            case lowered if lowered in _NAMES:
                names[_NAMES[lowered]] = value
            case lowered if lowered.startswith(tag_templates.PREFIX):
                specifications[key] = value
            case lowered if lowered.startswith("tagdeletion"):
                removed.append(value)
            case _:
                raise InvalidArgument(f"Invalid mutable parameter key: {key}")
    tags = tag_templates.parse_tags(specifications, names) | settings
    return DiskParameters(**known, tags=tags, removed_tags=tuple(removed))  # type: ignore[arg-type]


def _type(value: str) -> str:
    if value.lower() not in _SIZES:
        raise InvalidArgument(f"invalid disk type {value!r}; valid types: {', '.join(_SIZES)}")
    return value.lower()


def _number(key: str, value: str) -> int:
    if not value.isdecimal():
        raise InvalidArgument(f"invalid {key} {value!r}: must be a number")
    return int(value)


def needs_multi_attach(capabilities: Sequence[v1.VolumeCapability]) -> bool:
    return any(c.access_mode.mode == _Mode.MULTI_NODE_MULTI_WRITER for c in capabilities)


def _flag(key: str, value: str) -> bool:
    if value.lower() not in ("true", "false", ""):
        raise InvalidArgument(f"invalid {key} {value!r}: must be true or false")
    return value.lower() == "true"


def unsupported_reason(capabilities: Sequence[v1.VolumeCapability]) -> str:
    """What of the capabilities a disk does not support; "" if it supports all."""
    for capability in capabilities:
        mode = capability.access_mode.mode
        if mode == _Mode.MULTI_NODE_MULTI_WRITER and capability.HasField("block"):
            continue
        if mode not in MODES:
            return f"access mode {_Mode.Mode.Name(mode)} needs a disk on several nodes"
        if capability.mount.fs_type not in FILESYSTEMS:
            return f"file system {capability.mount.fs_type} is not supported"
    return ""
