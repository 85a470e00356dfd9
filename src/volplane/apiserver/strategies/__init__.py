"""What each kind adds to the generic verbs: defaults, admission, preparation, validation.

One file per kind or small group. Kinds without rules of their own get the base `Strategy`. Everything here
is a pure function of objects, except admission, which reads other objects through `call.reader`.
"""

from __future__ import annotations

from collections.abc import Mapping

from volplane.api.kinds import Kind
from volplane.apiserver.crd.definition.strategy import DefinitionStrategy
from volplane.apiserver.strategies.attachments import AttachmentStrategy
from volplane.apiserver.strategies.budgets import BudgetRules
from volplane.apiserver.strategies.claims import ClaimStrategy
from volplane.apiserver.strategies.classes import AttributesClassStrategy, StorageClassStrategy
from volplane.apiserver.strategies.config import ConfigMapStrategy, SecretStrategy
from volplane.apiserver.strategies.crons import CronJobRules
from volplane.apiserver.strategies.csi import CapacityStrategy, DriverStrategy, NodeDriversStrategy
from volplane.apiserver.strategies.events import EventStrategy
from volplane.apiserver.strategies.jobs import JobRules
from volplane.apiserver.strategies.leases import LeaseStrategy
from volplane.apiserver.strategies.namespaces import NamespaceStrategy
from volplane.apiserver.strategies.newevents import NewEventStrategy
from volplane.apiserver.strategies.nodes import NodeStrategy
from volplane.apiserver.strategies.pods import PodStrategy
from volplane.apiserver.strategies.priorities import PriorityClassStrategy, RuntimeClassStrategy
from volplane.apiserver.strategies.quotas import EndpointsStrategy, LimitRangeStrategy, QuotaStrategy
from volplane.apiserver.strategies.requests import RequestStrategy
from volplane.apiserver.strategies.roles import (
    ClusterRoleBindingStrategy,
    ClusterRoleStrategy,
    RoleBindingStrategy,
    RoleStrategy,
)
from volplane.apiserver.strategies.services import ServiceStrategy
from volplane.apiserver.strategies.stateful import RevisionRules, StatefulSetRules
from volplane.apiserver.strategies.volumes import VolumeStrategy
from volplane.apiserver.strategies.workloads import (
    DaemonSetRules,
    DeploymentRules,
    PodTemplateRules,
    ReplicaSetRules,
    ReplicationControllerRules,
)
from volplane.apiserver.strategy import AnyStrategy, Strategy

_BY_RESOURCE: Mapping[str, type[AnyStrategy]] = {
    "pods": PodStrategy,
    "customresourcedefinitions.apiextensions.k8s.io": DefinitionStrategy,
    "persistentvolumeclaims": ClaimStrategy,
    "persistentvolumes": VolumeStrategy,
    "namespaces": NamespaceStrategy,
    "nodes": NodeStrategy,
    "events": EventStrategy,
    "events.events.k8s.io": NewEventStrategy,
    "secrets": SecretStrategy,
    "configmaps": ConfigMapStrategy,
    "storageclasses.storage.k8s.io": StorageClassStrategy,
    "volumeattributesclasses.storage.k8s.io": AttributesClassStrategy,
    "volumeattachments.storage.k8s.io": AttachmentStrategy,
    "csidrivers.storage.k8s.io": DriverStrategy,
    "csinodes.storage.k8s.io": NodeDriversStrategy,
    "csistoragecapacities.storage.k8s.io": CapacityStrategy,
    "leases.coordination.k8s.io": LeaseStrategy,
    "services": ServiceStrategy,
    "endpoints": EndpointsStrategy,
    "limitranges": LimitRangeStrategy,
    "resourcequotas": QuotaStrategy,
    "priorityclasses.scheduling.k8s.io": PriorityClassStrategy,
    "runtimeclasses.node.k8s.io": RuntimeClassStrategy,
    "deployments.apps": DeploymentRules,
    "replicasets.apps": ReplicaSetRules,
    "replicationcontrollers": ReplicationControllerRules,
    "podtemplates": PodTemplateRules,
    "daemonsets.apps": DaemonSetRules,
    "statefulsets.apps": StatefulSetRules,
    "roles.rbac.authorization.k8s.io": RoleStrategy,
    "clusterroles.rbac.authorization.k8s.io": ClusterRoleStrategy,
    "rolebindings.rbac.authorization.k8s.io": RoleBindingStrategy,
    "clusterrolebindings.rbac.authorization.k8s.io": ClusterRoleBindingStrategy,
    "controllerrevisions.apps": RevisionRules,
    "certificatesigningrequests.certificates.k8s.io": RequestStrategy,
    "jobs.batch": JobRules,
    "cronjobs.batch": CronJobRules,
    "poddisruptionbudgets.policy": BudgetRules,
}


def of(kind: Kind) -> AnyStrategy:
    """The strategy of a kind."""
    return _BY_RESOURCE.get(kind.resource, Strategy)(kind)
