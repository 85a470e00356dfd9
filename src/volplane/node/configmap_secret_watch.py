"""Config maps and secrets that mounted volumes show: watched one by one, and only while they are used."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from volplane.api.meta import Resource
from volplane.base.tasks import TaskSet
from volplane.client.cache import Cache
from volplane.client.client import Client
from volplane.node.manager import VolumeManager
from volplane.volumes.base import PodVolumeSpec, ReferencedObject, VolumePlugin

log = logging.getLogger(__name__)


class _ObjectWatch:
    def __init__(self, cache: Cache[Any], task: asyncio.Task[None]) -> None:
        self.cache, self.task = cache, task
        self.pods: set[str] = set()


class ConfigMapSecretWatch:
    def __init__(self, client: Client, manager: VolumeManager) -> None:
        self._client, self._manager = client, manager
        self._sources: dict[ReferencedObject, _ObjectWatch] = {}
        self._tasks = TaskSet()
        manager.on_volume_added = self._add_volume
        manager.on_pod_released = self._remove_pod

    def _add_volume(self, plugin: VolumePlugin, spec: PodVolumeSpec) -> None:
        for watched in plugin.referenced_objects(spec):
            source = self._sources.get(watched)
            if source is None:
                source = self._sources[watched] = self._start(watched)
            source.pods.add(spec.pod.uid)

    def _start(self, watched: ReferencedObject) -> _ObjectWatch:
        kind, namespace, name = watched
        cache: Cache[Any] = Cache(
            self._client.transport, kind, namespace=namespace, fields=f"metadata.name={name}"
        )

        def on_change(old: Resource | None, new: Resource | None) -> None:
            if new is not None:  # a source that was deleted leaves its last content in place
                self._manager.source_changed(lambda plugin, spec: watched in plugin.referenced_objects(spec))

        cache.subscribe(on_change)
        return _ObjectWatch(cache, self._tasks.start(cache.run(), f"watch of {name}"))

    def _remove_pod(self, pod: str) -> None:
        for watched, source in list(self._sources.items()):
            source.pods.discard(pod)
            if not source.pods:
                source.task.cancel()
                del self._sources[watched]

    async def close(self) -> None:
        await self._tasks.close()
        self._sources.clear()
