"""One call to a driver on behalf of a pod, and the judgement of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message

from volplane.api.core import Pod
from volplane.csi.outcome import CallError, Code, classify, is_infeasible
from volplane.volumes.base import Infeasible, NotInUse, Uncertain, VolumeFailure
from volplane.volumes.csi.drivers import Driver


class Call:
    """A call whose refusal is kept for the caller to clean up after; what is uncertain is raised."""

    def __init__(self) -> None:
        self.refused: CallError | None = None

    async def __call__(self, driver: Driver, method: str, message: Message, pod: Pod) -> Any:
        subject = f"pod/{pod.namespace}/{pod.name}"
        async with asyncio.timeout(driver.timeout + 5):
            return await driver.call(method, message, subject)


@contextmanager
def judged() -> Iterator[Call]:
    call = Call()
    try:
        yield call
    except CallError as error:
        if not classify(error).settled:
            raise Uncertain(str(error)) from error
        call.refused = error


def refusal(error: CallError) -> VolumeFailure:
    """Why NodeExpandVolume will not do it."""
    if error.code is Code.FAILED_PRECONDITION:
        return NotInUse(str(error))
    return Infeasible(str(error)) if is_infeasible(error) else VolumeFailure(str(error))
