"""Check recorded calls: no volume created twice, none attached to two nodes, nothing left at the end.

Pure: recorded calls in, findings out. To report certain problems only, a call without an answer counts as not
done if it creates, and as done if it deletes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from msgspec import Struct

from volplane.csi.call_interceptor import CsiCall

SINGLE_NODE_MODES = "SINGLE_NODE"
_CREATE_METHODS = {
    "CreateVolume": ("volume", "volume_id"),
    "CreateSnapshot": ("snapshot", "snapshot_id"),
    "CreateVolumeGroupSnapshot": ("group_snapshot", "group_snapshot_id"),
}


class AuditFinding(Struct, frozen=True):
    what: str
    section: str


def audit_calls(calls: Iterable[CsiCall]) -> Iterator[AuditFinding]:
    known = list(calls)
    yield from find_duplicates(known)
    yield from find_double_attachments(known)


def find_duplicates(calls: Iterable[CsiCall]) -> Iterator[AuditFinding]:
    """CreateVolume is idempotent: one name is one volume."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for call in calls:
        if call.method not in _CREATE_METHODS or not call.response:
            continue
        thing, id_ = _CREATE_METHODS[call.method]
        id = json.loads(call.response).get(thing, {}).get(id_, "")
        ids = found[call.method, json.loads(call.request).get("name", "")]
        if id not in ids:
            ids.append(id)
    for (method, name), ids in found.items():
        if len(ids) > 1:
            yield AuditFinding(f"{name} was created {len(ids)} times: {', '.join(ids)}", method)


def requested_volumes(calls: Iterable[CsiCall]) -> set[str]:
    """Names and ids of the requested volumes."""
    made = [call for call in calls if call.method == "CreateVolume"]
    names = {json.loads(call.request).get("name", "") for call in made}
    ids = {json.loads(call.response).get("volume", {}).get("volume_id", "") for call in made if call.response}
    return (names | ids) - {""}


def requested_names(calls: Iterable[CsiCall]) -> set[str]:
    """Names and ids of everything that was requested, not only volumes."""
    found: set[str] = set()
    for call in calls:
        if call.method in _CREATE_METHODS:
            thing, id_ = _CREATE_METHODS[call.method]
            found.add(json.loads(call.request).get("name", ""))
            found.add(json.loads(call.response or "{}").get(thing, {}).get(id_, ""))
    return found - {""}


def names_any(call: CsiCall, things: Collection[str]) -> bool:
    """Whether the request refers to one of them."""
    return any(isinstance(value, str) and value in things for value in json.loads(call.request).values())


def find_double_attachments(calls: Iterable[CsiCall]) -> Iterator[AuditFinding]:
    """A single-node volume is attached to one node at a time."""
    places: dict[str, set[str]] = defaultdict(set)
    for call in sorted(calls, key=_effective_time):
        if call.method == "ControllerUnpublishVolume":
            request = json.loads(call.request)
            here = places[request["volume_id"]]
            here -= {request["node_id"]} if request.get("node_id") else set(here)
        if call.method == "ControllerPublishVolume" and call.code == "OK":
            request = json.loads(call.request)
            here = places[request["volume_id"]]
            here.add(request["node_id"])
            if len(here) > 1 and _is_single(request):
                nodes = " and ".join(sorted(here))
                yield AuditFinding(f"{request['volume_id']} was attached to {nodes} at once", call.method)


def _effective_time(call: CsiCall) -> float:
    """A detach counts from its request, an attach from its answer."""
    return call.start if call.method == "ControllerUnpublishVolume" else call.end


def _is_single(request: dict[str, Any]) -> bool:
    mode = request.get("volume_capability", {}).get("access_mode", {}).get("mode", "")
    return str(mode).startswith(SINGLE_NODE_MODES)


class Inventory(Struct, frozen=True):
    """What exists at one moment."""

    mounts: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()
    volumes: frozenset[str] = frozenset()  # listed by the driver, if it can list
    snapshots: frozenset[str] = frozenset()

    def leftovers_since(self, before: Inventory) -> Iterator[AuditFinding]:
        for left, what, section in (
            (self.mounts - before.mounts, "is still mounted", "NodeUnstageVolume"),
            (self.devices - before.devices, "is still bound", "NodeUnstageVolume"),
            (self.volumes - before.volumes, "is still listed among the volumes", "DeleteVolume"),
            (self.snapshots - before.snapshots, "is still listed among the snapshots", "DeleteSnapshot"),
        ):
            if left:
                yield AuditFinding(f"{', '.join(sorted(left))} {what} after everything is deleted", section)
