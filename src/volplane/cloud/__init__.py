"""The disk service: EC2's API for volumes over sparse files and loop devices of this machine.

`run(settings, host, store)` serves until it is cancelled. Nothing here knows Kubernetes; the driver is a
client like the `aws` command.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from volplane import web
from volplane.cloud.app import App
from volplane.cloud.disks import Disks
from volplane.cloud.errors import LedgerLost
from volplane.cloud.faults import Faults
from volplane.cloud.ledger import WINDOW, Ledger
from volplane.cloud.model import Instance
from volplane.cloud.pace import Pace
from volplane.cloud.recover import recover
from volplane.cloud.service import Service
from volplane.cloud.settings import Settings
from volplane.cloud.throttle import Throttle
from volplane.host import Host
from volplane.store import Store
from volplane.web.sigv4 import Keys

__all__ = ["WINDOW", "Instance", "Service", "Settings", "opened", "run", "serving"]


@asynccontextmanager
async def opened(settings: Settings, host: Host, store: Store) -> AsyncIterator[Service]:
    """The service without its endpoint: recovered on entering, its loop devices released on leaving."""
    ledger = Ledger(store)
    await ledger.load()
    disks = Disks(host, os.path.join(settings.data_dir, "disks"))
    await disks.prepare()
    if ledger.is_new and (left := (await disks.survey()).files):
        raise LedgerLost(os.path.join(settings.data_dir, "disks"), len(left))
    service = Service(
        ledger,
        disks,
        zones=settings.zones,
        thin=settings.thin,
        pace=Pace(settings.latency),
        modification_pause=settings.modification_pause,
    )
    for instance in settings.instances:
        await service.register(instance)
    await recover(service)
    try:
        yield service
    finally:
        await service.release()


@asynccontextmanager
async def serving(settings: Settings, host: Host, store: Store) -> AsyncIterator[str]:
    """The endpoint's address while the context lasts."""
    async with opened(settings, host, store) as service:
        faults = Faults.read(await host.call(_read, settings.faults)) if settings.faults else Faults()
        throttle = Throttle(settings.request_rate, settings.request_burst)
        app = App(service, Keys(settings.access_key, settings.secret_key), throttle=throttle, faults=faults)
        server = await web.serve(app.handle, host=settings.host, port=settings.port)
        try:
            yield f"http://{settings.host}:{server.port}"
        finally:
            await server.close(1.0)
            await app.close()


async def run(
    settings: Settings, host: Host, store: Store, *, ready: Callable[[str], None] = lambda _: None
) -> None:
    """Until cancelled. `ready` hears the address when the endpoint takes requests."""
    async with serving(settings, host, store) as address:
        ready(address)
        await asyncio.get_running_loop().create_future()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
