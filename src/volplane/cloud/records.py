"""The records of the disk service: volumes, snapshots, instances and modifications, in a store.

The dictionaries have the present state. The store has it, too, or has the intent of an operation from which a
restart finds it out again (`plan.py`): only then may a volume be shown before it is stored. This process is
the only writer, so a conflict in the store is a bug and is not handled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from volplane.base.tasks import KeyedTasks
from volplane.cloud.model import (
    CloudAttachment,
    CloudInstance,
    CloudModification,
    CloudSnapshot,
    CloudVolume,
)
from volplane.store import Store, StoreFailed

log = logging.getLogger(__name__)

_VOLUMES, _INSTANCES, _MODIFICATIONS = "/cloud/volumes/", "/cloud/instances/", "/cloud/modifications/"
_SNAPSHOTS = "/cloud/snapshots/"
EVENT_WINDOW = 0  # events that its store keeps in memory: the store is not watched
COMPACT_INTERVAL = 1000  # writes between two compactions of the store


class _StoredVolume(CloudVolume, frozen=True, omit_defaults=True):
    """A volume as it may be stored: earlier versions knew one attachment."""

    attachment: CloudAttachment | None = None

    def to_volume(self) -> CloudVolume:
        values = structs.asdict(self)
        single = values.pop("attachment")
        return CloudVolume(**(values | ({"attachments": (single,)} if single else {})))


T = TypeVar("T", _StoredVolume, CloudInstance, CloudModification, CloudSnapshot)


class CloudRecords:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._revisions: dict[str, int] = {}
        self._written = 0  # since the last compaction
        self._background: KeyedTasks[str, None] = KeyedTasks(_log_unstored)  # writes of `put_volume_later`
        self.volumes: dict[str, CloudVolume] = {}
        self.instances: dict[str, CloudInstance] = {}
        self.modifications: dict[str, CloudModification] = {}
        self.snapshots: dict[str, CloudSnapshot] = {}
        self.tokens: dict[str, str] = {}  # client token → volume
        self.granted = 0  # GiB of all volumes together
        self.unreadable: set[str] = set()  # ids of records that cannot be read: their files are not used

    @property
    def is_new(self) -> bool:
        """Nothing was ever written: the first start registers instances."""
        return not self._revisions

    async def load(self) -> None:
        for volume in await self._read(_VOLUMES, _StoredVolume):
            self._index_volume(volume.to_volume())
        for instance in await self._read(_INSTANCES, CloudInstance):
            self.instances[instance.id] = instance
        for modification in await self._read(_MODIFICATIONS, CloudModification):
            self.modifications[modification.volume] = modification
        for snapshot in await self._read(_SNAPSHOTS, CloudSnapshot):
            self.snapshots[snapshot.id] = snapshot

    async def put_volume(self, volume: CloudVolume) -> CloudVolume:
        await self._write(_VOLUMES + volume.id, volume)
        self._index_volume(volume)
        return volume

    def show_volume(self, volume: CloudVolume) -> None:
        """Show a volume without storing it: after a crash its file has no record, and is removed."""
        self._index_volume(volume)

    def put_volume_later(self, volume: CloudVolume) -> None:
        """Show a volume now, and store it in the background.

        For the result of an operation whose stored intent a restart carries out again, with the same result.
        """
        self._index_volume(volume)
        key = _VOLUMES + volume.id
        self._background.start(key, self._store_value(key, volume), name=f"store {volume.id}")

    async def flush(self) -> None:
        """Wait until everything that is shown is stored."""
        if tasks := self._background.values():
            await asyncio.wait(tasks)

    async def delete_volume(self, volume: CloudVolume) -> None:
        await self._delete(_VOLUMES + volume.id)
        self.granted -= self.volumes.pop(volume.id).shape.size
        if change := self.modifications.get(
            volume.id
        ):  # after the volume: a modification without a volume does no harm
            await self.delete_modification(change)
        self.tokens.pop(volume.token, None)

    async def put_instance(self, instance: CloudInstance) -> CloudInstance:
        await self._write(_INSTANCES + instance.id, instance)
        self.instances[instance.id] = instance
        return instance

    async def delete_instance(self, instance: CloudInstance) -> None:
        await self._delete(_INSTANCES + instance.id)
        del self.instances[instance.id]

    async def put_modification(self, modification: CloudModification) -> CloudModification:
        await self._write(_MODIFICATIONS + modification.volume, modification)
        self.modifications[modification.volume] = modification
        return modification

    async def delete_modification(self, modification: CloudModification) -> None:
        await self._delete(_MODIFICATIONS + modification.volume)
        del self.modifications[modification.volume]

    async def put_snapshot(self, snapshot: CloudSnapshot) -> CloudSnapshot:
        await self._write(_SNAPSHOTS + snapshot.id, snapshot)
        self.snapshots[snapshot.id] = snapshot
        return snapshot

    async def delete_snapshot(self, snapshot: CloudSnapshot) -> None:
        await self._delete(_SNAPSHOTS + snapshot.id)
        del self.snapshots[snapshot.id]

    def attached_to(self, instance: str) -> list[CloudVolume]:
        return [v for v in self.volumes.values() if v.find_attachment(instance)]

    def _index_volume(self, volume: CloudVolume) -> None:
        before = self.volumes.get(volume.id)
        self.granted += volume.shape.size - (before.shape.size if before is not None else 0)
        self.volumes[volume.id] = volume
        if volume.token:
            self.tokens[volume.token] = volume.id

    async def _read(self, prefix: str, kind: type[T]) -> list[T]:
        listing = await self._store.list(prefix)
        self._revisions |= {r.key: r.revision for r in listing.records}
        found = []
        for record in listing.records:
            try:
                found.append(msgspec.json.decode(record.value, type=kind))
            except ValueError as error:
                name = record.key.rpartition("/")[2]
                self.unreadable.add(name)
                log.error("cannot read the record of %s, its disk is not used: %s", name, error)
        return found

    async def _write(
        self, key: str, value: CloudVolume | CloudInstance | CloudModification | CloudSnapshot
    ) -> None:
        await self._wait_for_background(key)
        await self._store_value(key, value)

    async def _wait_for_background(self, key: str) -> None:
        if task := self._background.get(key):
            await asyncio.wait([task])

    async def _store_value(
        self, key: str, value: CloudVolume | CloudInstance | CloudModification | CloudSnapshot
    ) -> None:
        data = msgspec.json.encode(value)
        known = self._revisions.get(key)
        if known is None:
            revision = await self._store.create(key, data)
        else:
            revision = await self._store.update(key, data, revision=known)
        self._revisions[key] = revision
        await self._compact(revision)

    async def _delete(self, key: str) -> None:
        await self._wait_for_background(key)
        if key not in self._revisions:  # shown only
            return
        gone = await self._store.delete(key, revision=self._revisions[key])
        del self._revisions[key]
        await self._compact(gone.revision)

    async def _compact(self, revision: int) -> None:
        self._written += 1
        if self._written >= COMPACT_INTERVAL:
            self._written = 0
            try:
                await self._store.compact(revision - 1)
            except StoreFailed as error:  # the write itself has succeeded
                log.warning("cannot compact the records: %s", error)


def _log_unstored(task: asyncio.Task[Any], error: BaseException) -> None:
    log.warning(
        "%s: the result of an operation is not stored (%s); a restart repeats it", task.get_name(), error
    )
