"""Contract attach-and-mount E: how long a pod waits for its volumes, set by flag, on a real server."""

from __future__ import annotations

import time
from pathlib import Path

from tests.contract.provisioning.claims_env import PATIENCE
from tests.controllers.objects import account, claim, node, pod, storage_class, volume
from tests.loops.inprocess import until
from tests.support import role_processes
from tests.support.timing import GRAIN
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import Event, PersistentVolumeClaim, Pod

BINDER = ("controller-manager", "--controllers", "persistentvolume-binder-controller")
TIMED_OUT = 'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded'


async def test_a_provisioner_that_never_answers_times_out_and_the_node_stays_chosen(tmp_path: Path) -> None:
    async with role_processes.server(tmp_path) as server:
        client = server.client

        async def chosen() -> str:
            mine = await client.get(PersistentVolumeClaim, "data", "default")
            return mine.metadata.annotations.get(SELECTED_NODE_ANNOTATION, "")

        async def reported() -> bool:
            events = await client.list(Event, "default")
            return any((e.reason, e.message) == ("FailedScheduling", TIMED_OUT) for e in events)

        async def placed() -> str:
            return (await client.get(Pod, "p", "default")).spec.node_name

        await client.create(account())
        for name in ("a", "b", "c"):
            await client.create(node(name))
        await client.create(storage_class("late", "WaitForFirstConsumer"))
        await client.create(claim("data", cls="late"))
        async with server.role("scheduler", "--bind-timeout-seconds=1"), server.role(*BINDER):
            begun = time.monotonic()
            await client.create(pod("p", "data"))
            where = await until(chosen, PATIENCE)
            await until(reported, PATIENCE)
            assert time.monotonic() - begun > 1.0 - GRAIN
            assert not await placed()
            assert await chosen() == where
            mine = await client.get(PersistentVolumeClaim, "data", "default")
            reference = {"namespace": "default", "name": "data", "uid": mine.uid}
            await client.create(volume("made", cls="late", claimRef=reference))
            assert await until(placed, PATIENCE) == where
