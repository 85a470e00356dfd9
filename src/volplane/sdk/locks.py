"""One call at a time for a volume; a second call gets ABORTED and is not queued.

Calls for different targets of one volume may run at the same time, because Kubernetes unmounts several pods
at once. So may attaching a volume with multi-node access to several nodes, and detaching it. All other calls
lock the whole volume.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from google.protobuf.message import Message

from volplane.csi import v1
from volplane.sdk.errors import Aborted

# Method → the field that names what to lock. Other methods only read.
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
    """The target or node that the call locks; "" for the whole volume."""
    if method in _PER_TARGET:
        return str(request.target_path)
    if method not in _PER_NODE:
        return ""
    # Attaching a single-node volume locks all of it.
    one_node = (
        method == "ControllerPublishVolume" and request.volume_capability.access_mode.mode not in _MANY_NODES
    )
    return "" if one_node else str(request.node_id)


class VolumeLocks:
    def __init__(self) -> None:
        self._held: dict[str, int] = {}  # number of shared holders; -1: held exclusively

    @contextmanager
    def hold(self, method: str, request: Message) -> Iterator[None]:
        if part := _locked_part(method, request):
            volume = request.volume_id  # type: ignore[attr-defined]
            with self._acquire(volume, exclusive=False), self._acquire(f"{volume}\0{part}", exclusive=True):
                yield
        else:
            with self._acquire(getattr(request, _EXCLUSIVE[method]), exclusive=True):
                yield

    @contextmanager
    def _acquire(self, key: str, *, exclusive: bool) -> Iterator[None]:
        held = self._held.get(key, 0)
        if held < 0 or (exclusive and held):
            raise Aborted(f"another operation on {key.partition(chr(0))[0]} is in progress")
        self._held[key] = -1 if exclusive else held + 1
        try:
            yield
        finally:
            left = 0 if exclusive else self._held[key] - 1
            if left:
                self._held[key] = left
            else:
                del self._held[key]


class PathLocks:
    """One user of a path at a time; others wait."""

    def __init__(self) -> None:
        # With the number of users, also waiting ones.
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, path: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(path) or (asyncio.Lock(), 0)
        self._locks[path] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(path)
            if users > 1:
                self._locks[path] = lock, users - 1
