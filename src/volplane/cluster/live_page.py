"""The live page of a cluster that `volplane up` runs: its port, and what it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import structs

from volplane.base.trace import Trace
from volplane.client.transport import Transport
from volplane.cluster.data_directory import DataDirectory, free_port, is_free
from volplane.cluster.errors import CannotStart
from volplane.cluster.role_control import RoleCannotChange
from volplane.dashboard.entrance import LivePage
from volplane.dashboard.source import ClusterSource
from volplane.web import PortInUse

CONTAINER_LOGS = "*/logs/*/*/*.log"  # below the directories of nodes
OFF, ON = "off", "on"
PORT_TRIES = 5


@asynccontextmanager
async def serve_live_page(
    layout: DataDirectory,
    transport: Transport,
    port: int,
    *,
    has_roles: bool = False,
    trace: Trace | None = None,
) -> AsyncIterator[LivePage]:
    """Serve the page inside the context. `has_roles`: whether the cluster's roles run in this process;
    `trace`: theirs, if their steps are not recorded on disk.

    Without a port, the last one is used if it is free, so that an open page finds the cluster again. Raises
    CannotStart.
    """
    source = ClusterSource(
        transport=transport,
        name=layout.directory.name.lstrip("."),
        sockets=layout.run,
        spans=layout.spans,
        trace=trace,
        logs=((layout.run, "*.log"), (layout.nodes, CONTAINER_LOGS)),
        has_own_logs=has_roles,
    )
    page = await _listen(source, port, layout.load_saved().ui_port)
    try:
        layout.save(structs.replace(layout.load_saved(), ui_port=page.port))
        yield page
    finally:
        await page.close()


def issue_page_link(page: LivePage | None) -> str:
    """An address that opens the page once. Raises RoleCannotChange."""
    if page is None:
        raise RoleCannotChange("this cluster serves no live page: it was started with --ui=off")
    return page.issue_link()


async def _listen(source: ClusterSource, port: int, last: int) -> LivePage:
    if port:
        try:
            return await LivePage.start(source, port=port)
        except PortInUse as error:
            raise CannotStart(f"{error.strerror}; choose another with --ui-port, or --ui=off") from error
    for _ in range(PORT_TRIES):
        wanted = last if last and is_free(last) else free_port()
        try:
            return await LivePage.start(source, port=wanted)
        except PortInUse:  # taken a moment ago
            last = 0
    return await LivePage.start(source)
