"""`volplane liveness`: the liveness sidecar beside a driver, with upstream's flags."""

from __future__ import annotations

import click

from volplane.cli.options import options
from volplane.cli.running import serve, until
from volplane.sidecars import liveness
from volplane.sidecars.liveness import Settings


@click.command()
@options(Settings, sidecar=True)
@click.version_option(package_name="volplane", message="%(version)s")
def command(settings: Settings) -> None:
    """Answer health checks for a driver until stopped."""
    serve(lambda stop: until(stop, liveness.run(settings)))
