"""What a recorded call is about, in the words of a report: a volume and a node, not a socket."""

from __future__ import annotations

import json
from typing import Any

from volplane.csi.call_interceptor import CsiCall

_CREATED = {
    "CreateVolume": ("volume", "volume_id"),
    "CreateSnapshot": ("snapshot", "snapshot_id"),
    "CreateVolumeGroupSnapshot": ("group_snapshot", "group_snapshot_id"),
}
_IDS = ("volume_id", "snapshot_id", "group_snapshot_id", "source_volume_id", "base_snapshot_id", "name")


def subject(call: CsiCall) -> str:
    """The id of the call's volume or snapshot; the name of one that is not created; else "" ."""
    request = _decode(call.request)
    if call.method in _CREATED:
        thing, id_ = _CREATED[call.method]
        made = _decode(call.response).get(thing, {})
        return str(made.get(id_) or request.get("name", ""))
    return next((str(request[field]) for field in _IDS if request.get(field)), "")


def instance(address: str) -> str:
    """The driver's instance: the directory of its socket."""
    return address.rsplit("/", 2)[-2] if address.count("/") > 1 else address


def about(call: CsiCall) -> str:
    """What tells this call from the others of its method: its volume, or the instance that was asked."""
    return subject(call) or instance(call.address)


def _decode(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
