"""The driver is killed in a cluster, at each call that a volume's life makes.

*During*: the process dies at a moment that the seed chooses, and the caller learns only that the connection
broke. *After*: the caller has its answer, and the process that gave it is gone. Kubernetes starts the driver
again; the life goes on to its end, with its data, and leaves nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from volplane.csi.call_interceptor import CallRule, CsiCall, Send
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseBody, CaseTable, NotSupported, require
from volplane.testing.cases import lifecycle
from volplane.testing.cluster_env import ClusterEnv
from volplane.testing.livelock import SHORT_LIMIT

case = CaseTable(needs_cluster=True)

LONGEST = 0.03  # seconds into a call


class KillRule(CallRule):
    """Whoever serves the next call dies: while it works, or (`after`) when it has answered."""

    def __init__(self, method: str, env: ClusterEnv, *, after: bool) -> None:
        super().__init__(method, where=env.calls_of_this_case())
        self._env, self._after = env, after
        self._moment = env.random.uniform(0.0, LONGEST)

    async def act(self, call: CsiCall, send: Send) -> Any:
        if self._after:
            reply = await send()
            call.note = "the driver was killed after its answer"
            await self._env.kill_driver(call.address)
            return reply
        sent = asyncio.ensure_future(send())
        try:
            await asyncio.wait({sent}, timeout=self._moment)
            call.note = f"the driver was killed {self._moment * 1000:.0f} ms into the call"
            await self._env.kill_driver(call.address)
        finally:
            sent.cancel()
            await asyncio.gather(sent, return_exceptions=True)
        raise CallError(Code.UNAVAILABLE, call.note)


def _driver_killed_at(method: str, *, after: bool) -> CaseBody:
    async def body(env: ClusterEnv) -> None:
        env.livelock.limit = SHORT_LIMIT
        rule = env.tap.add_rule(KillRule(method, env, after=after))
        async with lifecycle.expect_nothing_left(env):
            await lifecycle.run_lifecycle(env, method, when=f"after the driver was killed at {method}")
        if not rule.met and method == "NodeExpandVolume":
            raise NotSupported("its ControllerExpandVolume leaves nothing to do to the node")
        require(rule.met, f"{method} was never called: its capability is named in vain")

    return body


for _method, _needs in lifecycle.CALLS.items():
    case.add(
        f"cluster/driver killed during {_method}",
        _method,
        "A driver that is killed during the call, and started again, does it once when it is asked again.",
        _driver_killed_at(_method, after=False),
        "create",
        *_needs,
    )
    case.add(
        f"cluster/driver killed after {_method}",
        _method,
        "What was answered with OK holds for a driver that was killed since: the volume's life goes on.",
        _driver_killed_at(_method, after=True),
        "create",
        *_needs,
    )
