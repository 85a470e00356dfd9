"""Waits until a custom kind is there: somebody has to define it, perhaps long after we started."""

from __future__ import annotations

import asyncio
import logging

from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.errors import APIError, Forbidden
from volplane.client.client import Client

log = logging.getLogger(__name__)

AGAIN = 5.0  # seconds before a watch that broke is begun anew


async def established(client: Client, name: str) -> None:
    """Returns when the kind of that definition is served. Raises Forbidden where we may not look at it."""
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
            await asyncio.sleep(AGAIN)
