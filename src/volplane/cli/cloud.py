"""`volplane cloud`: the disk service alone."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click
import msgspec
from msgspec import structs

from volplane import cloud
from volplane.cli.failure import Failure
from volplane.cli.options import options
from volplane.cli.running import need_root, serve, until
from volplane.cloud import Instance, Settings
from volplane.host import Host
from volplane.store.sqlite import SqliteStore


@click.command()
@options(Settings, hide=("instances", "access_key", "secret_key"), given={"access_key": "", "secret_key": ""})
@click.option(
    "--instances-file", default="", metavar="FILE", help="instances that disks can be attached to, as JSON"
)
def command(settings: Settings, instances_file: str) -> None:
    """Serve EC2's volume API until stopped. Keys: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."""
    need_root()
    keys = {"access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY"}
    for field, variable in keys.items():
        if not os.environ.get(variable):
            raise Failure(f"{variable} is not set: requests are checked against it")
        settings = structs.replace(settings, **{field: os.environ[variable]})
    settings = structs.replace(settings, instances=_instances(instances_file))
    serve(lambda stop: _serve(settings, stop))


def _instances(path: str) -> tuple[Instance, ...]:
    if not path:
        return ()
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=tuple[Instance, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise Failure(f"--instances-file {path}: {error}") from error


async def _serve(settings: Settings, stop: asyncio.Event) -> None:
    host = Host()
    path = os.path.join(settings.data_dir, "state.db")
    store = await SqliteStore.open(path, window=cloud.WINDOW)
    try:
        await until(stop, cloud.run(settings, host, store, ready=lambda url: click.echo(f"serving on {url}")))
    finally:
        await store.close()
        await host.close()
