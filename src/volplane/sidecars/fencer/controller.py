"""Watches nodes that do not answer, and asks their cloud about them.

Any number of these may run at the same time: what they write is the same, and is refused if the node has
changed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import assert_never

from volplane.api import codec
from volplane.api.core import Node, Taint
from volplane.api.storage import CSINode
from volplane.client.client import Client
from volplane.loops.controller import Controller
from volplane.loops.wait_reports import WaitRegistry
from volplane.rules.steps import Wait
from volplane.sidecars.fencer.plan import Fence, Release, plan, wants_proof

log = logging.getLogger(__name__)

ANSWER = 10.0  # seconds that the cloud gets
Proof = Callable[[str], Awaitable[bool]]  # by instance: it is off


class Fencer(Controller[str]):
    name = component = "node-fencer"
    workers = 4

    def __init__(self, client: Client, *, driver: str, is_off: Proof) -> None:
        super().__init__(client)
        self.driver, self.is_off = driver, is_off

    def setup(self) -> None:
        self.nodes = self.watch(Node, lambda old, new: [new.name] if new and _matters(old, new) else [])
        self.csi_nodes = self.watch(CSINode, lambda old, new: [new.name] if new else [])

    async def reconcile(self, key: str) -> None:
        node = self.nodes.get(key)
        if node is None:
            return
        instance = self._instance(key)
        off = await self._ask(instance) if instance and wants_proof(node) else False
        for step in plan(node, instance, off):
            match step:
                case Fence(taints):
                    await self._write(node, taints)
                    message = f"Instance {instance} is off: its pods and volumes are released"
                    log.warning("node %s: %s", key, message)
                    self.events.event(node, "Normal", "NodeFenced", message)
                case Release(taints):
                    await self._write(node, taints)
                    self.events.event(node, "Normal", "NodeUnfenced", "The node answers again")
                case Wait(seconds, why):
                    self.queue.later(key, seconds, why)
                case _:
                    assert_never(step)

    def _instance(self, node: str) -> str:
        known = self.csi_nodes.get(node)
        drivers = known.spec.drivers if known is not None else ()
        return next((d.node_id for d in drivers if d.name == self.driver), "")

    async def _ask(self, instance: str) -> bool:
        async with asyncio.timeout(ANSWER):
            return await self.is_off(instance)

    async def _write(self, node: Node, taints: tuple[Taint, ...]) -> None:
        patch = {"spec": {"taints": [codec.builtins(taint) for taint in taints] or None}}
        revision = node.metadata.resource_version
        await self.client.patch(Node, node.name, merge=patch, revision=revision, missing_ok=True)


def _matters(old: Node | None, new: Node) -> bool:
    """Not a heartbeat."""
    return old is None or old.spec.taints != new.spec.taints or _answers(old) != _answers(new)


def _answers(node: Node) -> list[str]:
    return [c.status for c in node.status.conditions if c.type == "Ready"]


async def run(
    client: Client, *, driver: str, is_off: Proof, wait_registry: WaitRegistry | None = None
) -> None:
    """Until cancelled."""
    await (wait_registry or WaitRegistry()).run(Fencer(client, driver=driver, is_off=is_off))
