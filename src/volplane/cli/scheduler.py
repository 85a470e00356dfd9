"""`volplane scheduler`: the scheduler against any API server."""

from __future__ import annotations

import asyncio

import click

from volplane import scheduler
from volplane.cli.running import connect, serve, until


@click.command()
@click.option("--kubeconfig", default="", help="where the API server is, and who we are")
@click.option("--scheduler-name", default="default-scheduler", show_default=True, help="whose pods we place")
def command(kubeconfig: str, scheduler_name: str) -> None:
    """Give every pod a node, until stopped."""
    serve(lambda stop: _serve(kubeconfig, scheduler_name, stop))


async def _serve(kubeconfig: str, scheduler_name: str, stop: asyncio.Event) -> None:
    client = connect(kubeconfig, "kube-scheduler")
    try:
        await until(stop, scheduler.run(client, scheduler_name=scheduler_name))
    finally:
        await client.close()
        await client.transport.close()
