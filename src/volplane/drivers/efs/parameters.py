"""The parameters of a StorageClass for access points, with the names of AWS's driver."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from volplane.csi import v1
from volplane.drivers.efs.access_points import DEFAULT_FILE_SYSTEM
from volplane.sdk.errors import InvalidArgument

FIRST_GID, LAST_GID = 50_000, 7_000_000
GIB = 1 << 30

_FILE_SYSTEM = re.compile(r"fs-[0-9a-f]{8,40}")
_PATTERN = re.compile(r"\$\{\.(PVC\.name|PVC\.namespace|PV\.name)\}")
_NAMES = {
    "PVC.name": "csi.storage.k8s.io/pvc/name",
    "PVC.namespace": "csi.storage.k8s.io/pvc/namespace",
    "PV.name": "csi.storage.k8s.io/pv/name",
}
_IGNORED = frozenset(_NAMES.values()) | {"az", "reuseaccesspoint", "ensureuniquedirectory"}
# NFS options, which have no effect on a bind mount.
FLAGS = frozenset({"tls", "iam", "nfsvers=4.1", "nfsvers=4", "rw", "ro", "noatime", "noresvport", "hard"})


class AccessPointParameters(Struct, frozen=True):
    file_system: str = DEFAULT_FILE_SYSTEM
    base: str = ""
    pattern: str = ""
    uid: int | None = None
    gid: int | None = None
    mode: int = 0o700
    first_gid: int = FIRST_GID
    last_gid: int = LAST_GID
    unique: bool = True

    def path(self, point: str, given: Mapping[str, str]) -> str:
        """The path of the volume's directory in the file system."""
        name = _PATTERN.sub(lambda m: given.get(_NAMES[m[1]], ""), self.pattern)
        name = "-".join(filter(None, (name, point))) if self.unique or not name else name
        parts = [part for part in (*self.base.split("/"), *name.split("/")) if part]
        if any(part in (".", "..") or part.startswith(".") for part in parts):
            raise InvalidArgument(f"invalid directory name {name!r}")
        return "/".join(parts)


def parse(parameters: Mapping[str, str]) -> AccessPointParameters:
    known: dict[str, object] = {}
    for key, value in parameters.items():
        match key.lower():
            case "provisioningmode":
                if value != "efs-ap":
                    raise InvalidArgument(f"Provisioning mode {value} is not supported: use efs-ap")
            case "filesystemid":
                if not _FILE_SYSTEM.fullmatch(value):
                    raise InvalidArgument(f"invalid file system {value!r}: must be like fs-0123abcd")
                known["file_system"] = value
            case "directoryperms":
                known["mode"] = _octal(key, value)
            case "uid" | "gid":
                known[key.lower()] = _number(key, value)
            case "gidrangestart":
                known["first_gid"] = _number(key, value)
            case "gidrangeend":
                known["last_gid"] = _number(key, value)
            case "basepath":
                known["base"] = value
            case "subpathpattern":
                known["pattern"] = value
            case "ensureuniquedirectory":
                known["unique"] = value.lower() != "false"
            case lowered if lowered in _IGNORED:
                pass
            case _:
                raise InvalidArgument(f"Invalid parameter key {key} for CreateVolume")
    wanted = AccessPointParameters(**known)  # type: ignore[arg-type]
    if wanted.first_gid > wanted.last_gid:
        raise InvalidArgument("gidRangeStart is greater than gidRangeEnd")
    return wanted


def _number(key: str, value: str) -> int:
    if not value.isdecimal():
        raise InvalidArgument(f"invalid {key} {value!r}: must be a number")
    return int(value)


def _octal(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-7]{3,4}", value):
        raise InvalidArgument(f"invalid {key} {value!r}: must be permissions like 700")
    return int(value, 8)


def unsupported_reason(capabilities: Sequence[v1.VolumeCapability]) -> str:
    """What of the capabilities a shared directory does not support; "" if it supports all."""
    for capability in capabilities:
        if capability.HasField("block"):
            return "a shared directory is not a block device"
        if capability.mount.fs_type not in ("", "efs"):
            return f"a shared directory has no file system {capability.mount.fs_type}"
        for flag in capability.mount.mount_flags:
            if flag not in FLAGS:
                return f"mount flag {flag} is not supported"
    return ""
