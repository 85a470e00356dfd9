"""Contract attach-and-mount A: a node that is not ready and out of service lets go of pods and volumes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.controllers.attachdetach.test_attachdetach_controller import NAME, AttachDetachBench
from tests.controllers.objects import account, node, pod
from tests.loops.inprocess import running, until, world
from volplane.api.core import Node, Pod
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.podgc.controller import PodGarbage

pytestmark = pytest.mark.virtual
OUT = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}


async def test_pod_garbage_deletes_the_terminating_pods_and_the_attachment_goes_despite_volumes_in_use() -> (
    None
):
    async with AsyncExitStack() as stack:
        around = await stack.enter_async_context(world())
        await around.client.create(account())
        for name in ("a", "b"):
            await around.client.create(node(name))
        rooms = (AttachDetach(around.role("ad")).run(), PodGarbage(around.role("gc")).run())
        await stack.enter_async_context(running(*rooms))
        b = AttachDetachBench(around)
        await b.pair()
        await b.client.create(pod("web", "data", on="a"))
        await b.attach("a")
        await b.status("a", volumesInUse=[NAME])
        await b.client.patch(
            Pod, "web", "default", merge={"status": {"phase": "Running"}}, subresource="status"
        )
        await b.unready("a")
        await b.client.delete(Pod, "web", "default")
        await asyncio.sleep(60)
        assert (await b.client.get(Pod, "web", "default")).is_deleting  # nobody on the node ends it
        assert not (await b.attachment("a")).is_deleting
        await b.client.patch(Node, "a", merge={"spec": {"taints": [OUT]}})

        async def gone() -> bool:
            return await b.client.find(Pod, "web", "default") is None

        await until(gone, 2)
        await b.is_leaving("a", 2)
