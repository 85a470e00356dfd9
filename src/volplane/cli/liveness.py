"""`volplane liveness`: the liveness sidecar of a driver, with upstream's flags."""

from __future__ import annotations

import click

from volplane.base.tasks import run_until
from volplane.cli.options import options
from volplane.cli.serve import serve
from volplane.csi.call_recorder import start_recording
from volplane.sidecars import liveness
from volplane.sidecars.liveness import LivenessOptions


@click.command()
@options(LivenessOptions, sidecar=True)
@click.version_option(package_name="volplane", message="%(version)s")
def command(settings: LivenessOptions) -> None:
    """Answer health checks for a driver until stopped."""
    serve(lambda stop: run_until(stop, liveness.run(settings, interceptor=start_recording())))
