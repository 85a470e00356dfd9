"""The disk service: EC2's API for volumes, on sparse files and loop devices of this machine.

`run(settings, host, store)` serves until it is cancelled. The service is independent of Kubernetes; the
driver is a client like the `aws` command.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial

from volplane import web
from volplane.cloud.app import Ec2Endpoint
from volplane.cloud.disk_report import list_disk_states
from volplane.cloud.disks import DiskFiles
from volplane.cloud.errors import RecordsLostError
from volplane.cloud.faults import FaultScript
from volplane.cloud.latency import LatencySimulator
from volplane.cloud.model import CloudInstance
from volplane.cloud.records import EVENT_WINDOW, CloudRecords
from volplane.cloud.recover import recover
from volplane.cloud.service import DiskService
from volplane.cloud.settings import CloudOptions
from volplane.cloud.throttle import RequestThrottle
from volplane.host import Host
from volplane.loops.wait_reports import Question, WaitRegistry
from volplane.store import Store
from volplane.web.sigv4 import AwsKeys

__all__ = [
    "EVENT_WINDOW",
    "CloudInstance",
    "CloudOptions",
    "DiskService",
    "open_service",
    "run",
    "serve_endpoint",
]


@asynccontextmanager
async def open_service(settings: CloudOptions, host: Host, store: Store) -> AsyncIterator[DiskService]:
    """The service without its endpoint. Recovers on entry, releases its loop devices on exit."""
    records = CloudRecords(store)
    await records.load()
    disks = DiskFiles(host, os.path.join(settings.data_dir, "disks"))
    await disks.prepare()
    if records.is_new and (left := (await disks.survey()).files):
        raise RecordsLostError(os.path.join(settings.data_dir, "disks"), len(left))
    service = DiskService(
        records,
        disks,
        zones=settings.zones,
        thin=settings.thin,
        latency=LatencySimulator(settings.latency),
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
async def serve_endpoint(
    settings: CloudOptions, host: Host, store: Store, wait_registry: WaitRegistry | None = None
) -> AsyncIterator[str]:
    """Serve the endpoint inside the context; yields its address. `wait_registry`: reports the disks."""
    async with open_service(settings, host, store) as service:
        faults = (
            FaultScript.read(await host.call(_read, settings.faults)) if settings.faults else FaultScript()
        )
        throttle = RequestThrottle(settings.request_rate, settings.request_burst)
        app = Ec2Endpoint(
            service, AwsKeys(settings.access_key, settings.secret_key), throttle=throttle, faults=faults
        )
        server = await web.serve(app.handle, host=settings.host, port=settings.port)
        service.endpoint = f"{settings.host}:{server.port}"
        report = partial(list_disk_states, service.records)
        try:
            with wait_registry.reporting(report, Question.DISKS) if wait_registry else nullcontext():
                yield f"http://{service.endpoint}"
        finally:
            await server.close(1.0)
            await app.close()


async def run(
    settings: CloudOptions,
    host: Host,
    store: Store,
    *,
    ready: Callable[[str], None] = lambda _: None,
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Run until cancelled. `ready` is called with the address when the endpoint accepts requests."""
    async with serve_endpoint(settings, host, store, wait_registry) as address:
        ready(address)
        await asyncio.get_running_loop().create_future()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
