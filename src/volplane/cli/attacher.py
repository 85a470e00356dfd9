"""`volplane attacher`: the attacher beside a driver, with external-attacher's flags."""

from __future__ import annotations

import asyncio
import os

import click

from volplane.cli.options import options
from volplane.cli.running import connect, serve, until
from volplane.sidecars import attacher
from volplane.sidecars.attacher import Settings


@click.command()
@options(Settings)
@click.option("--kubeconfig", default="", help="where the API server is, and who we are")
def command(settings: Settings, kubeconfig: str) -> None:
    """Attach and detach volumes until stopped."""
    serve(lambda stop: _serve(settings, kubeconfig, stop))


async def _serve(settings: Settings, kubeconfig: str, stop: asyncio.Event) -> None:
    client = connect(kubeconfig, "csi-attacher")
    identity = os.environ.get("POD_NAME", os.uname().nodename)
    namespace = os.environ.get("POD_NAMESPACE", os.environ.get("NAMESPACE", "default"))
    try:
        await until(stop, attacher.run(client, settings, identity=identity, namespace=namespace))
    finally:
        await client.close()
        await client.transport.close()
