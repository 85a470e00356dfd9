"""One RPC to a driver for a pod, and the classification of its error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message

from volplane.csi.outcome import CallError, classify, is_infeasible, is_refused_in_use
from volplane.volumes.base import (
    InfeasibleExpansionError,
    InUseExpansionError,
    UncertainProgressError,
    VolumeOperationError,
)
from volplane.volumes.csi.drivers import RegisteredDriver


class NodeRpc:
    """An RPC. A final error is kept in `final_error` so that the caller can clean up; others are raised."""

    def __init__(self) -> None:
        self.final_error: CallError | None = None

    async def __call__(self, driver: RegisteredDriver, method: str, message: Message) -> Any:
        async with asyncio.timeout(driver.timeout + 5):
            return await driver.call(method, message)


@contextmanager
def node_rpc() -> Iterator[NodeRpc]:
    call = NodeRpc()
    try:
        yield call
    except CallError as error:
        if not classify(error).is_final:
            raise UncertainProgressError(str(error)) from error
        call.final_error = error


def expansion_error(error: CallError) -> VolumeOperationError:
    """The exception for a final error of NodeExpandVolume."""
    if is_refused_in_use(error):
        return InUseExpansionError(str(error))
    return InfeasibleExpansionError(str(error)) if is_infeasible(error) else VolumeOperationError(str(error))
