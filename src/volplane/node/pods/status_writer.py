"""Write a pod's status to the API server: one patch at a time, always with the newest state.

Changes during a patch go into the next one together. Changes that are not urgent wait for a moment, because
a pod that starts soon has more of them, and needs the store meanwhile. If the pod is gone, or its name
belongs to another pod, nothing is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
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
BATCH_DELAY = 0.1  # seconds that a change may wait for others
_CLEARED = ("message", "reason")  # fields that a patch removes explicitly when they are empty


class PodStatusWriter:
    def __init__(
        self, client: Client, pod: Pod, compute: Callable[[Sequence[PodCondition]], PodStatus]
    ) -> None:
        """`compute` makes the current status, given the conditions last written."""
        self._client, self._pod, self._compute = client, pod, compute
        self._conditions: Sequence[PodCondition] = pod.status.conditions
        self._sent: PodStatus | None = None
        self._revision = 0  # of our last write; older objects are ignored
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
        """Write nothing any more, and release the worker that computes the status."""
        self.is_pod_gone = True
        self._compute = lambda _: PodStatus()

    def observe(self, pod: Pod) -> None:
        """Compare with the API's object: the node lifecycle controller may have marked the pod not ready."""
        if self._sent is None or pod.revision <= self._revision:
            return
        if _ready(pod.status) != _ready(self._sent):
            self._sent, self._conditions = None, pod.status.conditions
            self.request_write()

    async def flush(self) -> None:
        """Wait until the newest status has been written, or the pod is gone."""
        self._urgent.set()
        await self._idle.wait()

    async def run(self) -> None:
        while not self.is_pod_gone:
            await self._write_requested.wait()
            if not self._urgent.is_set():
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
            report=lambda error: log.warning("cannot write the status of pod %s: %s", self._pod.key, error),
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
        _clear_old_reasons(body.get("conditions", ()), self._conditions)
        left = await self._client.patch(
            Pod,
            self._pod.name,
            self._pod.namespace,
            strategic={"status": body},
            subresource="status",
            uid=self._pod.uid,
        )
        self._revision = left.revision


def _clear_old_reasons(conditions: Iterable[dict[str, Any]], before: Iterable[PodCondition]) -> None:
    """Remove what a condition no longer has: a strategic merge patch keeps fields that it does not name."""
    known = {condition.type: condition for condition in before}
    for condition in conditions:
        old = known.get(condition["type"])
        for name in ("reason", "message"):
            if old is not None and getattr(old, name):
                condition.setdefault(name, None)


def _ready(status: PodStatus) -> str:
    return next((c.status for c in status.conditions if c.type == "Ready"), "")
