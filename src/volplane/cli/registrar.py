"""`volplane registrar`: the registrar sidecar beside a driver, with upstream's flags."""

from __future__ import annotations

import click

from volplane.cli.options import options
from volplane.cli.serve import run_until, serve
from volplane.csi.call_recorder import start_recording
from volplane.sidecars import registrar
from volplane.sidecars.registrar import RegistrarOptions

PROBE = "kubelet-registration-probe"  # an old liveness check, which upstream has always pass now


@click.command()
@options(RegistrarOptions, sidecar=True)
@click.option("--mode", default="registration", hidden=True)
@click.option("--connection-timeout", hidden=True, expose_value=False)  # upstream has not heeded it for long
@click.version_option(package_name="volplane", message="%(version)s")
def command(settings: RegistrarOptions, mode: str) -> None:
    """Announce a driver to its kubelet until stopped."""
    if mode == PROBE:
        return
    serve(lambda stop: run_until(stop, registrar.run(settings, interceptor=start_recording())))
