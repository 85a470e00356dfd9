"""How a disk is formatted, if its StorageClass says so: block and inode sizes, options of ext4.

The options travel from CreateVolume to the node in the volume's context, with AWS's names for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from volplane.csi import v1
from volplane.sdk.errors import InvalidArgument
from volplane.sdk.mounting import DEFAULT_FILESYSTEM

_EXT = frozenset({"ext2", "ext3", "ext4"})
BIG_ALLOC, CLUSTER_SIZE = "ext4bigalloc", "ext4clustersize"
_TRUE = "true"


class FormatOption(Struct, frozen=True):
    name: str  # as AWS writes it
    filesystems: frozenset[str]
    is_flag: bool
    arguments: Callable[[str, str], list[str]]  # of mkfs, for a file system and a value


def _size_arguments(ext: str, xfs: str) -> Callable[[str, str], list[str]]:
    return lambda fstype, value: [xfs, f"size={value}"] if fstype == "xfs" else [ext, value]


_EXT4 = frozenset({"ext4"})
OPTIONS = {
    option.name.lower(): option
    for option in (
        FormatOption("blockSize", _EXT | {"xfs"}, False, _size_arguments("-b", "-b")),
        FormatOption("inodeSize", _EXT | {"xfs"}, False, _size_arguments("-I", "-i")),
        FormatOption("bytesPerInode", _EXT, False, lambda _, value: ["-i", value]),
        FormatOption("numberOfInodes", _EXT, False, lambda _, value: ["-N", value]),
        FormatOption("ext4BigAlloc", _EXT4, True, lambda _, value: ["-O", "bigalloc"]),
        FormatOption("ext4ClusterSize", _EXT4, False, lambda _, value: ["-C", value]),
        FormatOption("ext4EncryptionSupport", _EXT4, True, lambda _, value: ["-O", "encrypt"]),
    )
}


def parse_option(key: str, value: str) -> str:
    """The value of an option; "" for a flag that is not set. Raises InvalidArgument."""
    if OPTIONS[key.lower()].is_flag:
        return value if value == _TRUE else ""
    if not (value.isascii() and value.isalnum()):
        raise InvalidArgument(f"Could not parse {key} ({value}): must be letters and digits")
    return value


def check_options(options: Mapping[str, str], capabilities: Sequence[v1.VolumeCapability]) -> None:
    """Raises InvalidArgument for options that do not apply to what the volume is used as."""
    for capability in capabilities:
        for name in options:
            shown = OPTIONS[name].name
            if capability.HasField("block"):
                raise InvalidArgument(f"Cannot use {shown} with block volume")
            fstype = capability.mount.fs_type or DEFAULT_FILESYSTEM
            if fstype not in OPTIONS[name].filesystems:
                raise InvalidArgument(f"Cannot use {shown} with fstype {fstype}")
    if CLUSTER_SIZE in options and BIG_ALLOC not in options:
        raise InvalidArgument("Cannot set ext4ClusterSize when ext4BigAlloc is not true")


def find_options(context: Mapping[str, str]) -> dict[str, str]:
    """The options in a volume's context."""
    return {name: value for name, value in context.items() if name in OPTIONS}


def mkfs_arguments(context: Mapping[str, str], capability: v1.VolumeCapability) -> list[str]:
    options = find_options(context)
    check_options(options, [capability])
    fstype = capability.mount.fs_type or DEFAULT_FILESYSTEM
    return list(_arguments(options, fstype))


def _arguments(options: Mapping[str, str], fstype: str) -> Iterator[str]:
    for name, value in options.items():
        if parse_option(name, value):
            yield from OPTIONS[name].arguments(fstype, value)
