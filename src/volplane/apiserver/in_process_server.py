"""The API server without HTTP: all verbs over a store, called in process.

Tests and simulations on a virtual clock use it directly; `server.RunningApiServer` adds HTTPS.
"""

from __future__ import annotations

import asyncio
from functools import partial

from volplane.api import kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import LimitRange, Namespace, PersistentVolume, Pod, ResourceQuota
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
from volplane.apiserver.limit_range_admission import LimitRangeAdmission
from volplane.apiserver.podsecurity import PodSecurity
from volplane.apiserver.quota_admission import QuotaAdmission
from volplane.apiserver.registry import Registry
from volplane.apiserver.start_progress import StartProgress, StartStep
from volplane.apiserver.strategies.namespaces import NamespaceStrategy
from volplane.apiserver.strategy import RequestUser
from volplane.base import memory
from volplane.base.tasks import TaskSet
from volplane.store import Store


class InProcessServer:
    def __init__(self, store: Store, issuer: TokenIssuer | None = None) -> None:
        self.backend = Backend(store, Registry(kinds.ALL, strategies.of), issuer or TokenIssuer())
        self.rbac = Rbac()
        graph = NodeGraph()
        self.authorizer = AuthorizerChain([SystemMasters(), NodeAuthorizer(graph), self.rbac])
        limit_ranges, quotas = LimitRangeAdmission(), QuotaAdmission(self.backend)
        self.backend.admission.set_plugins(
            [
                NodeRestriction(self.backend, self.authorizer),
                EscalationCheck(self.backend, self.rbac, self.authorizer),
                SignerAuthorization(self.authorizer),
                PodSecurity(),
                limit_ranges,
                quotas,  # last: what it allows is reserved
            ]
        )
        self._indexer = StoreIndexer(self.backend)
        self._indexer.add_index(graph, Pod, PersistentVolume, VolumeAttachment)
        self._indexer.add_index(self.rbac, ClusterRole, Role, ClusterRoleBinding, RoleBinding)
        self._registrar = CRDRegistrar(self.backend)
        self._indexer.add_index(self._registrar, CustomResourceDefinition)
        self._indexer.add_index(limit_ranges, LimitRange)
        self._indexer.add_index(quotas, ResourceQuota)
        for type in (
            CustomResourceDefinition,
            LimitRange,
            ResourceQuota,
        ):  # acknowledged when they take effect
            entry = self.backend.registry.of(type)
            entry.wait_applied = partial(self._indexer.wait_for_revision, type)
        self._namespace_cleanup = NamespaceCleanup(self.backend)
        namespaces = self.backend.namespaces.strategy
        assert isinstance(namespaces, NamespaceStrategy)
        namespaces.has_other_objects = self._namespace_cleanup.has_custom_objects
        self._indexer.add_index(self._namespace_cleanup, Namespace)
        self._aggregation = RoleAggregation(self.backend, self.rbac.cluster_roles)
        self._indexer.add_index(self._aggregation, ClusterRole)
        self._tasks = TaskSet()
        self.progress = StartProgress()

    def in_process_transport(self, user: RequestUser = ADMIN) -> InProcessTransport:
        """Return an in-process transport for one user."""
        return InProcessTransport(self.backend, user, self.authorizer)

    async def start(self) -> InProcessServer:
        await bootstrap(self.backend, self.progress)
        await self._indexer.start()
        self.progress.finish(StartStep.INDEXES, StartStep.DEFINITIONS)
        self._tasks.start(expire_events_and_compact(self.backend), "event expiry and compaction")
        self._tasks.start(self._aggregation.run(), "role aggregation")
        self._tasks.start(self._expire_watch_caches(), "watch cache expiry")
        return self

    async def _expire_watch_caches(self) -> None:
        """Release memory: drop cached events and objects that were not read for a while."""
        while True:
            await asyncio.sleep(memory.EVERY)
            for entry in self.backend.registry:
                entry.watch_cache.forget()

    async def close(self) -> None:
        """Stop all tasks. The caller owns the store."""
        await self._tasks.close()
        await self._indexer.close()
        await self._registrar.close()
        await self._namespace_cleanup.close()
