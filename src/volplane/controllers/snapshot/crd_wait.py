"""Wait until the kinds of snapshots are served: they are custom resources."""

from __future__ import annotations

import logging

from volplane.api.errors import Forbidden
from volplane.client.client import Client
from volplane.loops.crd_wait import wait_until_established

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


async def wait_for_crds(client: Client, *, groups: bool = False) -> None:
    """Return when they are served; without permission to read definitions, at once."""
    for name in NAMES + (GROUP_NAMES if groups else ()):
        try:
            await wait_until_established(client, name)
        except Forbidden as error:
            log.info("CustomResourceDefinitions cannot be read: %s", error)
            return
