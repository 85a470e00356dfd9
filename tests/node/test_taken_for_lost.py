"""A node that was taken for lost and lives: it says so, and speaks for its pods again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.nodeworld import NODE, NodeWorld, node_world
from volplane.api.core import Node, Pod

pytestmark = pytest.mark.root


async def state(here: NodeWorld, kind: type[Any], name: str, namespace: str = "") -> str:
    held = await here.client.get(kind, name, namespace)
    return next((c.status for c in held.status.conditions if c.type == "Ready"), "")


async def doubt(here: NodeWorld, kind: type[Any], name: str, namespace: str, status: str) -> None:
    told = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
    await here.client.patch(kind, name, namespace, strategic=told, subresource="status")


async def test_a_node_that_is_marked_unknown_reports_at_once() -> None:
    async with node_world() as here:
        await here.start()

        async def ready() -> bool:
            return await state(here, Node, NODE) == "True"

        await until(ready)
        await doubt(here, Node, NODE, "", "Unknown")
        await until(ready, 5)


async def test_a_pod_that_is_marked_unready_is_ready_again() -> None:
    async with node_world() as here:
        await here.start()
        await here.pod()
        pod = await here.until_ready()
        await doubt(here, Pod, pod.name, pod.namespace, "False")

        async def ready() -> bool:
            return await state(here, Pod, pod.name, pod.namespace) == "True"

        await until(ready, 5)
