"""Adopt and release objects: set the controller in their owner references, or remove it."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from volplane.api.errors import Conflict
from volplane.api.meta import Resource
from volplane.client.client import Client
from volplane.rules.adoption import AdoptionStep, AdoptObject
from volplane.rules.workloads import owner_reference


async def carry_out(client: Client, controller: Resource, step: AdoptionStep, *, finalizer: str = "") -> None:
    """`finalizer`: one that the controller's objects have."""
    if isinstance(step, AdoptObject):
        await _adopt(client, controller, step.orphan, finalizer)
    else:
        await _release(client, controller, step.object, finalizer)


async def _adopt(client: Client, controller: Resource, orphan: Resource, finalizer: str) -> None:
    """The server refuses a second controller, so two that adopt the same object cannot both succeed."""
    live = await client.find(type(controller), controller.name, controller.namespace)
    if live is None or live.uid != controller.uid or live.is_deleting:
        raise Conflict(f"{controller.name} is being deleted and adopts nothing")
    metadata: dict[str, Any] = {"ownerReferences": [to_builtins(owner_reference(controller))]}
    if finalizer:
        metadata["finalizers"] = [finalizer]
    await _patch(client, orphan, metadata)


async def _release(client: Client, controller: Resource, obj: Resource, finalizer: str) -> None:
    metadata: dict[str, Any] = {"ownerReferences": [{"$patch": "delete", "uid": controller.uid}]}
    if finalizer:
        metadata["$deleteFromPrimitiveList/finalizers"] = [finalizer]
    await _patch(client, obj, metadata)


async def _patch(client: Client, obj: Resource, metadata: dict[str, Any]) -> None:
    patch = {"metadata": metadata}
    await client.patch(type(obj), obj.name, obj.namespace, strategic=patch, uid=obj.uid, missing_ok=True)
