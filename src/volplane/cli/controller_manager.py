"""`volplane controller-manager`: the controllers, with any API server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from msgspec import structs

from volplane.base.tasks import run_until
from volplane.cli.error import CommandError
from volplane.cli.options import options
from volplane.cli.serve import connect, serve
from volplane.controllers import manager
from volplane.controllers.manager import ControllerManagerOptions, UnknownController
from volplane.loops.leader_elect import ComponentLeaderElection
from volplane.loops.wait_reports import WaitRegistry


@click.command()
@options(ControllerManagerOptions, hide=("root_ca",))
@options(ComponentLeaderElection, argument="election")
@click.option("--kubeconfig", default="", metavar="FILE", help="API server and credentials")
@click.option(
    "--root-ca-file", default="", metavar="FILE", help="CA certificate to publish in every namespace"
)
def command(
    settings: ControllerManagerOptions, election: ComponentLeaderElection, kubeconfig: str, root_ca_file: str
) -> None:
    """Run the controllers until stopped."""
    if root_ca_file:
        try:
            settings = structs.replace(settings, root_ca=Path(root_ca_file).read_text())
        except OSError as error:
            raise CommandError(f"--root-ca-file {root_ca_file}: {error.strerror}") from error
    registry = WaitRegistry()
    serve(lambda stop: _serve(settings, election, kubeconfig, registry, stop), wait_registry=registry)


async def _serve(
    settings: ControllerManagerOptions,
    election: ComponentLeaderElection,
    kubeconfig: str,
    registry: WaitRegistry,
    stop: asyncio.Event,
) -> None:
    client = connect(kubeconfig, manager.COMPONENT)
    try:
        await run_until(stop, manager.run(client, settings, wait_registry=registry, election=election))
    except UnknownController as error:
        raise CommandError(f"--controllers: {error}") from error
    finally:
        await client.close()
        await client.transport.close()
