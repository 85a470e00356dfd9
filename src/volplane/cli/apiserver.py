"""`volplane apiserver`: the API server alone, on its own store."""

from __future__ import annotations

import asyncio
import os

import click

from volplane import apiserver
from volplane.apiserver import Settings
from volplane.cli.options import options
from volplane.cli.running import serve
from volplane.store.sqlite import SqliteStore


@click.command()
@options(Settings)
def command(settings: Settings) -> None:
    """Serve the Kubernetes API over HTTPS until stopped; its state lies in the data directory."""
    serve(lambda stop: _serve(settings, stop))


async def _serve(settings: Settings, stop: asyncio.Event) -> None:
    store = await SqliteStore.open(os.path.join(settings.data_dir, "state.db"))
    try:
        server = await apiserver.run(settings, store)
        try:
            click.echo(f"serving on {server.url}, kubeconfig {server.kubeconfig}")
            await stop.wait()
        finally:
            await server.close()
    finally:
        await store.close()
