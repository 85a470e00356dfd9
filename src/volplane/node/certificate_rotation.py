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
from volplane.node import tls_bootstrap
from volplane.node.options import CLIENT_CERTIFICATE_FILE
from volplane.web import tls

log = logging.getLogger(__name__)

SHARES = (0.7, 0.8)  # of its life, after which a client certificate is replaced: not by all nodes at once
LOOK = 3600.0  # seconds; the clock of a machine that slept goes on
AGAIN = 60.0  # seconds after which a renewal that was refused is tried again

Renew = Callable[[], Awaitable[str]]


async def rotate_client_certificate(
    client: Client, host: Host, show: Callable[[bytes], None], *, name: str, directory: str
) -> None:
    """Until cancelled. `show`: from now on, new connections show this certificate; its key is with it."""

    async def renew() -> str:
        return await tls_bootstrap.renew_client_certificate(client, name=name, directory=directory)

    await _rotate(f"{directory}/{CLIENT_CERTIFICATE_FILE}", host, renew, show, random.uniform(*SHARES))


async def rotate_serving_certificate(pair: str, host: Host, renew: Renew, context: ssl.SSLContext) -> None:
    """The same for the certificate that this node's own API shows."""
    await _rotate(pair, host, renew, lambda text: tls.load_pair(context, text, text), tls_bootstrap.SHARE)


async def _rotate(pair: str, host: Host, renew: Renew, show: Callable[[bytes], None], share: float) -> None:
    while True:
        if (left := await host.call(tls_bootstrap.seconds_until_renewal, pair, share)) > 0:
            await asyncio.sleep(min(left, LOOK))
            continue
        try:
            show(await host.call(Path(await renew()).read_bytes))
            log.info("the certificate in %s is renewed", pair)
        except (tls_bootstrap.BootstrapRefused, APIError, OSError) as error:
            log.error("the certificate in %s is not renewed: %s", pair, error)
            await asyncio.sleep(AGAIN)
