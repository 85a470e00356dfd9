"""`volplane scheduler`: the scheduler, with any API server."""

from __future__ import annotations

import asyncio
from functools import partial

import click

from volplane import scheduler
from volplane.base.tasks import run_until
from volplane.cli.options import options
from volplane.cli.serve import connect, serve
from volplane.loops.leader_elect import ComponentLeaderElection
from volplane.loops.wait_reports import WaitRegistry


@click.command()
@options(ComponentLeaderElection, argument="election")
@click.option("--kubeconfig", default="", metavar="FILE", help="API server and credentials")
@click.option(
    "--scheduler-name",
    default="default-scheduler",
    metavar="default-scheduler",
    help="schedulerName of the pods to schedule",
)
@click.option(
    "--bind-timeout-seconds",
    default=600,
    metavar="600",
    type=click.IntRange(min=0),
    help="time a pod waits for its volumes to bind before it is scheduled again",
)
def command(
    election: ComponentLeaderElection, kubeconfig: str, scheduler_name: str, bind_timeout_seconds: int
) -> None:
    """Assign pods to nodes until stopped."""
    registry = WaitRegistry()
    work = partial(_serve, election, kubeconfig, scheduler_name, bind_timeout_seconds, registry)
    serve(work, wait_registry=registry)


async def _serve(
    election: ComponentLeaderElection,
    kubeconfig: str,
    scheduler_name: str,
    patience: float,
    registry: WaitRegistry,
    stop: asyncio.Event,
) -> None:
    client = connect(kubeconfig, scheduler.COMPONENT)
    try:
        work = scheduler.run(
            client,
            scheduler_name=scheduler_name,
            bind_timeout=patience,
            wait_registry=registry,
            election=election,
        )
        await run_until(stop, work)
    finally:
        await client.close()
        await client.transport.close()
