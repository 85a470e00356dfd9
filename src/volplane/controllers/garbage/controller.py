"""Follow owner references over all kinds that can be deleted, custom ones included.

An owner is gone if it was seen to be deleted, or if the server does not have it under its uid. An owner of a
kind that is not served, or whose objects are not all known yet, counts as present.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never

from msgspec import Struct

from volplane.api import kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.errors import Conflict
from volplane.api.meta import ObjectMeta, OwnerReference, Resource
from volplane.client.cache import Cache, CacheIndex
from volplane.controllers.garbage.plan import (
    FOREGROUND,
    ORPHAN,
    DeleteObject,
    Dependent,
    OwnerState,
    RemoveDeletionFinalizer,
    RemoveOwnerRef,
    Step,
    UnblockOwners,
    plan,
)
from volplane.loops.controller import Controller
from volplane.loops.custom_kinds import CustomKinds, FollowedKind
from volplane.loops.events import RecentEntries
from volplane.rules.steps import CommonStep, RecordEvent, warning

log = logging.getLogger(__name__)

BUILT_IN_KINDS: tuple[type[Resource], ...] = tuple(
    kinds.metadata_type(kind)
    for kind in kinds.ALL
    # Events have neither owners nor dependents; kinds that cannot be created need not be followed, nor other
    # forms of the same objects.
    if {"create", "delete", "list", "watch"} <= set(kind.verbs)
    and kind.kind != "Event"
    and not kind.stored_as
)

PATCH_TRIES = 5  # each against the live object, after the first

Key = tuple[type[Resource], str]  # a kind and `namespace/name`
Change = Mapping[str, Any]  # fields of metadata to be patched; empty: there is nothing to change


def owner_uids(obj: Resource) -> list[str]:
    return [r.uid for r in obj.metadata.owner_references]


def relevant_fields(meta: ObjectMeta) -> tuple[object, ...]:
    """The fields of an object that garbage collection depends on."""
    return meta.owner_references, meta.finalizers, meta.deletion_timestamp


class GarbageView(Struct, frozen=True):
    object: Resource
    owners: Mapping[str, OwnerState]  # by uid
    dependents: Sequence[Dependent]
    misplaced: Sequence[OwnerReference] = ()  # whose owner is in another namespace; not reported yet


class GarbageMemory:
    def __init__(self) -> None:
        self.dead: RecentEntries[bool] = RecentEntries()  # uids of owners that were seen to be deleted
        self.reported: RecentEntries[bool] = RecentEntries()  # misplaced references that were reported


class GarbageCollector(Controller[Key, GarbageView, Step]):
    name = "garbage-collector-controller"

    def setup(self) -> None:
        self.memory = GarbageMemory()
        self.caches: dict[type[Resource], Cache[Any]] = {}
        self.dependents: dict[type[Resource], CacheIndex[Any]] = {}
        self.customs = CustomKinds(
            self.client.transport,
            begun=self._follow_custom,
            ready=self._wake_dependents,
            ended=self._unfollow_custom,
        )
        for followed in BUILT_IN_KINDS:
            self._index(self.watch(followed, self._keys_for(followed), observe=self.observe))

    async def serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.customs.run(self.caches[CustomResourceDefinition]))
            await super().serve()

    def _index(self, cache: Cache[Any]) -> None:
        self.caches[cache.type] = cache
        self.dependents[cache.type] = cache.index("owners", owner_uids)

    def _follow_custom(self, cache: Cache[Any]) -> None:
        self._index(cache)
        self.follow(cache, self._keys_for(cache.type), observe=self.observe)

    def _wake_dependents(self, followed: FollowedKind) -> None:
        """Wake the objects whose owners are of this kind: they were skipped until now."""
        for cache in self.caches.values():
            for obj in cache.all():
                if any(followed.is_meant(r) for r in obj.metadata.owner_references):
                    self.queue.add((cache.type, obj.key))

    def _unfollow_custom(self, cache: Cache[Any]) -> None:
        del self.caches[cache.type], self.dependents[cache.type]
        self.unfollow(cache)

    # --- which keys a change wakes

    def _keys_for(self, followed: type[Resource]) -> Callable[[Any, Any], Iterable[Key]]:
        def keys(old: Resource | None, new: Resource | None) -> Iterable[Key]:
            if new is None:
                assert old is not None
                yield from self._keys_of(self._owned_by(old.uid))  # their owner is gone
                yield from self._owners_of(old)  # an owner may have waited for it
                return
            if old is None or relevant_fields(old.metadata) != relevant_fields(new.metadata):
                finalizers = new.metadata.finalizers
                waits = new.is_deleting and (ORPHAN in finalizers or FOREGROUND in finalizers)
                if new.metadata.owner_references or waits:
                    yield followed, new.key
                if new.is_deleting and FOREGROUND in new.metadata.finalizers:
                    yield from self._keys_of(self._owned_by(new.uid))
                if old is not None and old.metadata.owner_references != new.metadata.owner_references:
                    yield from self._owners_of(old)

        return keys

    def observe(self, old: Resource | None, new: Resource | None) -> None:
        if new is None and old is not None and self._owned_by(old.uid):
            self.memory.dead.put((old.uid,), True)

    def _owned_by(self, uid: str) -> list[Resource]:
        # Most deleted objects own nothing, and there are many kinds: look before reading.
        owning = [index for index in self.dependents.values() if uid in index.entries] if uid else []
        return [obj for index in owning for obj in index[uid]]

    def _keys_of(self, objects: Iterable[Resource]) -> Iterable[Key]:
        return [(type(o), o.key) for o in objects]

    def _type_of(self, reference: OwnerReference) -> type[Resource] | None:
        """The type of an owner, if its kind is followed."""
        kind = kinds.by_kind(reference.api_version, reference.kind)
        if kind is not None:
            followed = kinds.metadata_type(kind)
            return followed if followed in self.caches else None
        return self.customs.type_of(reference)

    def _owners_of(self, obj: Resource) -> Iterable[Key]:
        for reference in obj.metadata.owner_references:
            followed = self._type_of(reference)
            if followed is not None:
                namespaced = kinds.of(followed).namespaced
                yield followed, f"{obj.namespace}/{reference.name}" if namespaced else reference.name

    # --- what the caches show

    def view(self, key: Key) -> GarbageView | None:
        followed, name = key
        cache = self.caches.get(followed)  # a custom kind may be gone meanwhile
        obj = cache.at(name) if cache is not None else None
        if obj is None:
            return None
        references = obj.metadata.owner_references
        owners = {r.uid: self._owner(obj, r) for r in references}
        misplaced = [r for r in references if self._is_misplaced(obj, r)]
        dependents = [
            Dependent(d, r)
            for d in self._owned_by(obj.uid)
            for r in d.metadata.owner_references
            if r.uid == obj.uid
        ]
        return GarbageView(obj, owners, dependents, misplaced)

    def _owner(self, obj: Resource, reference: OwnerReference) -> OwnerState:
        followed = self._type_of(reference)
        if followed is None or not self.caches[followed].is_synced:
            # A kind that is not served (any more), or whose objects are not all known yet.
            return OwnerState.ABSENT if self.memory.dead.get((reference.uid,)) else OwnerState.PRESENT
        namespaced = kinds.of(followed).namespaced
        found = self.caches[followed].get(reference.name, obj.namespace if namespaced else "")
        if found is not None and found.uid == reference.uid:
            waits = found.is_deleting and FOREGROUND in found.metadata.finalizers
            return OwnerState.WAITING if waits else OwnerState.PRESENT
        if namespaced and not obj.namespace:
            return OwnerState.PRESENT  # a cluster-scoped object cannot have a namespaced owner
        return OwnerState.ABSENT

    def _is_misplaced(self, obj: Resource, reference: OwnerReference) -> bool:
        """An owner is looked up in the namespace of its dependent; this one is in another namespace."""
        followed = self._type_of(reference)
        if followed is None or not self.caches[followed].is_synced or not kinds.of(followed).namespaced:
            return False
        found = self.caches[followed].get(reference.name, obj.namespace)
        if found is not None and found.uid == reference.uid:
            return False
        if self.memory.reported.get((obj.uid, reference.uid)):
            return False
        return any(o.uid == reference.uid for o in self.caches[followed].list_by_name(reference.name))

    # --- what to do

    def plan(self, view: GarbageView) -> Iterator[Step | RecordEvent]:
        for reference in view.misplaced:
            yield warning("OwnerRefInvalidNamespace", misplaced_message(view.object, reference))
        yield from plan(view.object, view.owners, view.dependents)

    def update_memory(self, key: Key, view: GarbageView | None, steps: Sequence[Step | CommonStep]) -> None:
        for reference in view.misplaced if view is not None else ():
            assert view is not None
            self.memory.reported.put((view.object.uid, reference.uid), True)

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterable[Sequence[Step | CommonStep]]:
        return (steps,)

    # --- doing it

    def subject(self, view: GarbageView) -> Resource:
        return view.object

    async def act(self, key: Key, view: GarbageView, step: Step) -> None:
        match step:
            case DeleteObject(obj, propagation, absent):
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
            case RemoveOwnerRef(obj, uids, absent):
                if all([await self._is_gone(obj, r) for r in absent]):
                    as_dependent = obj is view.object
                    await self._change(
                        obj, lambda meta: _without_owners(meta, uids), same_owners=as_dependent
                    )
            case UnblockOwners(obj):
                await self._change(obj, _with_unblocked_owners, same_owners=True)
            case RemoveDeletionFinalizer(obj, finalizer):
                await self._change(obj, lambda meta: _without_finalizer(meta, finalizer))
            case _:
                assert_never(step)

    async def _change(
        self, obj: Resource, change: Callable[[ObjectMeta], Change], *, same_owners: bool = False
    ) -> None:
        """Change metadata; if the cache lags behind others' writes, change the live object's.

        `same_owners`: only if it has the owners with which this was planned.
        """
        for tries_left in reversed(range(PATCH_TRIES)):
            changed = change(obj.metadata)
            if not changed:
                return
            try:
                await self.client.patch(
                    type(obj),
                    obj.name,
                    obj.namespace,
                    merge={"metadata": changed},
                    uid=obj.uid,
                    revision=obj.metadata.resource_version,
                    missing_ok=True,
                )
                return
            except Conflict:
                live = await self.client.find(type(obj), obj.name, obj.namespace)
                if live is None or live.uid != obj.uid:
                    return
                moved = live.metadata.owner_references != obj.metadata.owner_references
                if not tries_left or (same_owners and moved):
                    raise
                obj = live

    async def _is_gone(self, obj: Resource, reference: OwnerReference) -> bool:
        """Whether the server does not have the owner either. Raises Conflict if it does."""
        followed = self._type_of(reference)
        if self.memory.dead.get((reference.uid,)):
            return True
        if followed is None:
            return False  # its kind is no longer served, and its deletion was not seen
        namespace = obj.namespace if kinds.of(followed).namespaced else ""
        found = await self.client.find(followed, reference.name, namespace)
        if found is not None and found.uid == reference.uid:
            raise Conflict(f"{reference.kind} {reference.name} exists after all")
        return True


def misplaced_message(obj: Resource, reference: OwnerReference) -> str:
    described = (
        f"[{reference.api_version}/{reference.kind}, namespace: {obj.namespace}, "
        f"name: {reference.name}, uid: {reference.uid}]"
    )
    return f'ownerRef {described} does not exist in namespace "{obj.namespace}"'


def _without_owners(meta: ObjectMeta, uids: Collection[str]) -> Change:
    left = [r for r in meta.owner_references if r.uid not in uids]
    if len(left) == len(meta.owner_references):
        return {}
    return {"ownerReferences": [_plain(r) for r in left] or None}


def _with_unblocked_owners(meta: ObjectMeta) -> Change:
    if not any(r.block_owner_deletion for r in meta.owner_references):
        return {}
    return {"ownerReferences": [{**_plain(r), "blockOwnerDeletion": False} for r in meta.owner_references]}


def _without_finalizer(meta: ObjectMeta, finalizer: str) -> Change:
    if finalizer not in meta.finalizers:
        return {}
    return {"finalizers": [f for f in meta.finalizers if f != finalizer] or None}


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
