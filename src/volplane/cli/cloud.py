"""`volplane cloud`: the disk service."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click
import msgspec
from msgspec import structs

from volplane import cloud
from volplane.base.tasks import run_until
from volplane.cli.error import CommandError
from volplane.cli.options import options
from volplane.cli.serve import require_root, serve
from volplane.cloud import CloudInstance, CloudOptions
from volplane.host import Host
from volplane.loops.wait_reports import WaitRegistry
from volplane.store.sqlite import SqliteStore


@click.command()
@options(
    CloudOptions, hide=("instances", "access_key", "secret_key"), given={"access_key": "", "secret_key": ""}
)
@click.option(
    "--instances-file", default="", metavar="FILE", help="instances that disks can be attached to, as JSON"
)
def command(settings: CloudOptions, instances_file: str) -> None:
    """Serve EC2's volume API until stopped. Keys: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."""
    require_root()
    keys = {"access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY"}
    for field, variable in keys.items():
        if not os.environ.get(variable):
            raise CommandError(f"{variable} is not set; it is needed to verify requests")
        settings = structs.replace(settings, **{field: os.environ[variable]})
    settings = structs.replace(settings, instances=_instances(instances_file))
    registry = WaitRegistry()
    serve(lambda stop: _serve(settings, stop, registry), wait_registry=registry)


def _instances(path: str) -> tuple[CloudInstance, ...]:
    if not path:
        return ()
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=tuple[CloudInstance, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise CommandError(f"--instances-file {path}: {error}") from error


async def _serve(settings: CloudOptions, stop: asyncio.Event, registry: WaitRegistry) -> None:
    host = Host()
    path = os.path.join(settings.data_dir, "state.db")
    store = await SqliteStore.open(path, window=cloud.EVENT_WINDOW)
    try:
        serving = cloud.run(
            settings, host, store, ready=lambda url: click.echo(f"serving on {url}"), wait_registry=registry
        )
        await run_until(stop, serving)
    finally:
        await store.close()
        await host.close()
