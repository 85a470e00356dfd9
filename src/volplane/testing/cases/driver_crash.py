"""Kill the driver in a cluster, at each call of a volume's lifecycle.

*During*: the process is killed at a random moment of the call, and the caller sees a broken connection.
*After*: the process is killed after its answer. Kubernetes restarts the driver; the lifecycle continues with
its data, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from typing import Any

from volplane.base.tasks import cancel_and_wait
from volplane.csi.call_interceptor import CallRule, CsiCall, Send
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseBody, CaseTable, NotSupported, require
from volplane.testing.cases import lifecycle
from volplane.testing.cluster_env import ClusterEnv
from volplane.testing.livelock import SHORT_LIMIT

case = CaseTable(needs_cluster=True)

LONGEST = 0.03  # latest moment of a kill, in seconds after the start of the call


class KillRule(CallRule):
    """Kill the driver that serves the next call: during the call, or (`after`) after its answer."""

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
            await cancel_and_wait(sent)
        raise CallError(Code.UNAVAILABLE, call.note)


async def _run_lifecycle(env: ClusterEnv, method: str) -> None:
    async with lifecycle.expect_nothing_left(env):
        await lifecycle.run_lifecycle(env, method, when=f"after the driver was killed at {method}")


def _driver_killed_at(method: str, *, after: bool) -> CaseBody:
    async def body(env: ClusterEnv) -> None:
        env.livelock.limit = SHORT_LIMIT
        rule = env.tap.add_rule(KillRule(method, env, after=after))
        await lifecycle.skip_if_kernel_cannot_grow(env, _run_lifecycle(env, method))
        if not rule.met and method == "NodeExpandVolume":
            raise NotSupported("after its ControllerExpandVolume there is nothing to do on the node")
        require(rule.met, f"{method} was never called, although the driver has its capability")

    return body


for _method, _needs in lifecycle.CALLS.items():
    case.add(
        f"cluster/driver killed during {_method}",
        _method,
        "A driver that is killed during the call and restarted does it once when the call is repeated.",
        _driver_killed_at(_method, after=False),
        "create",
        *_needs,
    )
    case.add(
        f"cluster/driver killed after {_method}",
        _method,
        "The effect of a call that returned OK survives a kill of the driver.",
        _driver_killed_at(_method, after=True),
        "create",
        *_needs,
    )
