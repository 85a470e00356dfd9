"""`volplane registrar`: the registrar sidecar beside a driver, with upstream's flags."""

from __future__ import annotations

import click

from volplane.cli.options import options
from volplane.cli.running import serve, until
from volplane.sidecars import registrar
from volplane.sidecars.registrar import Settings

PROBE = "kubelet-registration-probe"  # an old liveness check, which upstream has always pass now


@click.command()
@options(Settings, sidecar=True)
@click.option("--mode", default="registration", hidden=True)
@click.option("--connection-timeout", hidden=True, expose_value=False)  # upstream has not heeded it for long
@click.version_option(package_name="volplane", message="%(version)s")
def command(settings: Settings, mode: str) -> None:
    """Announce a driver to its kubelet until stopped."""
    if mode == PROBE:
        return
    serve(lambda stop: until(stop, registrar.run(settings)))
