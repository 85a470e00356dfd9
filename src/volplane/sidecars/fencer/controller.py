"""Asks the cloud about the instances of nodes that are not ready.

Several fencers may run at the same time: they write the same, and a write fails if the node has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import assert_never

from msgspec import structs

from volplane.api import codec
from volplane.api.core import Node, Taint
from volplane.api.storage import CSINode
from volplane.client.client import Client
from volplane.loops.controller import Controller, Replan
from volplane.loops.wait_reports import WaitRegistry
from volplane.rules.waits import Wait
from volplane.sidecars.fencer.plan import (
    AddFenceTaint,
    CheckInstance,
    FencerView,
    RemoveFenceTaint,
    Step,
    plan,
)

log = logging.getLogger(__name__)

CLOUD_TIMEOUT = 10.0  # seconds for a request to the cloud
IsInstanceOff = Callable[[str], Awaitable[bool]]  # whether an instance is off


class Fencer(Controller[str, FencerView, Step]):
    name = component = "node-fencer"
    workers = 4

    def __init__(self, client: Client, *, driver: str, is_off: IsInstanceOff) -> None:
        super().__init__(client)
        self.driver, self.is_off = driver, is_off

    def setup(self) -> None:
        self.nodes = self.watch(
            Node, lambda old, new: [new.name] if new and _is_relevant_change(old, new) else []
        )
        self.csi_nodes = self.watch(CSINode, lambda old, new: [new.name] if new else [])

    def view(self, key: str) -> FencerView | None:
        node = self.nodes.get(key)
        return FencerView(node, self._instance(key)) if node is not None else None

    def plan(self, view: FencerView) -> Iterator[Step | Wait]:
        return plan(view)

    async def act(self, key: str, view: FencerView, step: Step) -> Replan[FencerView] | None:
        node = view.node
        match step:
            case CheckInstance(instance):
                async with asyncio.timeout(CLOUD_TIMEOUT):
                    off = await self.is_off(instance)
                return Replan(structs.replace(view, off=off))
            case AddFenceTaint(taints):
                await self._set_taints(node, taints)
                message = f"Instance {view.instance} is off: its pods and volumes are released"
                log.warning("node %s: %s", key, message)
                self.events.event(node, "Normal", "NodeFenced", message)
            case RemoveFenceTaint(taints):
                await self._set_taints(node, taints)
                self.events.event(node, "Normal", "NodeUnfenced", "The node answers again")
            case _:
                assert_never(step)
        return None

    def _instance(self, node: str) -> str:
        known = self.csi_nodes.get(node)
        drivers = known.spec.drivers if known is not None else ()
        return next((d.node_id for d in drivers if d.name == self.driver), "")

    async def _set_taints(self, node: Node, taints: tuple[Taint, ...]) -> None:
        patch = {"spec": {"taints": [codec.to_dict(taint) for taint in taints] or None}}
        revision = node.metadata.resource_version
        await self.client.patch(Node, node.name, merge=patch, revision=revision, missing_ok=True)


def _is_relevant_change(old: Node | None, new: Node) -> bool:
    """More has changed than the heartbeat."""
    return old is None or old.spec.taints != new.spec.taints or _ready_status(old) != _ready_status(new)


def _ready_status(node: Node) -> list[str]:
    return [c.status for c in node.status.conditions if c.type == "Ready"]


async def run(
    client: Client, *, driver: str, is_off: IsInstanceOff, wait_registry: WaitRegistry | None = None
) -> None:
    """Run until cancelled."""
    await (wait_registry or WaitRegistry()).run(Fencer(client, driver=driver, is_off=is_off))
