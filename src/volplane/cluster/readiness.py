"""When a cluster is ready, and what it still waits for while it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from volplane.api.apps import Deployment
from volplane.api.core import Node
from volplane.api.storage import CSINode
from volplane.client.client import Client
from volplane.cluster.errors import NotReady
from volplane.cluster.layout import Member
from volplane.drivers.ebs import NAME

PATIENCE = 60.0  # seconds; a start that takes longer is stuck, and says on what


async def ready(client: Client, members: Sequence[Member]) -> None:
    """Until every node is Ready and has the driver, and the driver's controller is available."""
    caches = (client.cache(Node), client.cache(CSINode), client.cache(Deployment))
    changed = asyncio.Event()
    ends = [cache.subscribe(lambda *_: changed.set()) for cache in caches]
    try:
        async with asyncio.timeout(PATIENCE):
            for cache in caches:
                await cache.synced()
            while missing(client, members):
                changed.clear()
                await changed.wait()
    except TimeoutError as error:
        why = missing(client, members) or "the API server does not answer"
        raise NotReady(f"not ready after {PATIENCE:g} s: {why}") from error
    finally:
        for end in ends:
            end()


def missing(client: Client, members: Sequence[Member]) -> str:
    """What is not there yet, one thing at a time; nothing when all is."""
    for member in members:
        node = client.cache(Node).get(member.name)
        if node is None or not any(c.type == "Ready" and c.status == "True" for c in node.status.conditions):
            return f"node {member.name} is not ready"
        csinode = client.cache(CSINode).get(member.name)
        if csinode is None or NAME not in [d.name for d in csinode.spec.drivers]:
            return f"driver {NAME} is not registered on {member.name}"
    controller = client.cache(Deployment).get("ebs-csi-controller", "kube-system")
    if members and (controller is None or not controller.status.ready_replicas):
        return "the driver's controller is not available"
    return ""
