"""Write `volumesAttached` of a node's status; this controller is its only writer.

The list can only be written as a whole, and the volumes of a node change concurrently. So changes that arrive
during a write go together into the next one. The list to change is the one written last, which the cache may
not show yet.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from volplane.api.core import AttachedVolume, Node
from volplane.client.cache import Cache
from volplane.client.client import Client, written_revisions


class VolumesAttachedChange(Struct):
    present: bool
    device_path: str = ""
    done: bool = False
    changed: bool = False
    revision: int = 0


class VolumesAttached:
    def __init__(self, client: Client, nodes: Cache[Node]) -> None:
        self.client = client
        self.nodes = nodes
        self._locks: dict[str, asyncio.Lock] = {}
        self._pending: dict[str, dict[str, VolumesAttachedChange]] = {}  # node → volume → change
        self._last: dict[str, Node] = {}  # as we wrote it, until the cache shows it

    async def add(self, node: str, volume: str, device_path: str = "") -> bool:
        """List the volume; True if the node did not list it before."""
        return await self._change(node, volume, VolumesAttachedChange(True, device_path))

    async def remove(self, node: str, volume: str) -> bool:
        return await self._change(node, volume, VolumesAttachedChange(False))

    def newest(self, name: str) -> Node | None:
        """The node as last written, if the cache does not show it yet."""
        cached, last = self.nodes.get(name), self._last.get(name)
        if last is None or cached is None or last.uid != cached.uid or last.revision <= cached.revision:
            return cached
        return last

    def observe_node(self, old: Node | None, new: Node | None) -> None:
        """Drop the written node once the cache shows it."""
        node = new or old
        assert node is not None
        if node.name in self._last and self.newest(node.name) is not self._last[node.name]:
            del self._last[node.name]

    async def _change(self, node: str, volume: str, change: VolumesAttachedChange) -> bool:
        self._pending.setdefault(node, {})[volume] = change
        async with self._locks.setdefault(node, asyncio.Lock()):
            if not change.done:
                # Not pending any more if the write that it was part of has failed.
                self._pending.setdefault(node, {})[volume] = change
                await self._flush(node)
        notes = written_revisions.get()
        if notes is not None and change.revision:  # also for changes that another caller wrote
            notes[Node] = max(notes.get(Node, 0), change.revision)
        return change.changed

    async def _flush(self, name: str) -> None:
        """Write all pending changes."""
        changes = self._pending.pop(name)
        node = self.newest(name)
        have = {v.name: v for v in node.status.volumes_attached} if node is not None else {}
        want = {v: entry for v, entry in have.items() if v not in changes or changes[v].present}
        want |= {
            v: AttachedVolume(name=v, device_path=c.device_path) for v, c in changes.items() if c.present
        }
        revision = 0
        if node is not None and want != have:
            entries = [{"name": v.name, "devicePath": v.device_path} for v in want.values()]
            patched = await self.client.patch(
                Node,
                name,
                merge={"status": {"volumesAttached": entries}},
                subresource="status",
                uid=node.uid,
                missing_ok=True,
            )
            if patched is not None:  # a deleted node has no status
                self._last[name] = patched
                revision = patched.revision
        for volume, change in changes.items():
            change.done, change.revision = True, revision
            change.changed = (volume in want) != (volume in have)
