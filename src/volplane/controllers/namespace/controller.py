"""Empties terminating namespaces and lets them go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import structs

from volplane.api import codec, kinds
from volplane.api.core import Namespace
from volplane.api.errors import NotFound
from volplane.api.kinds import Kind
from volplane.api.meta import Resource
from volplane.base import clock
from volplane.controllers.namespace.plan import FINALIZER, conditions, order
from volplane.loops.controller import Controller

LOOK_AGAIN = 0.5  # seconds; only while something inside waits for others (grace, finalizers)


class Namespaces(Controller[str]):
    name = "namespace-controller"

    def setup(self) -> None:
        self.namespaces = self.watch(
            Namespace, lambda old, new: [new.name] if new and new.is_deleting else []
        )

    async def reconcile(self, key: str) -> None:
        namespace = self.namespaces.get(key)
        if namespace is None or not namespace.is_deleting or FINALIZER not in namespace.spec.finalizers:
            return
        left = await self._empty(key)
        await self._report(namespace, left)
        if any(left.values()):
            self.queue.later(key, LOOK_AGAIN, "objects are left in it")
            return
        await self._finalize(key)

    async def _empty(self, namespace: str) -> dict[str, Sequence[Resource]]:
        """Delete what is there; what is still there afterwards, by resource."""
        left: dict[str, Sequence[Resource]] = {}
        for kind in order([k for k in kinds.ALL if "delete" in k.verbs and "list" in k.verbs]):
            left[kind.resource] = await self._delete_all(kind, namespace)
        return left

    async def _delete_all(self, kind: Kind, namespace: str) -> Sequence[Resource]:
        assert kind.type is not None
        try:
            found = await self.client.list(kind.type, namespace)
        except NotFound:
            return []  # not served here
        async with asyncio.TaskGroup() as group:
            gone = [
                group.create_task(
                    self.client.delete(
                        kind.type, o.name, namespace, uid=o.uid, propagation="Background", missing_ok=True
                    )
                )
                for o in found
                if not o.is_deleting
            ]
        return [left for task in gone if (left := task.result()) is not None] + [
            o for o in found if o.is_deleting
        ]

    async def _report(self, namespace: Namespace, left: dict[str, Sequence[Resource]]) -> None:
        made = conditions(namespace, left, clock.stamp())
        if made != namespace.status.conditions:
            patch = {"status": {"conditions": [codec.builtins(c) for c in made]}}
            await self.client.patch(
                Namespace, namespace.name, merge=patch, subresource="status", missing_ok=True
            )

    async def _finalize(self, name: str) -> None:
        live = await self.client.find(Namespace, name)
        if live is None:
            return
        finalizers = tuple(f for f in live.spec.finalizers if f != FINALIZER)
        freed = structs.replace(live, spec=structs.replace(live.spec, finalizers=finalizers))
        await self.client.update(freed, subresource="finalize")
