"""What the writer of a pod's status leaves in the API, on the real API server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.controllers.objects import account, pod
from tests.loops.inprocess import running, world
from volplane.api.core import Pod, PodCondition, PodStatus
from volplane.node.pods.status_writer import PodStatusWriter

pytestmark = pytest.mark.virtual


async def test_a_condition_that_becomes_true_loses_its_reason_and_message() -> None:
    async with world() as env:
        await env.client.create(account())
        made = await env.client.create(pod("p", on="n"))
        why = PodCondition("Ready", status="False", reason="ContainersNotReady", message="c is not ready")
        current = [PodStatus(phase="Pending", conditions=(why,))]

        def compute(before: Sequence[PodCondition]) -> PodStatus:
            return current[-1]

        writer = PodStatusWriter(env.client, made, compute)
        async with running(writer.run()):
            writer.request_write()
            await writer.flush()
            assert (await env.client.get(Pod, "p", "default")).status.conditions == (why,)
            ready = PodCondition("Ready", status="True")
            current.append(PodStatus(phase="Running", conditions=(ready,)))
            writer.request_write()
            await writer.flush()
            assert (await env.client.get(Pod, "p", "default")).status.conditions == (ready,)
