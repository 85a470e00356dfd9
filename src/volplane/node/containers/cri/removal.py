"""Remove everything that a node has in a container runtime, as if its machine had lost power."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial

from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.base.retry import retry
from volplane.node.containers.cri import cgroups, labels
from volplane.node.containers.cri.client import CriClient, CriError, NotFoundInRuntime, RuntimeUnavailable

log = logging.getLogger(__name__)

PATIENCE = 60.0  # seconds after which a refused call is not tried again
RETRY = Backoff(0.05, 1.0)


async def remove_node(endpoint: str, root: str) -> None:
    """Kill the containers of the node with this directory, and remove them with their sandboxes.

    A runtime refuses to remove a container that it is starting, so refused calls are tried again.
    """
    cri = CriClient(endpoint)
    deadline = clock.now() + PATIENCE

    def report(error: Exception) -> None:
        if isinstance(error, RuntimeUnavailable) or clock.now() > deadline:
            raise error

    try:
        await retry(partial(_remove_all, cri, root), on=CriError, backoff=RETRY, report=report)
    except CriError as error:
        log.warning("containers of %s may be left in the container runtime: %s", root, error)
    finally:
        await cri.close()


async def _remove_all(cri: CriClient, root: str) -> None:
    own = labels.node_labels(root)
    for container in await cri.list_containers(own):
        with suppress(NotFoundInRuntime):
            await cri.stop_container(container.id, 0)
    for sandbox in await cri.list_sandboxes(own):
        with suppress(NotFoundInRuntime):
            await cri.stop_sandbox(sandbox.id)
            await cri.remove_sandbox(sandbox.id)
        cgroups.remove_pod(sandbox.labels[labels.POD_UID], root)
    cgroups.remove_node(root)
