"""Deletes the content of terminating namespaces, then the namespaces themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import structs

from volplane.api import codec, kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import Namespace
from volplane.api.errors import NotFound
from volplane.api.meta import Resource
from volplane.base import clock
from volplane.controllers.namespace.plan import (
    FINALIZER,
    DeleteNamespaceContent,
    FinalizeNamespace,
    NamespaceView,
    SetConditions,
    Step,
    order,
    plan,
)
from volplane.loops.controller import Controller, Outcome, Replan
from volplane.rules.definitions import metadata_type
from volplane.rules.waits import Wait


class Namespaces(Controller[str, NamespaceView, Step]):
    name = "namespace-controller"

    def setup(self) -> None:
        self.namespaces = self.watch(
            Namespace, lambda old, new: [new.name] if new and new.is_deleting else []
        )
        self.definitions = self.watch(CustomResourceDefinition)

    def view(self, key: str) -> NamespaceView | None:
        namespace = self.namespaces.get(key)
        return NamespaceView(namespace, clock.stamp()) if namespace is not None else None

    def plan(self, view: NamespaceView) -> Iterator[Step | Wait]:
        return plan(view)

    async def act(self, key: str, view: NamespaceView, step: Step) -> Outcome[NamespaceView]:
        match step:
            case DeleteNamespaceContent():
                left = await self._delete_content(key)
                return Replan(structs.replace(view, left=left, now=clock.stamp()))
            case SetConditions(conditions):
                patch = {"status": {"conditions": [codec.to_dict(c) for c in conditions]}}
                await self.client.patch(Namespace, key, merge=patch, subresource="status", missing_ok=True)
            case FinalizeNamespace():
                await self._finalize(key)
            case _:
                assert_never(step)
        return None

    async def _delete_content(self, namespace: str) -> dict[str, Sequence[Resource]]:
        """Delete all objects; what is left afterwards, by resource. Nothing else while there are pods."""
        left: dict[str, Sequence[Resource]] = {}
        for kind in order([k for k in kinds.ALL if "delete" in k.verbs and "list" in k.verbs]):
            left[kind.resource] = await self._delete_all(kinds.metadata_type(kind), namespace)
            if kind.kind == "Pod" and left[kind.resource]:
                return left
        for definition in self.definitions.all():
            type = metadata_type(definition)
            if type is not None and kinds.of(type).namespaced:
                left[definition.name] = await self._delete_all(type, namespace)
        return left

    async def _delete_all(self, type: type[Resource], namespace: str) -> Sequence[Resource]:
        try:
            found = await self.client.list(type, namespace)
        except NotFound:
            return []  # not served here
        async with asyncio.TaskGroup() as group:
            gone = [
                group.create_task(
                    self.client.delete(
                        type, o.name, namespace, uid=o.uid, propagation="Background", missing_ok=True
                    )
                )
                for o in found
                if not o.is_deleting
            ]
        return [left for task in gone if (left := task.result()) is not None] + [
            o for o in found if o.is_deleting
        ]

    async def _finalize(self, name: str) -> None:
        live = await self.client.find(Namespace, name)
        if live is None:
            return
        finalizers = tuple(f for f in live.spec.finalizers if f != FINALIZER)
        freed = structs.replace(live, spec=structs.replace(live.spec, finalizers=finalizers))
        await self.client.update(freed, subresource="finalize")
