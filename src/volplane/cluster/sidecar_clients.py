"""Clients of sidecars that run inside this process: each acts as the service account of its pod.

Such a sidecar could reach the API server without an account, with all rights. But anyone who may create a pod
can use a sidecar's image, with any arguments and driver. So the server authorizes its requests as those of
the account, and it shares this process's caches only for kinds that the account may list and watch. If the
account loses such a right, the sidecar ends; after a restart it has caches of its own.

These sidecars patch where upstream's update, and watch where upstream's only list. So an account that
upstream's manifest made for such a sidecar is put into a group whose role (`roles.yaml`) grants the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from volplane.api.meta import Resource
from volplane.apiserver.auth.authorize import Attributes
from volplane.apiserver.in_process_server import InProcessServer
from volplane.apiserver.in_process_transport import InProcessTransport
from volplane.apiserver.strategy import RequestUser
from volplane.client.cache import Cache, Caches
from volplane.client.client import Client
from volplane.node.containers.task import TaskContext
from volplane.node.image_permissions import service_account_user

T = TypeVar("T", bound=Resource)
log = logging.getLogger(__name__)

# A right that only an account made for that sidecar has. It is powerful: anyone who may create
# PersistentVolumes can reach the files of every node.
MADE_FOR = {
    "csi-provisioner": Attributes("create", plural="persistentvolumes"),
    "csi-attacher": Attributes("patch", "storage.k8s.io", "volumeattachments", subresource="status"),
    "csi-resizer": Attributes("patch", plural="persistentvolumeclaims", subresource="status"),
    "csi-snapshotter": Attributes(
        "update", "snapshot.storage.k8s.io", "volumesnapshotcontents", subresource="status"
    ),
}


class AccountCaches(Caches):
    """Shared caches of kinds that the account may list and watch, else caches of its own."""

    def __init__(self, transport: InProcessTransport, shared: Caches) -> None:
        super().__init__(transport)
        self._local, self._shared = transport, shared
        self._sharing: dict[tuple[type[Resource], str, str], bool] = {}

    def get(self, type: type[T], *, namespace: str = "", labels: str = "", fields: str = "") -> Cache[T]:
        key = (type, namespace, fields)
        if key not in self._sharing:
            self._sharing[key] = self._may_share(*key)
        if self._sharing[key]:
            return self._shared.get(type, namespace=namespace, labels=labels, fields=fields)
        return super().get(type, namespace=namespace, labels=labels, fields=fields)

    def _may_share(self, type: type[Resource], namespace: str, fields: str) -> bool:
        return all(self._local.allows(verb, type, namespace, fields) for verb in ("list", "watch"))

    def has_lost_rights(self) -> bool:
        """Whether the account may no longer read a kind whose shared cache it uses."""
        return any(shared and not self._may_share(*key) for key, shared in self._sharing.items())


@asynccontextmanager
async def account_client(
    server: InProcessServer, shared: Caches, component: str, context: TaskContext
) -> AsyncIterator[Client]:
    """The client of a sidecar; `shared`: the caches of this process.

    The sidecar is stopped when its account loses a right that was checked here.
    """
    account = user = RequestUser(*service_account_user(context.spec.namespace, context.spec.service_account))
    made_for = MADE_FOR.get(component)
    if made_for is not None and server.authorizer.allows(account, made_for):
        user = RequestUser(account.name, (*account.groups, f"volplane:{component}"))
    transport = server.in_process_transport(user)
    checking: asyncio.Handle | None = None
    caches = AccountCaches(transport, shared)
    async with caches:

        def check_rights() -> None:
            nonlocal checking
            checking = None
            lost_group = user is not account and made_for and not server.authorizer.allows(account, made_for)
            if lost_group or caches.has_lost_rights():
                log.warning("%s of %s stops: its account has lost rights", component, account.name)
                context.stop.set()

        def check_soon() -> None:  # once for many changes
            nonlocal checking
            checking = checking or asyncio.get_running_loop().call_soon(check_rights)

        server.rbac.on_change.add(check_soon)
        try:
            yield Client(transport, caches=caches, component=component)
        finally:
            server.rbac.on_change.discard(check_soon)
            if checking is not None:
                checking.cancel()
