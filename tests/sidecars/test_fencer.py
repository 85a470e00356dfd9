"""node-fencer: which silent nodes are is_fenced, and which come back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from tests.controllers.objects import DRIVER, node
from tests.loops.inprocess import running, until, world
from volplane.api import codec
from volplane.api.core import Node, Taint
from volplane.api.storage import CSINode
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.sidecars.fencer.controller import Fencer
from volplane.sidecars.fencer.plan import (
    CHECK_INTERVAL,
    FENCE_TAINT,
    AddFenceTaint,
    CheckInstance,
    FencerView,
    RemoveFenceTaint,
    plan,
)

OTHER = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")
BY_HAND = Taint(key=FENCE_TAINT.key, value="by-hand", effect="NoExecute")


def node_with_taints(ready: bool, *taints: Taint) -> Node:
    made = node("a", ready=ready)
    return structs.replace(made, spec=structs.replace(made.spec, taints=taints))


RUNNING = Wait(WaitReason.INSTANCE_NOT_STOPPED, WaitData(node="a", names=("i-1",)), CHECK_INTERVAL)
UNKNOWN = Wait(WaitReason.INSTANCE_UNKNOWN, WaitData(node="a"))


@pytest.mark.parametrize(
    ("found", "instance", "off", "steps"),
    [
        pytest.param(node_with_taints(True), "i-1", False, [], id="it answers"),
        pytest.param(
            node_with_taints(False, OTHER),
            "i-1",
            True,
            [AddFenceTaint((OTHER, FENCE_TAINT))],
            id="silent and off",
        ),
        pytest.param(node_with_taints(False), "i-1", False, [RUNNING], id="silent, but on"),
        pytest.param(
            node_with_taints(False), "", False, [UNKNOWN], id="silent, and nobody knows its instance"
        ),
        pytest.param(node_with_taints(False, FENCE_TAINT), "i-1", True, [], id="fenced already"),
        pytest.param(node_with_taints(False, BY_HAND), "i-1", True, [], id="an operator was faster"),
        pytest.param(
            node_with_taints(True, FENCE_TAINT, OTHER),
            "i-1",
            False,
            [RemoveFenceTaint((OTHER,))],
            id="back again",
        ),
        pytest.param(
            node_with_taints(True, BY_HAND), "i-1", False, [], id="an operator's taint is the operator's"
        ),
    ],
)
def test_plan(found: Node, instance: str, off: bool, steps: list[Any]) -> None:
    assert list(plan(FencerView(found, instance, off))) == steps


def test_the_cloud_is_asked_only_about_a_node_that_is_not_ready_and_whose_instance_is_known() -> None:
    assert list(plan(FencerView(node_with_taints(False), "i-1"))) == [CheckInstance("i-1")]
    assert list(plan(FencerView(node_with_taints(True), "i-1"))) == []
    assert not any(isinstance(step, CheckInstance) for step in plan(FencerView(node_with_taints(False), "")))


@pytest.mark.virtual
async def test_a_silent_node_is_fenced_when_its_instance_is_off_and_released_when_it_answers() -> None:
    off: set[str] = set()

    async def is_off(instance: str) -> bool:
        return instance in off

    async def ready(client: Any, word: str) -> None:
        conditions = [{"type": "Ready", "status": word}]
        patch = {"status": {"conditions": conditions}}
        await client.patch(Node, "a", merge=patch, subresource="status")

    async with world() as around:
        client = around.client
        await client.create(node("a"))
        driver = {"name": DRIVER, "nodeID": "i-1", "topologyKeys": []}
        whole = {"metadata": {"name": "a"}, "spec": {"drivers": [driver]}}
        await client.create(codec.convert(CSINode, whole))

        async def is_fenced() -> bool:
            return FENCE_TAINT.key in {t.key for t in (await client.get(Node, "a")).spec.taints}

        fencer = Fencer(around.role("node-fencer"), driver=DRIVER, is_off=is_off)
        async with running(fencer.run()):
            await ready(client, "Unknown")
            with pytest.raises(TimeoutError):
                await until(is_fenced, 600.0)
            off.add("i-1")
            await until(is_fenced, 2 * CHECK_INTERVAL)
            await ready(client, "True")

            async def free() -> bool:
                return not await is_fenced()

            await until(free)
