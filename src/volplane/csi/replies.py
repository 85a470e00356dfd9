"""Decodes and checks the replies of drivers: an invalid reply is an error, never a success.

gRPC returns None for a reply that it cannot decode, and protobuf ignores a field that was sent with a wrong
type. So replies are decoded here, and checked for the fields that the protocol requires. The driver has done
its work by then, and what exists is unknown: `BadReply` has the code INTERNAL, and its outcome is uncertain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from volplane.csi.outcome import BadReply
from volplane.csi.services import Method

LARGEST_LIST = 16 << 20  # bytes; ListVolumes of many volumes is larger than gRPC's default of 4 MiB
LARGEST_REPLY = 4 << 20  # bytes, for all other calls
LISTS = frozenset(
    {"ListVolumes", "ListSnapshots", "ListContainers", "ListPodSandbox", "ListImages", "ListContainerStats"}
)
CSI_PLUGIN = "CSIPlugin"

_DRIVER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")  # the protocol's rule for driver names


def decode(method: Method, data: bytes) -> Message:
    """Raises BadReply."""
    if len(data) > LARGEST_REPLY and method.name not in LISTS:
        raise BadReply(f"{method.name}: the reply has {len(data)} bytes, more than {LARGEST_REPLY}")
    try:
        reply = method.reply.FromString(data)
    except DecodeError as error:
        raise BadReply(f"{method.name}: the reply cannot be decoded: {error}") from None
    check(method, reply)
    return reply


def check(method: Method, reply: Message) -> None:
    """Raises BadReply if a field has a wrong type or a required field is missing."""
    # Lists are not checked in depth: they may have very many entries.
    wrong = next(_find_wrong_types(reply, deep=method.name not in LISTS), "")
    rule = _RULES.get(method.name)
    if not wrong and rule is not None:
        wrong = next(rule(reply), "")
    if wrong:
        raise BadReply(f"{method.name}: the reply is not valid: {wrong}")


def known_names(enum: Any, numbers: Iterable[int]) -> frozenset[str]:
    """The names of an enum's values, without values that are newer than our protocol files."""
    names = {value.number: value.name for value in enum.DESCRIPTOR.values}
    return frozenset(names[number] for number in numbers if number in names)


def _find_wrong_types(message: Message, *, deep: bool = True, path: str = "") -> Iterator[str]:
    """Fields that were sent with a wrong type."""
    known = message.DESCRIPTOR.fields_by_number
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]
        if not unknown.field_number:
            yield f"{path}0 is not the number of a field"
        if unknown.field_number in known:
            yield f"{path}{known[unknown.field_number].name} has a wrong type"
    if not deep:
        return
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is None or kind.GetOptions().map_entry:
            continue
        for index, inner in enumerate(value) if field.is_repeated else ((None, value),):
            place = field.name if index is None else f"{field.name}[{index}]"
            yield from _find_wrong_types(inner, path=f"{path}{place}.")


# --- what the protocol requires


def _plugin_info(reply: Any) -> Iterator[str]:
    yield from _driver_name(reply.name)


def _driver_name(name: str) -> Iterator[str]:
    if not name:
        yield "name is empty"
    elif not _DRIVER.fullmatch(name):
        yield f"name {name[:80]!r} is not a domain name of at most 63 characters"


def _registration(reply: Any) -> Iterator[str]:
    if reply.type == CSI_PLUGIN:
        yield from _driver_name(reply.name)


def _has_volume(reply: Any) -> Iterator[str]:
    if not reply.HasField("volume"):
        yield "volume is missing"
    else:
        yield from _volume(reply.volume, "volume")


def _volume(volume: Any, path: str) -> Iterator[str]:
    if not volume.volume_id:
        yield f"{path}.volume_id is empty"
    if volume.capacity_bytes < 0:
        yield f"{path}.capacity_bytes is negative"


def _volumes(reply: Any) -> Iterator[str]:
    for index, entry in enumerate(reply.entries):
        if not entry.volume.volume_id:
            yield f"entries[{index}].volume.volume_id is empty"


def _has_snapshot(reply: Any) -> Iterator[str]:
    if not reply.HasField("snapshot"):
        yield "snapshot is missing"
    else:
        yield from _snapshot(reply.snapshot, "snapshot")


def _snapshot(snapshot: Any, path: str) -> Iterator[str]:
    if not snapshot.snapshot_id:
        yield f"{path}.snapshot_id is empty"
    if snapshot.size_bytes < 0:
        yield f"{path}.size_bytes is negative"


def _snapshots(reply: Any) -> Iterator[str]:
    for index, entry in enumerate(reply.entries):
        if not entry.snapshot.snapshot_id:
            yield f"entries[{index}].snapshot.snapshot_id is empty"


def _has_group(reply: Any) -> Iterator[str]:
    if not reply.HasField("group_snapshot"):
        yield "group_snapshot is missing"
        return
    group = reply.group_snapshot
    if not group.group_snapshot_id:
        yield "group_snapshot.group_snapshot_id is empty"
    for index, snapshot in enumerate(group.snapshots):
        yield from _snapshot(snapshot, f"group_snapshot.snapshots[{index}]")


def _node_info(reply: Any) -> Iterator[str]:
    if not reply.node_id:
        yield "node ID is empty"
    if reply.max_volumes_per_node < 0:
        yield "max_volumes_per_node is negative"


def _not_negative(*fields: str) -> Callable[[Any], Iterator[str]]:
    def rule(reply: Any) -> Iterator[str]:
        yield from (f"{field} is negative" for field in fields if getattr(reply, field) < 0)

    return rule


def _stats(reply: Any) -> Iterator[str]:
    for index, usage in enumerate(reply.usage):
        for field in ("total", "available", "used"):
            if getattr(usage, field) < 0:
                yield f"usage[{index}].{field} is negative"


_RULES: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "GetPluginInfo": _plugin_info,
    "GetInfo": _registration,
    "CreateVolume": _has_volume,
    "ControllerGetVolume": _has_volume,
    "ListVolumes": _volumes,
    "GetCapacity": _not_negative("available_capacity"),
    "ControllerExpandVolume": _not_negative("capacity_bytes"),
    "CreateSnapshot": _has_snapshot,
    "GetSnapshot": _has_snapshot,
    "ListSnapshots": _snapshots,
    "CreateVolumeGroupSnapshot": _has_group,
    "GetVolumeGroupSnapshot": _has_group,
    "NodeGetInfo": _node_info,
    "NodeGetVolumeStats": _stats,
    "NodeExpandVolume": _not_negative("capacity_bytes"),
}
