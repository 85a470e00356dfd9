"""One watch of one range on one member.

Large responses come in fragments. They are joined here, so that all events of a revision are returned
together and a broken stream never leaves half a revision. A watch starts at the revision that is already
known, not at the one after it: compaction removes a delete at the compact revision, so a watch that starts
right after it would miss the delete without an error. If it starts one earlier, etcd reports the compaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, NamedTuple

import grpc
import grpc.aio

from volplane.store.contract import RevisionCompacted
from volplane.store.etcd.keys import Range
from volplane.store.etcd.members import LEADER, READ_PATIENCE, EtcdMember
from volplane.store.etcd.outcome import error_text
from volplane.store.etcd.proto import kv_pb2
from volplane.store.etcd.proto import rpc_pb2 as pb

EVERYBODY = -1  # the watch id in a response to a progress request

# Before these versions, a progress response may overtake events (etcd issues 15220 and 17507).
_ORDERED_SINCE = {(3, 4): 31, (3, 5): 13}


class WatchStreamEnded(Exception):
    """The stream has ended; the events so far are complete and in order."""


class StreamBatch(NamedTuple):
    events: list[kv_pb2.Event]  # after the known revision
    progress: int = 0  # all events up to this revision have been sent; 0: unknown


class EtcdWatchStream:
    """`async with EtcdWatchStream(…) as stream: await stream.next()`."""

    def __init__(self, member: EtcdMember, keys: Range, known: int, *, previous: bool = False) -> None:
        self._member = member
        self._known = known
        self._has_ordered_progress = has_ordered_progress(member.version)
        self._create = pb.WatchCreateRequest(
            key=keys[0],
            range_end=keys[1],
            start_revision=max(known, 1),
            progress_notify=True,
            prev_kv=previous,
            fragment=True,
        )
        self._call: Any = None

    async def __aenter__(self) -> EtcdWatchStream:
        """Raises WatchStreamEnded, RevisionCompacted."""
        self._call = self._member.watch(metadata=LEADER)
        try:
            async with asyncio.timeout(READ_PATIENCE):
                await self._write(pb.WatchRequest(create_request=self._create))
                await self._read()  # the confirmation that it was created
        except TimeoutError:
            self.cancel()
            raise WatchStreamEnded("the watch was not created in time") from None
        except BaseException:
            self.cancel()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        self._call.cancel()

    @property
    def supports_progress_requests(self) -> bool:
        """Whether progress responses are reliable."""
        return self._has_ordered_progress

    async def request_progress(self) -> None:
        """Request progress. The response follows all events up to it. Raises WatchStreamEnded."""
        await self._write(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))

    async def next(self) -> StreamBatch:
        """Raises WatchStreamEnded, RevisionCompacted."""
        events: list[kv_pb2.Event] = []
        while True:
            answer = await self._read()
            events += answer.events
            if not answer.fragment:
                break
        if not events:
            believed = self._has_ordered_progress or answer.watch_id != EVERYBODY
            return StreamBatch([], answer.header.revision if believed else 0)
        if events[0].kv.mod_revision <= self._known:
            events = [event for event in events if event.kv.mod_revision > self._known]
        return StreamBatch(events)

    async def _write(self, request: pb.WatchRequest) -> None:
        await self._translate_errors(self._call.write(request))

    async def _translate_errors(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise WatchStreamEnded(_why(error)) from error
        except asyncio.CancelledError:
            if self._call.cancelled() and not _is_cancelling():  # by `cancel`, not with the task
                raise WatchStreamEnded("given up") from None
            raise

    async def _read(self) -> pb.WatchResponse:
        answer = await self._translate_errors(self._call.read())
        if answer is grpc.aio.EOF:
            raise WatchStreamEnded("ended by the server")
        if answer.compact_revision:
            raise RevisionCompacted(answer.compact_revision)
        if answer.canceled:
            raise WatchStreamEnded(answer.cancel_reason or "cancelled by the server")
        assert isinstance(answer, pb.WatchResponse)
        return answer


def has_ordered_progress(version: str) -> bool:
    """Whether progress responses are in order with events. Unknown versions are not trusted."""
    try:
        major, minor, patch = (int(part) for part in version.split("-")[0].split("."))
    except ValueError:
        return False
    return (major, minor) > (3, 5) or patch >= _ORDERED_SINCE.get((major, minor), 1 << 30)


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _why(error: Exception) -> str:
    return error_text(error) if isinstance(error, grpc.aio.AioRpcError) else str(error)
