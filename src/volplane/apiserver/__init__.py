"""The API server: Kubernetes REST over a Store.

A request arrives through `app` (HTTP) or `in_process_transport`, becomes an `ApiCall`, and runs one of
`verbs`. A kind customizes the generic verbs through its `Strategy`. Readers and watchers get the stored bytes
unchanged; only writes decode the whole object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from volplane.apiserver.settings import COMPRESSED_PREFIXES, ApiServerOptions

if TYPE_CHECKING:
    from volplane.apiserver.server import RunningApiServer
    from volplane.store import Store

__all__ = ["COMPRESSED_PREFIXES", "ApiServerOptions", "run"]


async def run(options: ApiServerOptions, store: Store) -> RunningApiServer:
    """Start serving. The caller closes the server and owns the store."""
    # Imported here to avoid an import cycle: `server` imports every other module of this package.
    from volplane.apiserver import server

    return await server.run(options, store)
