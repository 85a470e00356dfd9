"""`volplane provisioner`: the provisioner beside a driver, with external-provisioner's flags."""

from __future__ import annotations

import asyncio
import os

import click

from volplane.cli.options import options
from volplane.cli.running import connect, serve, until
from volplane.sidecars import provisioner
from volplane.sidecars.provisioner import Settings


@click.command()
@options(Settings)
@click.option("--kubeconfig", default="", help="where the API server is, and who we are")
def command(settings: Settings, kubeconfig: str) -> None:
    """Make and delete volumes for claims until stopped."""
    serve(lambda stop: _serve(settings, kubeconfig, stop))


async def _serve(settings: Settings, kubeconfig: str, stop: asyncio.Event) -> None:
    client = connect(kubeconfig, "csi-provisioner")
    identity = os.environ.get("POD_NAME", os.uname().nodename)
    namespace = os.environ.get("POD_NAMESPACE", os.environ.get("NAMESPACE", "default"))
    try:
        await until(stop, provisioner.run(client, settings, identity=identity, namespace=namespace))
    finally:
        await client.close()
        await client.transport.close()
