"""Whether the runtime answers and is ready: a node without it is not Ready, and goes on when it returns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from volplane.node.containers.cri.client import CriClient, CriError
from volplane.node.containers.cri.runtime_info import RuntimeInfo, find_problem

log = logging.getLogger(__name__)

CHECK_INTERVAL = 5.0  # seconds, as upstream's kubelet
RECHECK_INTERVAL = 1.0  # while it is not ready
DOWN = "container runtime is down"


class RuntimeHealth:
    def __init__(self, cri: CriClient, info: RuntimeInfo, on_changed: Callable[[], None]) -> None:
        self._cri, self._info, self._on_changed = cri, info, on_changed
        self.problem = "container runtime status check may not have completed yet"

    async def check(self) -> None:
        """Ask the runtime; `problem` is why the node is not ready, "" if it is."""
        try:
            if self.problem:  # at the start, or another one may have taken its place
                await self._info.read(self._cri)
            problem = find_problem(await self._cri.status())
        except CriError as error:
            problem = f"{DOWN}: {error}"
        if problem != self.problem:
            (log.warning if problem else log.info)("container runtime: %s", problem or "ready")
            self.problem = problem
            self._on_changed()

    async def run(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(RECHECK_INTERVAL if self.problem else CHECK_INTERVAL)
