"""A pod's status on its way to the API server: one patch at a time, always of the newest state.

Changes that come while a patch is under way go into the next one together; those that nobody waits for stay
back for a moment, because a pod that starts has more to say soon, and needs the store meanwhile. A pod that
is gone, or whose name belongs to another by now, has nobody to be told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from volplane.api.codec import to_dict
from volplane.api.core import Pod, PodCondition, PodStatus
from volplane.api.errors import APIError, Conflict, NotFound
from volplane.base.backoff import Backoff
from volplane.base.retry import retry
from volplane.client.client import Client

log = logging.getLogger(__name__)

RETRY = Backoff(0.1, 10.0)
CALL_TIMEOUT = 10.0
BATCH_DELAY = 0.1  # seconds that a change may wait for company
_CLEARED = ("message", "reason")  # to be removed by name when they are empty again


class PodStatusWriter:
    def __init__(
        self, client: Client, pod: Pod, compute: Callable[[Sequence[PodCondition]], PodStatus]
    ) -> None:
        """`compute` makes the status as of now, given the conditions last written."""
        self._client, self._pod, self._compute = client, pod, compute
        self._conditions: Sequence[PodCondition] = pod.status.conditions
        self._sent: PodStatus | None = None
        self._revision = 0  # of our last write: what is older is no news
        self._write_requested = asyncio.Event()
        self._urgent = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_pod_gone = False

    def request_write(self, *, urgent: bool = True) -> None:
        if not self.is_pod_gone:
            self._write_requested.set()
            self._idle.clear()
            if urgent:
                self._urgent.set()

    def discard(self) -> None:
        """Nobody is there any more to say what the status is."""
        self.is_pod_gone = True
        self._compute = lambda _: PodStatus()

    def observe(self, pod: Pod) -> None:
        """The pod as the API has it. Whoever takes this node for lost says that its pods are not ready."""
        if self._sent is None or pod.revision <= self._revision:
            return
        if _ready(pod.status) != _ready(self._sent):
            self._sent, self._conditions = None, pod.status.conditions
            self.request_write()

    async def flush(self) -> None:
        """Until the newest status has been written, or nobody wants it."""
        self._urgent.set()
        await self._idle.wait()

    async def run(self) -> None:
        while not self.is_pod_gone:
            await self._write_requested.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(BATCH_DELAY):
                    await self._urgent.wait()
            self._write_requested.clear()
            self._urgent.clear()
            await self._write()
            if not self._write_requested.is_set():
                self._idle.set()
        self._idle.set()

    async def _write(self) -> None:
        await retry(
            self._try_write,
            on=(APIError, TimeoutError),
            backoff=RETRY,
            report=lambda error: log.warning("status of pod %s was not written: %s", self._pod.key, error),
        )

    async def _try_write(self) -> None:
        status = self._compute(self._conditions)
        if status == self._sent:
            return
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await self._patch(status)
        except NotFound:
            self.is_pod_gone = True
        except Conflict:
            # Also raised when others write at the same time. Only another uid means that our pod is gone.
            if not await self._is_replaced():
                raise
            self.is_pod_gone = True
        else:
            self._sent, self._conditions = status, status.conditions

    async def _is_replaced(self) -> bool:
        try:
            found = await self._client.find(Pod, self._pod.name, self._pod.namespace)
        except APIError:
            return False
        return found is None or found.uid != self._pod.uid

    async def _patch(self, status: PodStatus) -> None:
        body: dict[str, Any] = to_dict(status)
        for name in _CLEARED:
            body.setdefault(name, None)
        left = await self._client.patch(
            Pod,
            self._pod.name,
            self._pod.namespace,
            strategic={"status": body},
            subresource="status",
            uid=self._pod.uid,
        )
        self._revision = left.revision


def _ready(status: PodStatus) -> str:
    return next((c.status for c in status.conditions if c.type == "Ready"), "")
