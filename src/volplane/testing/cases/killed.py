"""The driver is killed in a cluster, at each call that a volume's life makes.

*During*: the process dies at a moment that the seed chooses, and the caller learns only that the connection
broke. *After*: the caller has its answer, and the process that gave it is gone. Kubernetes starts the driver
again; the life goes on to its end, with its data, and leaves nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from volplane.csi.outcome import CallError, Code
from volplane.csi.tap import Call, Rule, Send
from volplane.testing.case import Body, NotPromised, Table, demand
from volplane.testing.cases import disturbed, lives
from volplane.testing.stuck import SHORT
from volplane.testing.whole import Whole

case = Table(whole=True)

LONGEST = 0.03  # seconds into a call

# In a cluster a claim grows whether or not a pod uses it, and a group that is ready is not asked for again.
CALLS = {
    **{method: needs for method, needs in disturbed.CALLS.items() if not method.startswith("Get")},
    "ControllerExpandVolume": ("expand-controller",),
    "NodeExpandVolume": ("expand-controller", "expand-node"),
}


class Killing(Rule):
    """Whoever serves the next call dies: while it works, or (`after`) when it has answered."""

    def __init__(self, method: str, world: Whole, *, after: bool) -> None:
        super().__init__(method, where=world.own())
        self._world, self._after = world, after
        self._moment = world.random.uniform(0.0, LONGEST)

    async def act(self, call: Call, send: Send) -> Any:
        if self._after:
            reply = await send()
            call.note = "the driver was killed after its answer"
            await self._world.kill_driver(call.address)
            return reply
        sent = asyncio.ensure_future(send())
        try:
            await asyncio.wait({sent}, timeout=self._moment)
            call.note = f"the driver was killed {self._moment * 1000:.0f} ms into the call"
            await self._world.kill_driver(call.address)
        finally:
            sent.cancel()
            await asyncio.gather(sent, return_exceptions=True)
        raise CallError(Code.UNAVAILABLE, call.note)


async def life(world: Whole, method: str) -> None:
    """From nothing to nothing; the parts that the method does not need are left out."""
    labels = lives.together(world)
    claim = await world.claim(labels=labels)
    told = await lives.written(world, claim)
    if "Group" in method:
        group, members = await lives.group(world, labels, {claim})
        await lives.same(world, await lives.restored(world, members[claim]), told, "in a claim of its group")
        await lives.group_gone(world, group)
    if "Modify" in method:
        await lives.modified(world, claim)
    if method in disturbed.SNAPSHOTS:
        made = await lives.snapshot(world, claim)
        await lives.same(world, await lives.restored(world, made), told, "in a claim of its snapshot")
        await lives.snapshot_gone(world, made)
    if "Expand" in method:
        await lives.ask_for_more(world, claim)
    await lives.same(world, claim, told, f"after the driver was killed at {method}")
    if "Expand" in method:
        await lives.has_more(world, claim)
    await world.clear()


def _with(method: str, *, after: bool) -> Body:
    async def body(world: Whole) -> None:
        world.stuck.patience = SHORT
        rule = world.tap.add(Killing(method, world, after=after))
        async with lives.accounted(world):
            await life(world, method)
        if not rule.met and method == "NodeExpandVolume":
            raise NotPromised("its ControllerExpandVolume leaves nothing to do to the node")
        demand(rule.met, f"{method} was never called: its capability is named in vain")

    return body


for _method, _needs in CALLS.items():
    case.add(
        f"cluster/driver killed during {_method}",
        _method,
        "A driver that is killed during the call, and started again, does it once when it is asked again.",
        _with(_method, after=False),
        "create",
        *_needs,
    )
    case.add(
        f"cluster/driver killed after {_method}",
        _method,
        "What was answered with OK holds for a driver that was killed since: the volume's life goes on.",
        _with(_method, after=True),
        "create",
        *_needs,
    )
