"""`volplane controller-manager`: the controllers, with any API server."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import click
from msgspec import structs

from volplane.base.tasks import run_until
from volplane.cli.account_clients import AccountClients
from volplane.cli.error import CommandError
from volplane.cli.options import options
from volplane.cli.serve import serve
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
    settings: ControllerManagerOptions,
    election: ComponentLeaderElection,
    kubeconfig: str,
    root_ca_file: str,
) -> None:
    """Run the controllers until stopped."""
    if root_ca_file:
        try:
            settings = structs.replace(settings, root_ca=Path(root_ca_file).read_text())
        except OSError as error:
            raise CommandError(f"--root-ca-file {root_ca_file}: {error.strerror}") from error
    registry = WaitRegistry()
    work = partial(_serve, settings, election, kubeconfig, registry)
    serve(work, wait_registry=registry)


async def _serve(
    settings: ControllerManagerOptions,
    election: ComponentLeaderElection,
    kubeconfig: str,
    registry: WaitRegistry,
    stop: asyncio.Event,
) -> None:
    try:
        async with AccountClients(kubeconfig, manager.COMPONENT) as clients:
            work = manager.run(
                clients.manager,
                settings,
                wait_registry=registry,
                election=election,
                client_of=clients.client_of if settings.use_service_account_credentials else None,
            )
            await run_until(stop, work)
    except UnknownController as error:
        raise CommandError(f"--controllers: {error}") from error
