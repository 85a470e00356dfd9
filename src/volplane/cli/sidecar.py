"""The verbs of sidecars that use an API server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import click
from msgspec import Struct

from volplane.base.tasks import run_until
from volplane.cli.error import CommandError
from volplane.cli.options import options
from volplane.cli.serve import connect, serve
from volplane.csi.call_recorder import start_recording
from volplane.loops.controller import Unsupported
from volplane.loops.wait_reports import WaitRegistry


def verb(
    component: str,
    settings: type[Struct],
    run: Callable[..., Awaitable[None]],
    about: str,
    *,
    calls_driver: bool = True,
) -> click.Command:
    """A command with the sidecar's flags and --kubeconfig."""

    async def work(
        chosen: Any, kubeconfig: str, master: str, registry: WaitRegistry, stop: asyncio.Event
    ) -> None:
        client = connect(kubeconfig, component, server=master)
        identity = os.environ.get("POD_NAME", os.uname().nodename)
        namespace = os.environ.get("POD_NAMESPACE", os.environ.get("NAMESPACE", "default"))
        try:
            own = {"identity": identity, "namespace": namespace, "wait_registry": registry}
            calls = {"interceptor": start_recording()} if calls_driver else {}
            await run_until(stop, run(client, chosen, **own, **calls))
        except Unsupported as error:
            raise CommandError(str(error)) from error
        finally:
            await client.close()
            await client.transport.close()

    @options(settings, sidecar=True)
    @click.option("--kubeconfig", default="", metavar="FILE", help="API server and credentials")
    @click.option("--master", default="", metavar="URL", help="API server; overrides the kubeconfig")
    @click.version_option(package_name="volplane", message="%(version)s")
    def command(settings: Any, kubeconfig: str, master: str) -> None:
        registry = WaitRegistry()
        serve(lambda stop: work(settings, kubeconfig, master, registry, stop), wait_registry=registry)

    return click.command(help=about)(command)
