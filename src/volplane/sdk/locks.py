"""One call at a time on a volume; who comes second is told to come again (ABORTED), never queued.

Publishing to two targets of one volume may run side by side, as Kubernetes unmounts several pods at once;
staging, expanding and everything in the controller has the volume to itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf.message import Message

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


def is_locking(method: str) -> bool:
    return method in _EXCLUSIVE or method in _PER_TARGET


class Locks:
    def __init__(self) -> None:
        self._held: dict[str, int] = {}  # how many share it; -1: one has it alone

    @contextmanager
    def hold(self, method: str, request: Message) -> Iterator[None]:
        if method in _PER_TARGET:
            volume, target = request.volume_id, request.target_path  # type: ignore[attr-defined]
            with self._take(volume, alone=False), self._take(f"{volume}\0{target}", alone=True):
                yield
        else:
            with self._take(getattr(request, _EXCLUSIVE[method]), alone=True):
                yield

    @contextmanager
    def _take(self, key: str, *, alone: bool) -> Iterator[None]:
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
