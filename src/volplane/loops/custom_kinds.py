"""Metadata caches of custom kinds, each for as long as its definition exists.

They belong to one controller: a shared cache cannot be stopped, and one whose kind is gone would retry
forever. When a definition is deleted, it is not known which of its objects still exist: they are dropped
here, and do not count as deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.meta import OwnerReference, Resource
from volplane.client.cache import Cache
from volplane.client.transport import Transport
from volplane.rules.definitions import api_versions, metadata_type


class FollowedKind:
    """A custom kind and the task that watches its objects."""

    def __init__(self, cache: Cache[Any]) -> None:
        self.cache = cache
        self.names: set[tuple[str, str]] = set()  # apiVersion and kind, as references have them
        self.task: asyncio.Task[None] | None = None

    def is_meant(self, reference: OwnerReference) -> bool:
        return (reference.api_version, reference.kind) in self.names


class CustomKinds:
    def __init__(
        self,
        transport: Transport,
        *,
        begun: Callable[[Cache[Any]], None],
        ready: Callable[[FollowedKind], None],  # all that exist are known
        ended: Callable[[Cache[Any]], None],
        is_needed: Callable[[str], bool] = lambda definition: True,
    ) -> None:
        """`is_needed`: whether to follow the kind with the definition of this name."""
        self._transport = transport
        self._begun, self._ready, self._ended = begun, ready, ended
        self._is_needed = is_needed
        self._followed: dict[str, FollowedKind] = {}  # by the definition's name

    def type_of(self, reference: OwnerReference) -> type[Resource] | None:
        return next((f.cache.type for f in self._followed.values() if f.is_meant(reference)), None)

    async def run(self, definitions: Cache[CustomResourceDefinition]) -> None:
        async with asyncio.TaskGroup() as self._group:
            end = definitions.subscribe(self._observe_definition)
            try:
                await asyncio.get_running_loop().create_future()  # the tasks of the kinds do the work
            finally:
                end()

    def reconsider(self, definition: CustomResourceDefinition) -> None:
        """Follow the kind, or end it: `is_needed` has changed."""
        self._observe_definition(definition, definition)

    def _observe_definition(
        self, old: CustomResourceDefinition | None, new: CustomResourceDefinition | None
    ) -> None:
        definition = new or old
        assert definition is not None
        wanted = metadata_type(new) if new is not None and self._is_needed(new.name) else None
        followed = self._followed.get(definition.name)
        if followed is not None and followed.cache.type is not wanted:
            self._end(definition.name)
            followed = None
        if wanted is None:
            return
        if followed is None:
            followed = self._begin(definition.name, wanted)
        kind = definition.status.accepted_names.kind
        followed.names = {(api_version, kind) for api_version in api_versions(definition)}

    def _begin(self, name: str, wanted: type[Resource]) -> FollowedKind:
        followed = self._followed[name] = FollowedKind(Cache(self._transport, wanted))
        self._begun(followed.cache)
        followed.task = self._group.create_task(self._follow(followed), name=repr(followed.cache))
        return followed

    async def _follow(self, followed: FollowedKind) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(followed.cache.run())
            await followed.cache.wait_synced()
            self._ready(followed)

    def _end(self, name: str) -> None:
        followed = self._followed.pop(name)
        if followed.task is not None:
            followed.task.cancel()
        self._ended(followed.cache)
