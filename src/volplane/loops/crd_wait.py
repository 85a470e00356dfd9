"""Wait until a custom kind is served: its definition may be created long after this process started."""

from __future__ import annotations

import logging

from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.errors import APIError, Forbidden
from volplane.base.backoff import constant
from volplane.base.retry import retry
from volplane.client.client import Client

log = logging.getLogger(__name__)

RETRY = constant(5.0)  # before a broken watch is started again


async def wait_until_established(client: Client, name: str) -> None:
    """Return when the kind of that definition is served. Raises Forbidden where it may not be read."""

    def report(error: Exception) -> None:
        if isinstance(error, Forbidden):
            raise error
        log.debug("definition %s: %s", name, error)

    while not await retry(lambda: _watch(client, name), on=APIError, backoff=RETRY, report=report):
        pass  # the stream ended: watch again


async def _watch(client: Client, name: str) -> bool:
    """Follow one stream; whether the definition was established before it ended."""
    async for change in client.watch(CustomResourceDefinition, fields=f"metadata.name={name}"):
        found = change.object
        if found is not None and any(
            c.type == "Established" and c.status == "True" for c in found.status.conditions
        ):
            return True
    return False
