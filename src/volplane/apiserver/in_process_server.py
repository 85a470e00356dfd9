"""The API server without a wire: all verbs over a store, called in process.

This is the whole server for tests and simulations on a virtual clock; `server.Server` adds HTTPS to it.
"""

from __future__ import annotations

import asyncio
from functools import partial

from volplane.api import kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import Namespace, PersistentVolume, Pod
from volplane.api.rbac import ClusterRole, ClusterRoleBinding, Role, RoleBinding
from volplane.api.storage import VolumeAttachment
from volplane.apiserver import strategies
from volplane.apiserver.auth.authorize import AuthorizerChain, SystemMasters
from volplane.apiserver.auth.issuer import TokenIssuer
from volplane.apiserver.auth.nodes.authorizer import NodeAuthorizer
from volplane.apiserver.auth.nodes.graph import NodeGraph
from volplane.apiserver.auth.nodes.restriction import NodeRestriction
from volplane.apiserver.auth.rbac.aggregation import RoleAggregation
from volplane.apiserver.auth.rbac.escalation import EscalationCheck
from volplane.apiserver.auth.rbac.user_rules import Rbac
from volplane.apiserver.auth.signers import SignerAuthorization
from volplane.apiserver.auth.store_index import StoreIndexer
from volplane.apiserver.auth.well_known_users import ADMIN
from volplane.apiserver.backend import Backend
from volplane.apiserver.bootstrap import bootstrap
from volplane.apiserver.crd.namespace_cleanup import NamespaceCleanup
from volplane.apiserver.crd.registration import CRDRegistrar
from volplane.apiserver.event_ttl_and_compaction import expire_events_and_compact
from volplane.apiserver.in_process_transport import InProcessTransport
from volplane.apiserver.podsecurity import PodSecurity
from volplane.apiserver.registry import Registry
from volplane.apiserver.strategies.namespaces import NamespaceStrategy
from volplane.apiserver.strategy import RequestUser
from volplane.store import Store


class InProcessServer:
    def __init__(self, store: Store, issuer: TokenIssuer | None = None) -> None:
        self.backend = Backend(store, Registry(kinds.ALL, strategies.of), issuer or TokenIssuer())
        self.rbac = Rbac()
        graph = NodeGraph()
        self.authority = AuthorizerChain([SystemMasters(), NodeAuthorizer(graph), self.rbac])
        self.backend.admission.judges = [
            NodeRestriction(self.backend, self.authority),
            EscalationCheck(self.backend, self.rbac, self.authority),
            SignerAuthorization(self.authority),
        ]
        self.backend.admission.validators = [PodSecurity()]
        self._following = StoreIndexer(self.backend)
        self._following.add_index(graph, Pod, PersistentVolume, VolumeAttachment)
        self._following.add_index(self.rbac, ClusterRole, Role, ClusterRoleBinding, RoleBinding)
        self._keeper = CRDRegistrar(self.backend)
        self._following.add_index(self._keeper, CustomResourceDefinition)
        definitions = self.backend.registry.of(CustomResourceDefinition)
        definitions.wait_applied = partial(self._following.wait_for_revision, CustomResourceDefinition)
        self._emptying = NamespaceCleanup(self.backend)
        namespaces = self.backend.namespaces.strategy
        assert isinstance(namespaces, NamespaceStrategy)
        namespaces.has_other_objects = self._emptying.has_custom_objects
        self._following.add_index(self._emptying, Namespace)
        self._aggregation = RoleAggregation(self.backend, self.rbac.cluster_roles)
        self._following.add_index(self._aggregation, ClusterRole)
        self._tasks: list[asyncio.Task[None]] = []

    def in_process_transport(self, user: RequestUser = ADMIN) -> InProcessTransport:
        """The server as an in-process transport, for one user."""
        return InProcessTransport(self.backend, user, self.authority)

    async def start(self) -> InProcessServer:
        await bootstrap(self.backend)
        await self._following.start()
        self._tasks = [
            asyncio.create_task(expire_events_and_compact(self.backend), name="apiserver housekeeping"),
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
