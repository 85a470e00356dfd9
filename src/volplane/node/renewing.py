"""The certificates of a node that has joined are replaced while it works, long before they end.

The subtle thing: an open connection was let in under the old certificate and stays; the context that makes
new ones gets the new certificate in place, and nobody has to be told.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from volplane.api.errors import APIError
from volplane.client.client import Client
from volplane.host import Host
from volplane.node import joining
from volplane.node.settings import CLIENT_PAIR
from volplane.web import tls

log = logging.getLogger(__name__)

SHARES = (0.7, 0.8)  # of its life, after which a client certificate is replaced: not by all nodes at once
LOOK = 3600.0  # seconds; the clock of a machine that slept goes on
AGAIN = 60.0  # seconds after which a renewal that was refused is tried again

Renew = Callable[[], Awaitable[str]]


async def keep_client(
    client: Client, host: Host, show: Callable[[bytes], None], *, name: str, directory: str
) -> None:
    """Until cancelled. `show`: from now on, new connections show this certificate; its key is with it."""

    async def renew() -> str:
        return await joining.renew(client, name=name, directory=directory)

    await _keep(f"{directory}/{CLIENT_PAIR}", host, renew, show, random.uniform(*SHARES))


async def keep_serving(pair: str, host: Host, renew: Renew, context: ssl.SSLContext) -> None:
    """The same for the certificate that this node's own API shows."""
    await _keep(pair, host, renew, lambda text: tls.load_pair(context, text, text), joining.SHARE)


async def _keep(pair: str, host: Host, renew: Renew, show: Callable[[bytes], None], share: float) -> None:
    while True:
        if (left := await host.call(joining.renewal, pair, share)) > 0:
            await asyncio.sleep(min(left, LOOK))
            continue
        try:
            show(await host.call(Path(await renew()).read_bytes))
            log.info("the certificate in %s is renewed", pair)
        except (joining.NotLetIn, APIError, OSError) as error:
            log.error("the certificate in %s is not renewed: %s", pair, error)
            await asyncio.sleep(AGAIN)
