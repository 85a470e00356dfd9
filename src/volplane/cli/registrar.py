"""`volplane registrar`: the registrar sidecar of a driver, with upstream's flags."""

from __future__ import annotations

import click

from volplane.base.tasks import run_until
from volplane.cli.options import options
from volplane.cli.serve import serve
from volplane.csi.call_recorder import start_recording
from volplane.sidecars import registrar
from volplane.sidecars.registrar import RegistrarOptions

PROBE = "kubelet-registration-probe"  # an old liveness check, which always succeeds in upstream, too


@click.command()
@options(RegistrarOptions, sidecar=True)
@click.option("--mode", default="registration", hidden=True)
@click.option("--connection-timeout", hidden=True, expose_value=False)  # ignored by upstream, too
@click.version_option(package_name="volplane", message="%(version)s")
def command(settings: RegistrarOptions, mode: str) -> None:
    """Register a driver with its kubelet until stopped."""
    if mode == PROBE:
        return
    serve(lambda stop: run_until(stop, registrar.run(settings, interceptor=start_recording())))
