"""Remove everything that a node has in a container runtime, as if its machine had lost power."""

from __future__ import annotations

import logging
from contextlib import suppress

from volplane.node.containers.cri import cgroups, labels
from volplane.node.containers.cri.client import CriClient, CriError, NotFoundInRuntime

log = logging.getLogger(__name__)


async def remove_node(endpoint: str, root: str) -> None:
    """Kill the containers of the node with this directory, and remove them with their sandboxes."""
    cri = CriClient(endpoint)
    own = labels.node_labels(root)
    try:
        for container in await cri.list_containers(own):
            with suppress(NotFoundInRuntime):
                await cri.stop_container(container.id, 0)
        for sandbox in await cri.list_sandboxes(own):
            with suppress(NotFoundInRuntime):
                await cri.stop_sandbox(sandbox.id)
                await cri.remove_sandbox(sandbox.id)
            cgroups.remove_pod(sandbox.labels[labels.POD_UID], root)
        cgroups.remove_node(root)
    except CriError as error:
        log.warning("containers of %s may be left in the container runtime: %s", root, error)
    finally:
        await cri.close()
