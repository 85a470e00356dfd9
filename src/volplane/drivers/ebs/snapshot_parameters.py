"""Translates the parameters of a VolumeSnapshotClass: tags, fast restores, a lock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from volplane.drivers.ebs import tag_templates
from volplane.sdk.errors import InvalidArgument

_NAMES = {
    "csi.storage.k8s.io/volumesnapshot/name": ".VolumeSnapshotName",
    "csi.storage.k8s.io/volumesnapshot/namespace": ".VolumeSnapshotNamespace",
    "csi.storage.k8s.io/volumesnapshotcontent/name": ".VolumeSnapshotContentName",
}
_SNAPSHOT_FOR = {name: name.replace("csi.storage.k8s.io", "kubernetes.io/created-for") for name in _NAMES}
_GROUP_FOR = {
    name: name.replace("csi.storage.k8s.io", "kubernetes.io/created-for")
    for name in (
        "csi.storage.k8s.io/volumegroupsnapshot/name",
        "csi.storage.k8s.io/volumegroupsnapshot/namespace",
        "csi.storage.k8s.io/volumegroupsnapshotcontent/name",
    )
}
# Without effect: Kubernetes' storage suite repeats this field of the class as a parameter.
_UNUSED_OF_GROUPS = frozenset({"deletionpolicy"})
_LOCK_NUMBERS = {"lockduration": "LockDuration", "lockcooloffperiod": "CoolOffPeriod"}


class SnapshotParameters(Struct, frozen=True):
    tags: Mapping[str, str] = {}
    fast_restore_zones: tuple[str, ...] = ()
    lock: Mapping[str, str] = {}  # LockSnapshot's parameters; empty: no lock


def parse(parameters: Mapping[str, str]) -> SnapshotParameters:
    """Keys are case-insensitive, as in AWS's driver; an unknown key is an error."""
    tags: dict[str, str] = {}
    specifications: dict[str, str] = {}
    names = dict.fromkeys(_NAMES.values(), "")
    lock: dict[str, str] = {}
    zones: tuple[str, ...] = ()
    for key, value in parameters.items():
        match key.lower():
            case lowered if lowered in _SNAPSHOT_FOR:
                tags[_SNAPSHOT_FOR[lowered]] = names[_NAMES[lowered]] = value
            case lowered if lowered.startswith(tag_templates.PREFIX):
                specifications[key] = value
            case "fastsnapshotrestoreavailabilityzones":
                zones = tuple(zone.strip() for zone in value.split(","))
            case "lockmode":
                lock["LockMode"] = value
            case "lockexpirationdate":
                lock["ExpirationDate"] = _date(key, value)
            case lowered if lowered in _LOCK_NUMBERS:
                lock[_LOCK_NUMBERS[lowered]] = _number(key, value)
            case _:
                raise InvalidArgument(f"Invalid parameter key {key} for CreateSnapshot")
    return SnapshotParameters(tags | tag_templates.parse_tags(specifications, names), zones, lock)


def group_tags(parameters: Mapping[str, str]) -> dict[str, str]:
    """The tags in the parameters of a VolumeGroupSnapshotClass."""
    tags: dict[str, str] = {}
    specifications: dict[str, str] = {}
    for key, value in parameters.items():
        lowered = key.lower()
        if lowered in _GROUP_FOR:
            tags[_GROUP_FOR[lowered]] = value
        elif lowered.startswith(tag_templates.PREFIX):
            specifications[key] = value
        elif lowered not in _UNUSED_OF_GROUPS:
            raise InvalidArgument(f"Invalid parameter key {key} for CreateVolumeGroupSnapshot")
    return tags | tag_templates.parse_tags(specifications, {})


def _number(key: str, value: str) -> str:
    if not (value.isascii() and value.isdecimal()):
        raise InvalidArgument(f"invalid {key} {value!r}: must be a number")
    return value


def _date(key: str, value: str) -> str:
    try:
        if datetime.fromisoformat(value).tzinfo is not None:
            return value
    except ValueError:
        pass
    raise InvalidArgument(f"invalid {key} {value!r}: must be a date such as 2030-01-31T12:00:00Z")
