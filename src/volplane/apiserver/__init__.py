"""The API server: Kubernetes REST over a Store.

Requests come in through `app` (HTTP) or `local` (in process), become one `Call`, and end in one of `verbs`;
what a kind adds to the generic verbs stands in its `Strategy`. The store's bytes go to readers and watchers
as they are: only writes decode a whole object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from volplane.apiserver.settings import COMPRESSED_PREFIXES, ApiServerOptions

if TYPE_CHECKING:
    from volplane.apiserver.server import RunningApiServer
    from volplane.store import Store

__all__ = ["COMPRESSED_PREFIXES", "ApiServerOptions", "run"]


async def run(settings: ApiServerOptions, store: Store) -> RunningApiServer:
    """Start serving; the caller closes the server, and owns the store."""
    # Imported here: the server knows all rooms of this package, and they must not load each other through it.
    from volplane.apiserver import server

    return await server.run(settings, store)
