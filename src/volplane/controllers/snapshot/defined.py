"""Waits until the kinds of snapshots are there: as custom resources, somebody has to define them."""

from __future__ import annotations

import asyncio
import logging

from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.errors import APIError, Forbidden
from volplane.client.client import Client

log = logging.getLogger(__name__)

NAMES = (
    "volumesnapshots.snapshot.storage.k8s.io",
    "volumesnapshotcontents.snapshot.storage.k8s.io",
    "volumesnapshotclasses.snapshot.storage.k8s.io",
)
GROUP_NAMES = (
    "volumegroupsnapshots.groupsnapshot.storage.k8s.io",
    "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io",
    "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io",
)
AGAIN = 5.0  # seconds before a watch that broke is begun anew


async def defined(client: Client, *, groups: bool = False) -> None:
    """Returns when they are served. Who may not look at definitions takes them for granted."""
    for name in NAMES + (GROUP_NAMES if groups else ()):
        try:
            await _established(client, name)
        except Forbidden as error:
            log.info("definitions cannot be seen: %s", error)
            return


async def _established(client: Client, name: str) -> None:
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
