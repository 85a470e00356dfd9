"""Deletes the content of terminating namespaces, then the namespaces themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import structs

from volplane.api import codec, kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import Namespace
from volplane.api.errors import APIError, NotFound
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

log = logging.getLogger(__name__)


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
                left, errors = await self._delete_content(key)
                if errors:
                    why = "; ".join(sorted({*errors}))
                    log.warning("namespace %s: cannot delete all content: %s", key, why)
                return Replan(structs.replace(view, left=left, errors=errors, now=clock.stamp()))
            case SetConditions(conditions):
                patch = {"status": {"conditions": [codec.to_dict(c) for c in conditions]}}
                await self.client.patch(Namespace, key, merge=patch, subresource="status", missing_ok=True)
            case FinalizeNamespace():
                await self._finalize(key)
            case _:
                assert_never(step)
        return None

    async def _delete_content(self, namespace: str) -> tuple[dict[str, Sequence[Resource]], tuple[str, ...]]:
        """Delete all objects; what is left afterwards, by resource, and an error per resource that failed.

        Nothing else is deleted while there are pods.
        """
        left: dict[str, Sequence[Resource]] = {}
        errors: list[str] = []

        async def empty(resource: str, type: type[Resource]) -> None:
            self.client.require_write()  # no type is tried once the Lease has expired
            left[resource], error = await self._delete_all(type, namespace)
            if error is not None:
                errors.append(str(error))

        async def empty_custom(definitions: Sequence[CustomResourceDefinition]) -> None:
            for definition in definitions:
                type = metadata_type(definition)
                if type is not None and kinds.of(type).namespaced:
                    await empty(definition.name, type)

        for kind in order([k for k in kinds.ALL if "delete" in k.verbs and "list" in k.verbs]):
            await empty(kind.resource, kinds.metadata_type(kind))
            if kind.kind == "Pod" and (left[kind.resource] or errors):
                return left, tuple(errors)
        await empty_custom(self.definitions.all())
        if not errors and not any(left.values()):
            # The cache may be out of date, and objects of a kind that it does not show would stay behind.
            await empty_custom(await self.client.list(CustomResourceDefinition))
        return left, tuple(errors)

    async def _delete_all(
        self, type: type[Resource], namespace: str
    ) -> tuple[Sequence[Resource], APIError | None]:
        """What is left, and the first error."""
        try:
            found = await self.client.list(type, namespace)
        except NotFound:
            return [], None  # not served here
        except APIError as error:
            return [], error
        errors: list[APIError] = []

        async def delete(obj: Resource) -> Resource | None:
            try:
                return await self.client.delete(
                    type, obj.name, namespace, uid=obj.uid, propagation="Background", missing_ok=True
                )
            except APIError as error:
                errors.append(error)
                return obj

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(delete(obj)) for obj in found if not obj.is_deleting]
        left = [obj for task in tasks if (obj := task.result()) is not None]
        return left + [obj for obj in found if obj.is_deleting], errors[0] if errors else None

    async def _finalize(self, name: str) -> None:
        live = await self.client.find(Namespace, name)
        if live is None:
            return
        finalizers = tuple(f for f in live.spec.finalizers if f != FINALIZER)
        freed = structs.replace(live, spec=structs.replace(live.spec, finalizers=finalizers))
        await self.client.update(freed, subresource="finalize")
