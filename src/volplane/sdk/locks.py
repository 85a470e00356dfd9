"""One call at a time on a volume; who comes second is told to come again (ABORTED), never queued.

Publishing to two targets of one volume may run side by side, as Kubernetes unmounts several pods at once, and
so may attaching a volume of many nodes to several of them, and detaching; staging, expanding and everything
else in the controller has the volume to itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message

from volplane.csi import v1
from volplane.sdk.errors import Aborted

# Method → the field that names what it works on. Methods that are not here only look.
_EXCLUSIVE = {
    "CreateVolume": "name",
    "DeleteVolume": "volume_id",
    "ControllerPublishVolume": "volume_id",
    "ControllerUnpublishVolume": "volume_id",
    "ControllerExpandVolume": "volume_id",
    "ControllerModifyVolume": "volume_id",
    "CreateSnapshot": "name",
    "DeleteSnapshot": "snapshot_id",
    "CreateVolumeGroupSnapshot": "name",
    "DeleteVolumeGroupSnapshot": "group_snapshot_id",
    "NodeStageVolume": "volume_id",
    "NodeUnstageVolume": "volume_id",
    "NodeExpandVolume": "volume_id",
}
_PER_TARGET = frozenset({"NodePublishVolume", "NodeUnpublishVolume"})
_PER_NODE = frozenset({"ControllerPublishVolume", "ControllerUnpublishVolume"})
_Mode = v1.VolumeCapability.AccessMode
_MANY_NODES = frozenset(
    {_Mode.MULTI_NODE_READER_ONLY, _Mode.MULTI_NODE_SINGLE_WRITER, _Mode.MULTI_NODE_MULTI_WRITER}
)


def is_locking(method: str) -> bool:
    return method in _EXCLUSIVE or method in _PER_TARGET


def _locked_part(method: str, request: Any) -> str:
    """What of the volume the call is about; "" if it is about all of it."""
    if method in _PER_TARGET:
        return str(request.target_path)
    if method not in _PER_NODE:
        return ""
    # A volume for one node has only one place to be, so attaching it excludes everything.
    one_node = (
        method == "ControllerPublishVolume" and request.volume_capability.access_mode.mode not in _MANY_NODES
    )
    return "" if one_node else str(request.node_id)


class VolumeLocks:
    def __init__(self) -> None:
        self._held: dict[str, int] = {}  # how many share it; -1: one has it alone

    @contextmanager
    def hold(self, method: str, request: Message) -> Iterator[None]:
        if part := _locked_part(method, request):
            volume = request.volume_id  # type: ignore[attr-defined]
            with self._acquire(volume, alone=False), self._acquire(f"{volume}\0{part}", alone=True):
                yield
        else:
            with self._acquire(getattr(request, _EXCLUSIVE[method]), alone=True):
                yield

    @contextmanager
    def _acquire(self, key: str, *, alone: bool) -> Iterator[None]:
        held = self._held.get(key, 0)
        if held < 0 or (alone and held):
            raise Aborted(f"another operation on {key.partition(chr(0))[0]} is under way")
        self._held[key] = -1 if alone else held + 1
        try:
            yield
        finally:
            left = 0 if alone else self._held[key] - 1
            if left:
                self._held[key] = left
            else:
                del self._held[key]
