"""Certificate rotation: client and serving certificates are renewed before they expire.

Open connections keep the old certificate. The TLS context for new ones gets the new certificate in place.
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

# A client certificate is renewed after a random share of its lifetime: not by all nodes at once.
SHARES = (0.7, 0.8)
LOOK = 3600.0  # seconds between checks: timers stand still while a machine is suspended
RETRY_PAUSE = 60.0  # seconds before a failed renewal is retried

Renew = Callable[[], Awaitable[str]]


async def rotate_client_certificate(
    client: Client, host: Host, show: Callable[[bytes], None], *, name: str, directory: str
) -> None:
    """Until cancelled. `show` sets the certificate and key for new connections."""

    async def renew() -> str:
        return await tls_bootstrap.renew_client_certificate(client, name=name, directory=directory)

    await _rotate(f"{directory}/{CLIENT_CERTIFICATE_FILE}", host, renew, show, random.uniform(*SHARES))


async def rotate_serving_certificate(pair: str, host: Host, renew: Renew, context: ssl.SSLContext) -> None:
    """The same for the serving certificate of the kubelet API."""
    await _rotate(pair, host, renew, lambda text: tls.load_pair(context, text, text), tls_bootstrap.SHARE)


async def _rotate(pair: str, host: Host, renew: Renew, show: Callable[[bytes], None], share: float) -> None:
    while True:
        if (left := await host.call(tls_bootstrap.seconds_until_renewal, pair, share)) > 0:
            await asyncio.sleep(min(left, LOOK))
            continue
        try:
            show(await host.call(Path(await renew()).read_bytes))
            log.info("renewed the certificate in %s", pair)
        except (tls_bootstrap.BootstrapRefused, APIError, OSError) as error:
            log.error("cannot renew the certificate in %s: %s", pair, error)
            await asyncio.sleep(RETRY_PAUSE)
