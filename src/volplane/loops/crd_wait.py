"""Wait until a custom kind is served: its definition may be created long after this process started."""

from __future__ import annotations

import asyncio
import logging

from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.errors import APIError, Forbidden
from volplane.client.client import Client

log = logging.getLogger(__name__)

RETRY_PAUSE = 5.0  # seconds before a broken watch is started again


async def wait_until_established(client: Client, name: str) -> None:
    """Return when the kind of that definition is served. Raises Forbidden."""
    while True:
        try:
            async for change in client.watch(CustomResourceDefinition, fields=f"metadata.name={name}"):
                found = change.object
                if found is not None and any(
                    c.type == "Established" and c.status == "True" for c in found.status.conditions
                ):
                    return
        except Forbidden:
            raise
        except APIError as error:
            log.debug("definition %s: %s", name, error)
            await asyncio.sleep(RETRY_PAUSE)
