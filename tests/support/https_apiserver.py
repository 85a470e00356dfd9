"""The real API server on HTTPS, and roles that are its clients like other processes: each with a connection
of its own, and with caches that know only what its own watches have brought.

The subtle thing: all servers of a run share one directory of keys and certificates, because making them takes
longer than everything else at a server's start. The store is new each time.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

from volplane import apiserver
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.client.https import HttpsTransport
from volplane.store.memory import MemoryStore

if TYPE_CHECKING:
    from volplane.apiserver.server import RunningApiServer


class HttpsApiServer:
    """One server, and clients for any number of roles. `client` is the user's."""

    def __init__(self, server: RunningApiServer, store: MemoryStore) -> None:
        self.server, self._store = server, store
        self.kubeconfig = str(server.kubeconfig)
        self._transports: list[HttpsTransport] = []
        self._clients: list[Client] = []
        self.client = self.role("test")

    def transport(self) -> HttpsTransport:
        made = kubeconfig.load(self.kubeconfig, server=self.server.url)
        self._transports.append(made)
        return made

    def role(self, component: str) -> Client:
        made = Client(self.transport(), component=component)
        self._clients.append(made)
        return made

    separate_client = role  # every role has its own caches here

    async def go_down(self) -> None:
        await self.server.close(0)

    async def come_back(self) -> None:
        """Restart it at the same address, with the same store."""
        self.server = await serve(self._store, self.server.port)

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients))
        await asyncio.gather(*(transport.close() for transport in self._transports))


@cache
def key_directory() -> str:
    return tempfile.mkdtemp(prefix="keys-")


async def serve(store: MemoryStore, port: int = 0) -> RunningApiServer:
    return await apiserver.run(apiserver.ApiServerOptions(data_dir=key_directory(), port=port), store)


@asynccontextmanager
async def https_apiserver() -> AsyncIterator[HttpsApiServer]:
    store = MemoryStore()
    around = HttpsApiServer(await serve(store), store)
    try:
        yield around
    finally:
        await around.close()
        await around.server.close(1.0)
        await store.close()
