"""Create what every cluster has at start: namespaces, roles, bindings, and the client CA's ConfigMap."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from msgspec import structs

from volplane.api.core import ConfigMap, Namespace
from volplane.api.errors import AlreadyExists
from volplane.api.meta import ObjectMeta
from volplane.apiserver.auth.rbac import bootstrap as roles
from volplane.apiserver.backend import Backend
from volplane.apiserver.verbs.create import create
from volplane.apiserver.verbs.update import SERVER_WRITE, modify
from volplane.store import StoreRecord

CLIENT_CA = "extension-apiserver-authentication"  # extension API servers read the client CA here
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


async def bootstrap(backend: Backend) -> None:
    await asyncio.gather(roles.bootstrap(backend), *(_namespace(backend, name) for name in NAMESPACES))


async def _namespace(backend: Backend, name: str) -> None:
    entry = backend.namespaces
    if await backend.record(entry, "", name) is not None:
        return
    call = backend.system_call("create", entry, name)
    with suppress(AlreadyExists):  # another server on the same store was faster
        await create(backend, entry, call, Namespace(metadata=ObjectMeta(name=name)))


async def publish_client_ca(backend: Backend, ca: str) -> None:
    """Publish the CA that signs client certificates."""
    entry = backend.registry.of(ConfigMap)
    namespace, data = "kube-system", {"client-ca-file": ca}
    call = backend.system_call("create", entry, namespace=namespace)
    if await backend.record(entry, namespace, CLIENT_CA) is None:
        try:
            meta = ObjectMeta(name=CLIENT_CA, namespace=namespace)
            await create(backend, entry, call, ConfigMap(metadata=meta, data=data))
            return
        except AlreadyExists:
            pass

    async def set_data(held: ConfigMap, record: StoreRecord) -> ConfigMap:
        return structs.replace(held, data={**held.data, **data})

    await modify(backend, entry, structs.replace(call, verb="update", name=CLIENT_CA), set_data, SERVER_WRITE)
