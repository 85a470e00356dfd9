"""Send one call of a life, with its fault: the answer as the model reads it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from google.protobuf.message import Message
from msgspec import Struct

from volplane.base.backoff import Backoff, Failures
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.driver_process import DriverProcess
from volplane.testing.soak.model import Answer
from volplane.testing.soak.steps import Fault, Step
from volplane.testing.socket_env import DriverSocket

# Codes of the connection and of the caller, not of the driver: the outcome is unknown.
DISTURBED = (Code.UNAVAILABLE, Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.ABORTED)
BUSY_TIMEOUT = 30.0  # seconds for which ABORTED is repeated
DISCONNECTING = (Fault.CUT, Fault.KILL_DURING, Fault.KILL_AFTER)


class Sent(Struct):
    """A call that has ended, one way or the other."""

    reply: Any = None
    error: CallError | None = None  # CANCELLED if the connection was closed


async def send(
    remote: DriverSocket,
    step: Step,
    request: Message,
    *,
    timeout: float,
    disturbed: bool,
    busy: frozenset[Code] = frozenset({Code.ABORTED}),
) -> tuple[Answer, Any]:
    """The answer and the driver's reply.

    `disturbed`: a fault of a concurrent call may hit this one, too. Codes in `busy` are repeated.
    """
    instance, delay = remote.instance, step.delay / 1000
    match step.fault:
        case Fault.LOST_REPLY:
            await _try(remote, step.call, request, timeout)
            return Answer(None), None
        case Fault.DEADLINE:
            sent = await _try(remote, step.call, request, delay)
        case Fault.CUT | Fault.KILL_DURING:
            sent = await _interrupt(remote, step, request, timeout)
        case Fault.KILL_AFTER:
            sent = await _try_until_settled(remote, step.call, request, timeout, busy)
            await instance.restart()
        case _:
            sent = await _try_until_settled(
                remote, step.call, request, timeout, frozenset() if disturbed else busy
            )
    unknown = disturbed or step.fault not in (Fault.NONE, Fault.KILL_AFTER)
    answer = read_answer(step.call, sent, unknown=unknown)
    return answer, sent.reply if answer.code is Code.OK else None


def read_answer(method: str, sent: Sent, *, unknown: bool) -> Answer:
    """The answer of a call; `unknown`: whether a fault may have ended it before the driver has."""
    if sent.error is not None:
        is_disturbed = unknown and sent.error.code in DISTURBED
        return Answer(None if is_disturbed else sent.error.code, sent.error.message)
    if unknown and _is_copying(sent.reply):  # the caller did not wait for the copy
        return Answer(None, "not ready to use")
    return to_answer(method, sent.reply)


async def _interrupt(remote: DriverSocket, step: Step, request: Message, timeout: float) -> Sent:
    """Close the connection, or kill the driver, while the call is in progress."""
    instance = remote.instance
    call = asyncio.ensure_future(_try(remote, step.call, request, timeout))
    try:
        await asyncio.wait({call}, timeout=step.delay / 1000)
        if step.fault is Fault.KILL_DURING:
            await instance.kill()
            sent = await call
            await instance.start()
            return sent
        if not call.done():
            await instance.channel.close()  # the next call connects again
        return await call
    finally:
        call.cancel()


async def _try(remote: DriverSocket, method: str, request: Message, timeout: float) -> Sent:
    call = asyncio.ensure_future(remote.call_once(method, request, timeout=timeout))
    try:
        await asyncio.wait({call})
    except asyncio.CancelledError:
        call.cancel()
        raise
    if call.cancelled():  # gRPC cancels the calls of a connection that is closed
        return Sent(error=CallError(Code.CANCELLED, "the connection was closed"))
    error = call.exception()
    if isinstance(error, CallError):
        return Sent(error=error)
    if error is not None:
        raise error
    return Sent(call.result())


async def _try_until_settled(
    remote: DriverSocket, method: str, request: Message, timeout: float, busy: frozenset[Code]
) -> Sent:
    """Repeat the call while the driver is busy with the volume or copies it, as every caller does."""
    end, pauses = time.monotonic() + BUSY_TIMEOUT, Failures(Backoff(0.005, 0.5))
    while True:
        sent = await _try(remote, method, request, timeout)
        pending = sent.error.code in busy if sent.error is not None else busy and _is_copying(sent.reply)
        if not pending or time.monotonic() > end:
            return sent
        await asyncio.sleep(pauses.next_delay())


def _is_copying(reply: Any) -> bool:
    return isinstance(reply, v1.CreateSnapshotResponse) and not reply.snapshot.ready_to_use


def hits(fault_step: Step, faulty: DriverProcess, instance: DriverProcess) -> bool:
    """Whether the fault of a call disturbs the concurrent calls of an instance."""
    return fault_step.fault in DISCONNECTING and faulty is instance


def to_answer(method: str, reply: Any) -> Answer:
    match method:
        case "CreateVolume":
            return Answer(Code.OK, id=reply.volume.volume_id, capacity=reply.volume.capacity_bytes)
        case "CreateSnapshot":
            made: v1.Snapshot = reply.snapshot
            return Answer(
                Code.OK, id=made.snapshot_id, source=made.source_volume_id, capacity=made.size_bytes
            )
        case "ControllerPublishVolume":
            return Answer(Code.OK, context=dict(reply.publish_context))
        case "ControllerExpandVolume":
            return Answer(Code.OK, capacity=reply.capacity_bytes)
        case "ControllerGetVolume":
            return Answer(Code.OK, id=reply.volume.volume_id, capacity=reply.volume.capacity_bytes)
        case "ListVolumes" if not reply.next_token:
            return Answer(
                Code.OK, listed={e.volume.volume_id: e.volume.capacity_bytes for e in reply.entries}
            )
        case "ListSnapshots" if not reply.next_token:
            return Answer(Code.OK, listed={e.snapshot.snapshot_id: 0 for e in reply.entries})
        case _:
            return Answer(Code.OK)
