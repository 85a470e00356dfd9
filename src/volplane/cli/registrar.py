"""`volplane registrar`: the registrar sidecar beside a driver, with upstream's flags."""

from __future__ import annotations

import click

from volplane.cli.options import options
from volplane.cli.running import serve, until
from volplane.sidecars import registrar
from volplane.sidecars.registrar import Settings


@click.command()
@options(Settings)
def command(settings: Settings) -> None:
    """Announce a driver to its kubelet until stopped."""
    serve(lambda stop: until(stop, registrar.run(settings)))
