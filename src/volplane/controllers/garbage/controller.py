"""Follows owner references over all kinds that can be deleted, custom ones included.

The subtle thing is who is dead: an owner that was seen to be deleted, or one that the server itself does not
know under its uid. An owner of a kind that nobody serves, or whose objects we do not know yet, lives on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, assert_never

from volplane.api import kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.errors import Conflict
from volplane.api.meta import ObjectMeta, OwnerReference, Resource
from volplane.client.cache import Cache, Index
from volplane.controllers.garbage.custom import Customs, Followed
from volplane.controllers.garbage.plan import (
    FOREGROUND,
    Delete,
    Dependent,
    Disown,
    Owner,
    Release,
    Step,
    plan,
)
from volplane.loops.controller import Controller
from volplane.loops.events import Recent

log = logging.getLogger(__name__)

FOLLOWED: tuple[type[Resource], ...] = tuple(
    kind.type
    for kind in kinds.ALL
    # Events own nothing, belong to nobody and are many; what cannot be made need not be followed.
    if kind.type is not None
    and {"create", "delete", "list", "watch"} <= set(kind.verbs)
    and kind.kind != "Event"
)

Key = tuple[type[Resource], str]  # a kind and `namespace/name`


def owner_uids(obj: Resource) -> list[str]:
    return [r.uid for r in obj.metadata.owner_references]


def ties(meta: ObjectMeta) -> tuple[object, ...]:
    """What of an object matters here."""
    return meta.owner_references, meta.finalizers, meta.deletion_timestamp


class Garbage(Controller[Key]):
    name = "garbage-collector-controller"

    def setup(self) -> None:
        self.caches: dict[type[Resource], Cache[Any]] = {}
        self.dependents: dict[type[Resource], Index[Any]] = {}
        self._dead: Recent[bool] = Recent()  # uids of owners that were seen to be deleted
        self._told: Recent[bool] = Recent()  # of which misplaced references somebody was told
        self.customs = Customs(self.client.transport, begun=self._begun, ready=self._ready, ended=self._ended)
        for followed in FOLLOWED:
            self._follow(self.watch(followed, self._waker_of(followed)))

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.customs.run(self.caches[CustomResourceDefinition]))
            await super()._serve()

    def _follow(self, cache: Cache[Any]) -> None:
        self.caches[cache.type] = cache
        self.dependents[cache.type] = cache.index("owners", owner_uids)

    def _begun(self, cache: Cache[Any]) -> None:
        self._follow(cache)
        self._watched.append((cache, None))  # so that what is written to it is waited for
        cache.subscribe(self._waker(self._waker_of(cache.type)))

    def _ready(self, followed: Followed) -> None:
        """Whose owners are of this kind was left alone until now."""
        for cache in self.caches.values():
            for obj in cache.all():
                if any(followed.is_meant(r) for r in obj.metadata.owner_references):
                    self.queue.add((cache.type, obj.key))

    def _ended(self, cache: Cache[Any]) -> None:
        del self.caches[cache.type], self.dependents[cache.type]
        self._watched.remove((cache, None))

    def _waker_of(self, followed: type[Resource]) -> Callable[[Any, Any], Iterable[Key]]:
        def wake(old: Resource | None, new: Resource | None) -> Iterable[Key]:
            if new is None:
                assert old is not None
                left = self._owned_by(old.uid)
                if left:
                    self._dead.put((old.uid,), True)
                yield from self._keys_of(left)  # their owner is gone
                yield from self._owners_of(old)  # an owner may have waited for it
                return
            if old is None or ties(old.metadata) != ties(new.metadata):
                if new.metadata.owner_references or (new.is_deleting and new.metadata.finalizers):
                    yield followed, new.key
                if new.is_deleting and FOREGROUND in new.metadata.finalizers:
                    yield from self._keys_of(self._owned_by(new.uid))
                if old is not None and old.metadata.owner_references != new.metadata.owner_references:
                    yield from self._owners_of(old)

        return wake

    def _owned_by(self, uid: str) -> list[Resource]:
        return [obj for index in self.dependents.values() for obj in index[uid]] if uid else []

    def _keys_of(self, objects: Iterable[Resource]) -> Iterable[Key]:
        return [(type(o), o.key) for o in objects]

    def _type_of(self, reference: OwnerReference) -> type[Resource] | None:
        """The type of an owner, if its kind is followed."""
        kind = kinds.by_kind(reference.api_version, reference.kind)
        if kind is not None:
            return kind.type if kind.type in self.caches else None
        return self.customs.type_of(reference)

    def _owners_of(self, obj: Resource) -> Iterable[Key]:
        for reference in obj.metadata.owner_references:
            followed = self._type_of(reference)
            if followed is not None:
                namespaced = kinds.of(followed).namespaced
                yield followed, f"{obj.namespace}/{reference.name}" if namespaced else reference.name

    def _owner(self, obj: Resource, reference: OwnerReference) -> Owner:
        followed = self._type_of(reference)
        if followed is None or not self.caches[followed].is_synced:
            # A kind that nobody serves (any more), or of which we do not know all yet.
            return Owner.ABSENT if self._dead.get((reference.uid,)) else Owner.PRESENT
        namespaced = kinds.of(followed).namespaced
        held = self.caches[followed].get(reference.name, obj.namespace if namespaced else "")
        if held is not None and held.uid == reference.uid:
            return (
                Owner.WAITING
                if held.is_deleting and FOREGROUND in held.metadata.finalizers
                else Owner.PRESENT
            )
        if namespaced:
            self._tell_if_elsewhere(obj, followed, reference)
            if not obj.namespace:
                return Owner.PRESENT  # no namespace to look in: such a reference says nothing
        return Owner.ABSENT

    def _tell_if_elsewhere(self, obj: Resource, owner: type[Resource], reference: OwnerReference) -> None:
        """An owner is looked for where its dependent is; one in another namespace is none."""
        if not any(o.uid == reference.uid for o in self.caches[owner].everywhere(reference.name)):
            return
        if self._told.get((obj.uid, reference.uid)):
            return
        self._told.put((obj.uid, reference.uid), True)
        named = (
            f"[{reference.api_version}/{reference.kind}, namespace: {obj.namespace}, "
            f"name: {reference.name}, uid: {reference.uid}]"
        )
        message = f'ownerRef {named} does not exist in namespace "{obj.namespace}"'
        self.events.warning(obj, "OwnerRefInvalidNamespace", message)

    async def reconcile(self, key: Key) -> None:
        followed, name = key
        cache = self.caches.get(followed)  # a custom kind may be gone meanwhile
        obj = cache.at(name) if cache is not None else None
        if obj is None:
            return
        owners = {r.uid: self._owner(obj, r) for r in obj.metadata.owner_references}
        dependents = [
            Dependent(d, r)
            for d in self._owned_by(obj.uid)
            for r in d.metadata.owner_references
            if r.uid == obj.uid
        ]
        async with asyncio.TaskGroup() as group:
            for step in plan(obj, owners, dependents):
                group.create_task(self._act(step))

    async def _act(self, step: Step) -> None:
        match step:
            case Delete(obj, propagation, absent):
                if all([await self._is_gone(obj, r) for r in absent]):
                    log.info("deleting %s %s: its owners are gone", kinds.of(type(obj)).plural, obj.key)
                    await self.client.delete(
                        type(obj),
                        obj.name,
                        obj.namespace,
                        uid=obj.uid,
                        propagation=propagation,
                        missing_ok=True,
                    )
            case Disown(obj, uids):
                left = [r for r in obj.metadata.owner_references if r.uid not in uids]
                await self._patch(obj, {"ownerReferences": [_plain(r) for r in left] or None})
            case Release(obj, finalizer):
                left_over = [f for f in obj.metadata.finalizers if f != finalizer]
                await self._patch(obj, {"finalizers": left_over or None})
            case _:
                assert_never(step)

    async def _patch(self, obj: Resource, metadata: dict[str, Any]) -> None:
        await self.client.patch(
            type(obj),
            obj.name,
            obj.namespace,
            merge={"metadata": metadata},
            uid=obj.uid,
            revision=obj.metadata.resource_version,
            missing_ok=True,
        )

    async def _is_gone(self, obj: Resource, reference: OwnerReference) -> bool:
        """The cache says so; the server has the last word."""
        followed = self._type_of(reference)
        if self._dead.get((reference.uid,)):
            return True
        if followed is None:
            return False  # its kind was served a moment ago, and nobody saw it die
        namespace = obj.namespace if kinds.of(followed).namespaced else ""
        held = await self.client.find(followed, reference.name, namespace)
        if held is not None and held.uid == reference.uid:
            raise Conflict(f"{reference.kind} {reference.name} is there after all")
        return True


def _plain(reference: OwnerReference) -> dict[str, Any]:
    return {
        k: v
        for k, v in (
            ("apiVersion", reference.api_version),
            ("kind", reference.kind),
            ("name", reference.name),
            ("uid", reference.uid),
            ("controller", reference.controller),
            ("blockOwnerDeletion", reference.block_owner_deletion),
        )
        if v is not None
    }
