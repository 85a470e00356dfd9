"""The API server without a wire: all verbs over a store, called in process.

This is the whole server for tests and simulations on a virtual clock; `server.Server` adds HTTPS to it.
"""

from __future__ import annotations

import asyncio
from functools import partial

from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import Namespace, PersistentVolume, Pod
from volplane.api.rbac import ClusterRole, ClusterRoleBinding, Role, RoleBinding
from volplane.api.storage import VolumeAttachment
from volplane.apiserver import strategies
from volplane.apiserver.auth.authorize import Authority, Masters
from volplane.apiserver.auth.following import Following
from volplane.apiserver.auth.issuer import Issuer
from volplane.apiserver.auth.nodes.authorizer import NodeAuthorizer
from volplane.apiserver.auth.nodes.graph import Graph
from volplane.apiserver.auth.nodes.restriction import Restriction
from volplane.apiserver.auth.rbac.aggregation import Aggregation
from volplane.apiserver.auth.rbac.escalation import Escalation
from volplane.apiserver.auth.rbac.index import Rbac
from volplane.apiserver.auth.signers import Signers
from volplane.apiserver.auth.users import ADMIN
from volplane.apiserver.backend import Backend
from volplane.apiserver.bootstrap import bootstrap
from volplane.apiserver.crd.emptying import Emptying
from volplane.apiserver.crd.keeper import Keeper
from volplane.apiserver.housekeeping import keep_house
from volplane.apiserver.local import Local
from volplane.apiserver.podsecurity import PodSecurity
from volplane.apiserver.registry import Registry
from volplane.apiserver.served import SERVED
from volplane.apiserver.strategies.namespaces import NamespaceStrategy
from volplane.apiserver.strategy import User
from volplane.store import Store


class Core:
    def __init__(self, store: Store, issuer: Issuer | None = None) -> None:
        self.backend = Backend(store, Registry(SERVED, strategies.of), issuer or Issuer())
        self.rbac = Rbac()
        graph = Graph()
        self.authority = Authority([Masters(), NodeAuthorizer(graph), self.rbac])
        self.backend.admission.judges = [
            Restriction(self.backend, self.authority),
            Escalation(self.backend, self.rbac, self.authority),
            Signers(self.authority),
        ]
        self.backend.admission.validators = [PodSecurity()]
        self._following = Following(self.backend)
        self._following.feed(graph, Pod, PersistentVolume, VolumeAttachment)
        self._following.feed(self.rbac, ClusterRole, Role, ClusterRoleBinding, RoleBinding)
        self._keeper = Keeper(self.backend)
        self._following.feed(self._keeper, CustomResourceDefinition)
        definitions = self.backend.registry.of(CustomResourceDefinition)
        definitions.follow = partial(self._following.reached, CustomResourceDefinition)
        self._emptying = Emptying(self.backend)
        namespaces = self.backend.namespaces.strategy
        assert isinstance(namespaces, NamespaceStrategy)
        namespaces.holds = self._emptying.holds
        self._following.feed(self._emptying, Namespace)
        self._aggregation = Aggregation(self.backend, self.rbac.cluster_roles)
        self._following.feed(self._aggregation, ClusterRole)
        self._tasks: list[asyncio.Task[None]] = []

    def local(self, user: User = ADMIN) -> Local:
        """The server as an in-process transport, for one user."""
        return Local(self.backend, user, self.authority)

    async def start(self) -> Core:
        await bootstrap(self.backend)
        await self._following.start()
        self._tasks = [
            asyncio.create_task(keep_house(self.backend), name="apiserver housekeeping"),
            asyncio.create_task(self._aggregation.run(), name="roles made of others"),
        ]
        return self

    async def close(self) -> None:
        """Ends what was started; the store belongs to the caller."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._following.close()
        await self._keeper.close()
        await self._emptying.close()
