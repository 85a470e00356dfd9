"""List the volumes and snapshots of a cluster's driver, through the socket of its sidecars."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from google.protobuf.message import Message

from volplane.base.backoff import constant
from volplane.base.retry import retry
from volplane.csi import v1
from volplane.csi.call_interceptor import CsiCall
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import CallError, Code
from volplane.testing.capabilities import DriverCapabilities

WHO = "volplane-test"
PAUSE = 0.05  # seconds between two tries, while the driver restarts


VolumesAndSnapshots = tuple[frozenset[str], frozenset[str]]


def controller_sockets(calls: Iterable[CsiCall], directory: str) -> set[str]:
    """The sockets of the driver's controllers below the directory."""
    asked = {call.address for call in calls if call.method == "ControllerGetCapabilities"}
    return {socket for socket in asked if socket.startswith(f"{directory}/")}


async def list_volumes_and_snapshots(
    promises: DriverCapabilities, sockets: Iterable[str]
) -> VolumesAndSnapshots:
    """Ids of volumes and snapshots, if the driver can list them."""
    volumes: set[str] = set()
    snapshots: set[str] = set()
    for socket in sorted(sockets):
        async with CsiChannel(socket, component=WHO) as channel:
            if promises.has("list"):
                async for reply in _pages(channel, "ListVolumes", v1.ListVolumesRequest()):
                    volumes |= {entry.volume.volume_id for entry in reply.entries}
            if promises.has("list-snapshots"):
                async for reply in _pages(channel, "ListSnapshots", v1.ListSnapshotsRequest()):
                    snapshots |= {entry.snapshot.snapshot_id for entry in reply.entries}
    return frozenset(volumes), frozenset(snapshots)


async def _pages(channel: CsiChannel, method: str, request: Any) -> AsyncIterator[Any]:
    while True:
        reply = await _call_any(channel, method, request)
        yield reply
        if not reply.next_token:
            return
        request.starting_token = reply.next_token


async def _call_any(channel: CsiChannel, method: str, request: Message) -> Any:
    """Call until the driver, which may have been killed, responds."""

    def report(error: Exception) -> None:
        if isinstance(error, CallError) and error.code is not Code.UNAVAILABLE:
            raise error

    return await retry(
        lambda: channel.call(method, request), on=CallError, backoff=constant(PAUSE), report=report
    )
