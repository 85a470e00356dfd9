"""`volplane fencer`: the sidecar that taints nodes whose instances are stopped."""

from __future__ import annotations

import asyncio

import click

from volplane.base.tasks import run_until
from volplane.cli.aws_account import aws_account
from volplane.cli.serve import connect, serve
from volplane.drivers import ebs
from volplane.host import Host
from volplane.loops.wait_reports import WaitRegistry
from volplane.sidecars import fencer


@click.command()
@click.option("--kubeconfig", default="", metavar="FILE", help="API server and credentials")
def command(kubeconfig: str) -> None:
    """Taint nodes whose instances are stopped, so that their pods and volumes are released.

    The disk service and the keys come from AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    """
    registry = WaitRegistry()
    serve(lambda stop: _work(kubeconfig, registry, stop), wait_registry=registry)


async def _work(kubeconfig: str, registry: WaitRegistry, stop: asyncio.Event) -> None:
    host = Host()
    client = connect(kubeconfig, "node-fencer")
    ec2 = await ebs.connect_ec2(aws_account(), host)
    try:
        work = fencer.run(client, driver=ebs.NAME, is_off=ec2.is_off, wait_registry=registry)
        await run_until(stop, work)
    finally:
        await ec2.close()
        await client.close()
        await client.transport.close()
        await host.close()
