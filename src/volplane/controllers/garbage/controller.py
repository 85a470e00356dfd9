"""Follows owner references over all kinds that own or are owned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, assert_never

from volplane.api import kinds
from volplane.api.apps import ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet
from volplane.api.batch import CronJob, Job
from volplane.api.core import (
    ConfigMap,
    Endpoints,
    Node,
    PersistentVolumeClaim,
    Pod,
    ReplicationController,
    Secret,
    Service,
    ServiceAccount,
)
from volplane.api.errors import Conflict
from volplane.api.meta import OwnerReference, Resource
from volplane.api.storage import CSINode, CSIStorageCapacity
from volplane.client.cache import Cache, Index
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

log = logging.getLogger(__name__)

FOLLOWED: tuple[type[Resource], ...] = (
    Deployment, ReplicaSet, DaemonSet, StatefulSet, Job, CronJob, ControllerRevision, Pod,
    PersistentVolumeClaim, Node, CSINode, CSIStorageCapacity, ConfigMap, Secret, Service, ServiceAccount,
    Endpoints, ReplicationController,
)  # fmt: skip

Key = tuple[type[Resource], str]  # a kind and `namespace/name`


def owner_uids(obj: Resource) -> list[str]:
    return [r.uid for r in obj.metadata.owner_references]


class Garbage(Controller[Key]):
    name = "garbage-collector-controller"

    def setup(self) -> None:
        self.caches: dict[type[Resource], Cache[Any]] = {}
        self.dependents: list[Index[Any]] = []
        for followed in FOLLOWED:
            cache = self.watch(followed, self._waker_of(followed))
            self.caches[followed] = cache
            self.dependents.append(cache.index("owners", owner_uids))

    def _waker_of(self, followed: type[Resource]) -> Callable[[Any, Any], Iterable[Key]]:
        def wake(old: Resource | None, new: Resource | None) -> Iterable[Key]:
            if new is None:
                assert old is not None
                yield from self._keys_of(self._owned_by(old.uid))  # their owner is gone
                yield from self._owners_of(old)  # an owner may have waited for it
                return
            if old is None or old.metadata != new.metadata:
                if new.metadata.owner_references or (new.is_deleting and new.metadata.finalizers):
                    yield followed, new.key
                if new.is_deleting and FOREGROUND in new.metadata.finalizers:
                    yield from self._keys_of(self._owned_by(new.uid))
                if old is not None and old.metadata.owner_references != new.metadata.owner_references:
                    yield from self._owners_of(old)

        return wake

    def _owned_by(self, uid: str) -> list[Resource]:
        return [obj for index in self.dependents for obj in index[uid]] if uid else []

    def _keys_of(self, objects: Iterable[Resource]) -> Iterable[Key]:
        return [(type(o), o.key) for o in objects]

    def _owners_of(self, obj: Resource) -> Iterable[Key]:
        for reference in obj.metadata.owner_references:
            kind = kinds.by_kind(reference.api_version, reference.kind)
            if kind and kind.type in self.caches:
                yield kind.type, f"{obj.namespace}/{reference.name}" if kind.namespaced else reference.name

    def _owner(self, obj: Resource, reference: OwnerReference) -> Owner:
        kind = kinds.by_kind(reference.api_version, reference.kind)
        if kind is None or kind.type not in self.caches:
            return Owner.PRESENT  # a kind that we do not follow: never judged dead
        held = self.caches[kind.type].get(reference.name, obj.namespace if kind.namespaced else "")
        if held is None or held.uid != reference.uid:
            return Owner.ABSENT
        return Owner.WAITING if held.is_deleting and FOREGROUND in held.metadata.finalizers else Owner.PRESENT

    async def reconcile(self, key: Key) -> None:
        followed, name = key
        obj = self.caches[followed].at(name)
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
        kind = kinds.by_kind(reference.api_version, reference.kind)
        assert kind is not None
        assert kind.type is not None
        namespace = obj.namespace if kind.namespaced else ""
        held = await self.client.find(kind.type, reference.name, namespace)
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
