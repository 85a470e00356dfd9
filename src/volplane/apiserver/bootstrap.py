"""What exists in every cluster before anybody asks: the namespaces, and the roles with their bindings."""

from __future__ import annotations

from volplane.api.core import Namespace
from volplane.api.errors import AlreadyExists
from volplane.api.meta import ObjectMeta
from volplane.apiserver.auth.rbac import bootstrap as roles
from volplane.apiserver.auth.users import SYSTEM
from volplane.apiserver.backend import Backend
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.create import create
from volplane.base import clock

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


async def bootstrap(backend: Backend) -> None:
    await _namespaces(backend)
    await roles.bootstrap(backend)


async def _namespaces(backend: Backend) -> None:
    entry = backend.namespaces
    for name in NAMESPACES:
        if await backend.record(entry, "", name) is not None:
            continue
        call = Call("create", entry.kind, SYSTEM, backend.reader, clock.wall(), name=name)
        try:
            await create(backend, entry, call, Namespace(metadata=ObjectMeta(name=name)))
        except AlreadyExists:  # another server over the same store was faster
            continue
