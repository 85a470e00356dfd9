"""Watches of the ConfigMaps and Secrets that mounted volumes show: one per object.

A watch outlives its last pod by some seconds, because the next pod often needs the same: all pods of a
namespace show its root certificates. That saves a list, and with it a second look at the volume: what a list
finds may have changed since the volume was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from volplane.api.meta import Resource
from volplane.base.tasks import TaskSet
from volplane.client.cache import Cache
from volplane.client.client import Client
from volplane.volumes.base import PodVolumeSpec, ReferencedObject, VolumePlugin

UNUSED_SECONDS = 30.0  # that a watch goes on without pods


class _ObjectWatch:
    def __init__(self, cache: Cache[Any], task: asyncio.Task[None]) -> None:
        self.cache, self.task = cache, task
        self.pods: set[str] = set()
        self.end: asyncio.TimerHandle | None = None  # while no pod uses it

    def cancel_end(self) -> None:
        if self.end is not None:
            self.end.cancel()
            self.end = None


class ConfigMapSecretWatch:
    def __init__(self, client: Client, on_change: Callable[[ReferencedObject], None]) -> None:
        self._client, self._on_change = client, on_change
        self._watches: dict[ReferencedObject, _ObjectWatch] = {}
        self._tasks = TaskSet()

    def add_volume(self, plugin: VolumePlugin, spec: PodVolumeSpec) -> None:
        for watched in plugin.referenced_objects(spec):
            watch = self._watches.get(watched)
            if watch is None:
                watch = self._watches[watched] = self._start(watched)
            watch.pods.add(spec.pod.uid)
            watch.cancel_end()

    def _start(self, watched: ReferencedObject) -> _ObjectWatch:
        kind, namespace, name = watched
        cache: Cache[Any] = Cache(
            self._client.transport, kind, namespace=namespace, fields=f"metadata.name={name}"
        )

        def on_change(old: Resource | None, new: Resource | None) -> None:
            # Also when it was deleted: files of an optional object disappear, those of another one stay.
            self._on_change(watched)

        cache.subscribe(on_change)
        return _ObjectWatch(cache, self._tasks.start(self._run(cache, watched), f"watch of {name}"))

    async def _run(self, cache: Cache[Any], watched: ReferencedObject) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(cache.run())
            await cache.wait_synced()
            if not cache.all():  # perhaps deleted after a volume has read it, and before it was watched
                self._on_change(watched)

    def remove_pod(self, uid: str) -> None:
        loop = asyncio.get_running_loop()
        for watched, watch in self._watches.items():
            if uid in watch.pods:
                watch.pods.discard(uid)
                if not watch.pods:
                    watch.end = loop.call_later(UNUSED_SECONDS, self._end, watched)

    def _end(self, watched: ReferencedObject) -> None:
        watch = self._watches.pop(watched, None)
        if watch is not None:
            watch.task.cancel()

    async def close(self) -> None:
        for watch in self._watches.values():
            watch.cancel_end()
        await self._tasks.close()
        self._watches.clear()
