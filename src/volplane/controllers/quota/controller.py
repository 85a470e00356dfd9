"""Update the status of quotas, woken by quotas and by the objects that they limit.

A kind is watched from the moment when the first quota names it. What an object uses is computed once for
each of its revisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from volplane.api import kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import ResourceQuota
from volplane.api.meta import Resource
from volplane.base import clock
from volplane.client.cache import Cache
from volplane.controllers.quota.plan import SetQuotaStatus, plan
from volplane.loops.controller import Controller
from volplane.loops.custom_kinds import CustomKinds, FollowedKind
from volplane.rules.quotas.limits import limits_of
from volplane.rules.quotas.usage import ObjectUsage, usage_of, uses_more_than_its_number
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait

_BUILT_IN = {
    kind.resource: kind
    for kind in kinds.ALL
    if kind.namespaced and {"create", "list", "watch"} <= set(kind.verbs) and not kind.stored_as
}

VersionedUsages = Mapping[str, tuple[str, ObjectUsage]]  # by name, with the resourceVersion


class QuotaView(Struct, frozen=True):
    quota: ResourceQuota
    usages: Mapping[str, VersionedUsages]  # by resource
    now: datetime


class QuotaMemory:
    def __init__(self) -> None:
        self.caches: dict[str, Cache[Any]] = {}  # of the kinds that are counted, by resource
        self.tasks: asyncio.TaskGroup | None = None  # each waits for one of them, while the controller runs
        self.limited: dict[str, frozenset[str]] = {}  # quota → the resources that it limits
        self.usages: dict[str, Mapping[str, VersionedUsages]] = {}  # as they were counted last, by quota

    def is_limited(self, resource: str) -> bool:
        return any(resource in limited for limited in self.limited.values())


class ResourceQuotas(Controller[str, QuotaView, SetQuotaStatus]):
    name = "resourcequota-controller"
    workers = 5
    resync = 300.0

    def setup(self) -> None:
        self.memory = QuotaMemory()
        self.customs = CustomKinds(
            self.client.transport,
            begun=self._follow_custom,
            ready=self._wake_quotas_of,
            ended=self._unfollow_custom,
            is_needed=self.memory.is_limited,
        )
        self.definitions = self.watch(CustomResourceDefinition)
        self.quotas = self.watch(ResourceQuota, self.keys_of_quota, observe=self.observe_quota)

    async def serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self.memory.tasks = tasks
            tasks.create_task(self.customs.run(self.definitions))
            for resource in self.memory.caches:
                tasks.create_task(self._wake_when_synced(resource))
            await super().serve()

    # --- which kinds are counted

    def observe_quota(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        quota = new or old
        assert quota is not None
        if new is None:
            self.memory.limited.pop(quota.key, None)
            return
        limited = frozenset(limits_of(new).limited)
        if limited == self.memory.limited.get(quota.key):
            return
        self.memory.limited[quota.key] = limited
        for resource in limited - self.memory.caches.keys():
            self._follow(resource)

    def _follow(self, resource: str) -> None:
        if (kind := _BUILT_IN.get(resource)) is not None:
            cache = self.memory.caches[resource] = self.client.cache(kinds.metadata_type(kind))
            self.follow(cache, self._keys_for(resource))
            if self.memory.tasks is not None:
                self.memory.tasks.create_task(self._wake_when_synced(resource))
        elif self.memory.tasks is not None and (definition := self.definitions.get(resource)) is not None:
            self.customs.reconsider(definition)

    async def _wake_when_synced(self, resource: str) -> None:
        await self.memory.caches[resource].wait_synced()
        self._wake(resource)

    def _follow_custom(self, cache: Cache[Any]) -> None:
        resource = kinds.of(cache.type).resource
        self.memory.caches[resource] = cache
        self.follow(cache, self._keys_for(resource))

    def _wake_quotas_of(self, followed: FollowedKind) -> None:
        self._wake(kinds.of(followed.cache.type).resource)

    def _wake(self, resource: str) -> None:
        for key, limited in self.memory.limited.items():
            if resource in limited:
                self.queue.add(key)

    def _unfollow_custom(self, cache: Cache[Any]) -> None:
        del self.memory.caches[kinds.of(cache.type).resource]
        self.unfollow(cache)

    # --- which keys a change wakes

    def keys_of_quota(self, old: ResourceQuota | None, new: ResourceQuota | None) -> Iterator[str]:
        if new is not None:
            yield new.key

    def _keys_for(self, resource: str) -> Callable[[Any, Any], Iterable[str]]:
        def keys(old: Resource | None, new: Resource | None) -> Iterator[str]:
            obj = new or old
            assert obj is not None
            quotas = self.quotas.names(obj.namespace)
            if not quotas:
                return
            if old is not None and new is not None and usage_of(resource, old) == usage_of(resource, new):
                return
            for quota in quotas.values():
                if resource in self.memory.limited.get(quota.key, ()):
                    yield quota.key

        return keys

    # --- what to do

    def view(self, key: str) -> QuotaView | None:
        quota = self.quotas.at(key)
        if quota is None:
            return None
        resources = [r for r in self.memory.limited.get(key, ()) if r in self.memory.caches]
        if not all(self.memory.caches[resource].is_synced for resource in resources):
            return None  # it is woken when they are
        known = self.memory.usages.get(key, {})
        usages = {r: self._count(r, quota.namespace, known.get(r, {})) for r in resources}
        return QuotaView(quota, usages, clock.wall())

    def _count(self, resource: str, namespace: str, known: VersionedUsages) -> VersionedUsages:
        objects = self.memory.caches[resource].names(namespace)
        if not uses_more_than_its_number(resource):
            return dict.fromkeys(objects, ("", usage_of(resource, None)))
        return {
            name: held
            if (held := known.get(name)) is not None and held[0] == obj.metadata.resource_version
            else (obj.metadata.resource_version, usage_of(resource, obj))
            for name, obj in objects.items()
        }

    def update_memory(
        self, key: str, view: QuotaView | None, steps: Sequence[SetQuotaStatus | CommonStep]
    ) -> None:
        if view is not None:
            self.memory.usages[key] = view.usages
        elif self.quotas.at(key) is None:
            self.memory.usages.pop(key, None)

    def plan(self, view: QuotaView) -> Iterator[SetQuotaStatus | Wait]:
        usages = {r: [usage for _, usage in counted.values()] for r, counted in view.usages.items()}
        return plan(view.quota, usages, view.now)

    def subject(self, view: QuotaView) -> ResourceQuota:
        return view.quota

    async def act(self, key: str, view: QuotaView, step: SetQuotaStatus) -> None:
        quota = view.quota
        # A merge patch of a map must name removed keys.
        hard, used = dict.fromkeys(quota.status.hard), dict.fromkeys(quota.status.used)
        status = {"hard": {**hard, **step.hard}, "used": {**used, **step.used}}
        await self.client.patch(
            ResourceQuota,
            quota.name,
            quota.namespace,
            merge={"status": status},
            subresource="status",
            uid=quota.uid,
            missing_ok=True,
        )
