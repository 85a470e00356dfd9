"""What each kind adds to the generic verbs: defaults, admission, preparation, validation.

One file per kind or small group. Kinds without rules of their own get the base `Strategy`. Everything here
is a pure function of objects, except admission, which reads other objects through `call.reader`.
"""

from __future__ import annotations

from collections.abc import Mapping

from volplane.api.kinds import Kind
from volplane.apiserver.crd.definition.strategy import DefinitionStrategy
from volplane.apiserver.strategies.certificatesigningrequests import CertificateSigningRequestStrategy
from volplane.apiserver.strategies.cronjobs import CronJobStrategy
from volplane.apiserver.strategies.csi import CSIDriverStrategy, CSINodeStrategy, CSIStorageCapacityStrategy
from volplane.apiserver.strategies.events import EventStrategy
from volplane.apiserver.strategies.events_k8s_io import EventsK8sIoStrategy
from volplane.apiserver.strategies.jobs import JobStrategy
from volplane.apiserver.strategies.leases import LeaseStrategy
from volplane.apiserver.strategies.limits_and_quotas import (
    EndpointsStrategy,
    LimitRangeStrategy,
    ResourceQuotaStrategy,
)
from volplane.apiserver.strategies.namespaces import NamespaceStrategy
from volplane.apiserver.strategies.nodes import NodeStrategy
from volplane.apiserver.strategies.persistentvolumeclaims import PersistentVolumeClaimStrategy
from volplane.apiserver.strategies.persistentvolumes import PersistentVolumeStrategy
from volplane.apiserver.strategies.poddisruptionbudgets import PodDisruptionBudgetStrategy
from volplane.apiserver.strategies.pods import PodStrategy
from volplane.apiserver.strategies.priorityclasses import PriorityClassStrategy, RuntimeClassStrategy
from volplane.apiserver.strategies.roles import (
    ClusterRoleBindingStrategy,
    ClusterRoleStrategy,
    RoleBindingStrategy,
    RoleStrategy,
)
from volplane.apiserver.strategies.secrets_configmaps import ConfigMapStrategy, SecretStrategy
from volplane.apiserver.strategies.services import ServiceStrategy
from volplane.apiserver.strategies.statefulsets import ControllerRevisionStrategy, StatefulSetStrategy
from volplane.apiserver.strategies.storageclasses import StorageClassStrategy, VolumeAttributesClassStrategy
from volplane.apiserver.strategies.volumeattachments import VolumeAttachmentStrategy
from volplane.apiserver.strategies.workloads import (
    DaemonSetStrategy,
    DeploymentsStrategy,
    PodTemplateStrategy,
    ReplicaSetStrategy,
    ReplicationControllerStrategy,
)
from volplane.apiserver.strategy import AnyStrategy, Strategy

_BY_RESOURCE: Mapping[str, type[AnyStrategy]] = {
    "pods": PodStrategy,
    "customresourcedefinitions.apiextensions.k8s.io": DefinitionStrategy,
    "persistentvolumeclaims": PersistentVolumeClaimStrategy,
    "persistentvolumes": PersistentVolumeStrategy,
    "namespaces": NamespaceStrategy,
    "nodes": NodeStrategy,
    "events": EventStrategy,
    "events.events.k8s.io": EventsK8sIoStrategy,
    "secrets": SecretStrategy,
    "configmaps": ConfigMapStrategy,
    "storageclasses.storage.k8s.io": StorageClassStrategy,
    "volumeattributesclasses.storage.k8s.io": VolumeAttributesClassStrategy,
    "volumeattachments.storage.k8s.io": VolumeAttachmentStrategy,
    "csidrivers.storage.k8s.io": CSIDriverStrategy,
    "csinodes.storage.k8s.io": CSINodeStrategy,
    "csistoragecapacities.storage.k8s.io": CSIStorageCapacityStrategy,
    "leases.coordination.k8s.io": LeaseStrategy,
    "services": ServiceStrategy,
    "endpoints": EndpointsStrategy,
    "limitranges": LimitRangeStrategy,
    "resourcequotas": ResourceQuotaStrategy,
    "priorityclasses.scheduling.k8s.io": PriorityClassStrategy,
    "runtimeclasses.node.k8s.io": RuntimeClassStrategy,
    "deployments.apps": DeploymentsStrategy,
    "replicasets.apps": ReplicaSetStrategy,
    "replicationcontrollers": ReplicationControllerStrategy,
    "podtemplates": PodTemplateStrategy,
    "daemonsets.apps": DaemonSetStrategy,
    "statefulsets.apps": StatefulSetStrategy,
    "roles.rbac.authorization.k8s.io": RoleStrategy,
    "clusterroles.rbac.authorization.k8s.io": ClusterRoleStrategy,
    "rolebindings.rbac.authorization.k8s.io": RoleBindingStrategy,
    "clusterrolebindings.rbac.authorization.k8s.io": ClusterRoleBindingStrategy,
    "controllerrevisions.apps": ControllerRevisionStrategy,
    "certificatesigningrequests.certificates.k8s.io": CertificateSigningRequestStrategy,
    "jobs.batch": JobStrategy,
    "cronjobs.batch": CronJobStrategy,
    "poddisruptionbudgets.policy": PodDisruptionBudgetStrategy,
}


def of(kind: Kind) -> AnyStrategy:
    """The strategy of a kind."""
    return _BY_RESOURCE.get(kind.resource, Strategy)(kind)
