"""`volplane apiserver`: the API server, with its own store or an etcd cluster."""

from __future__ import annotations

import asyncio
import os

import click

from volplane import apiserver
from volplane.apiserver import ApiServerOptions
from volplane.cli.error import CommandError
from volplane.cli.options import options
from volplane.cli.serve import serve
from volplane.store import Store, StoreFailed
from volplane.store.sqlite import SqliteStore

ROOT = "/registry"  # prefix of the server's keys; --etcd-prefix replaces it in etcd


@click.command()
@options(ApiServerOptions)
def command(settings: ApiServerOptions) -> None:
    """Serve the Kubernetes API over HTTPS until stopped. The state is in the data directory, or in etcd."""
    serve(lambda stop: _serve(settings, stop))


async def _serve(settings: ApiServerOptions, stop: asyncio.Event) -> None:
    try:
        store = await _open(settings)
    except StoreFailed as error:
        raise CommandError(str(error)) from error
    try:
        server = await apiserver.run(settings, store)
        try:
            click.echo(f"serving on {server.url}, kubeconfig {server.kubeconfig}")
            await stop.wait()
        finally:
            await server.close()
    finally:
        await store.close()


async def _open(settings: ApiServerOptions) -> Store:
    if not settings.etcd_servers:
        path = os.path.join(settings.data_dir, "state.db")
        return await SqliteStore.open(path, compressed_prefixes=apiserver.COMPRESSED_PREFIXES)
    # Imported when needed: gRPC takes memory and time that a server with its own store does not need.
    from volplane.store.etcd import EtcdStore, EtcdTls

    tls = EtcdTls(settings.etcd_cafile, settings.etcd_certfile, settings.etcd_keyfile)
    return await EtcdStore.open(settings.etcd_servers, prefix=settings.etcd_prefix, root=ROOT, tls=tls)
