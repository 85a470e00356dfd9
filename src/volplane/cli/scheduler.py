"""`volplane scheduler`: the scheduler against any API server."""

from __future__ import annotations

import asyncio

import click

from volplane import scheduler
from volplane.cli.running import connect, serve, until


@click.command()
@click.option("--kubeconfig", default="", help="where the API server is, and who we are")
@click.option("--scheduler-name", default="default-scheduler", show_default=True, help="whose pods we place")
@click.option(
    "--bind-timeout-seconds",
    default=600,
    show_default=True,
    type=click.IntRange(min=0),
    help="how long a pod waits for its volumes before it is tried anew",
)
def command(kubeconfig: str, scheduler_name: str, bind_timeout_seconds: int) -> None:
    """Give every pod a node, until stopped."""
    serve(lambda stop: _serve(kubeconfig, scheduler_name, bind_timeout_seconds, stop))


async def _serve(kubeconfig: str, scheduler_name: str, patience: float, stop: asyncio.Event) -> None:
    client = connect(kubeconfig, "kube-scheduler")
    try:
        work = scheduler.run(client, scheduler_name=scheduler_name, bind_timeout=patience)
        await until(stop, work)
    finally:
        await client.close()
        await client.transport.close()
