"""The built-in kinds, a row each: a new kind is a Struct and a row here.

A row names everything that the server knows about a kind: its names and scope, the class with its rules
(`strategy`), which updates and deletes it allows, its selectable fields and its table columns (the language
of `columns` is explained in `apiserver.tables.columns`). Field numbers, integer widths and required fields
come from the published schema: see `api.published_schema`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec import defstruct

from volplane.api import (
    apiextensions,
    apps,
    authentication,
    authorization,
    autoscaling,
    batch,
    certificates,
    coordination,
    core,
    discovery,
    events,
    noderuntime,
    policy,
    rbac,
    resource,
    scheduling,
    snapshot,
    storage,
)
from volplane.api.kind import CRUD, Kind, SelectableValue, Subresource, selectable
from volplane.api.meta import PartialObjectMetadata, Resource
from volplane.api.name_validation import label_problems, path_segment_problems, service_problems

__all__ = [
    "ALL",
    "CLIENT_KINDS",
    "SUBRESOURCE_KINDS",
    "Kind",
    "SelectableValue",
    "Subresource",
    "by_kind",
    "of",
]

CREATE = ("create",)
CONNECT = ("create", "get")
READ_AND_DELETE = ("delete", "deletecollection", "get", "list", "watch")
PROXY = ("create", "delete", "get", "patch", "update")

STATUS = Subresource("status")
SCALE = Subresource("scale", kind="Scale", group="autoscaling", version="v1")

_STORAGE = "storage.k8s.io"
_RBAC = "rbac.authorization.k8s.io"
_AUTHENTICATION = "authentication.k8s.io"
_AUTHORIZATION = "authorization.k8s.io"
_RESOURCE = "resource.k8s.io"
_SNAPSHOTS = "snapshot.storage.k8s.io"
_GROUP_SNAPSHOTS = "groupsnapshot.storage.k8s.io"

_NAME_AND_AGE = "Name\nAge"
_CONTAINERS = """
    Containers* = names(spec.template.spec.containers)
    Images* = images(spec.template.spec.containers)
"""
_REPLICAS = """
    Current#integer = status.replicas
    Ready#integer = status.readyReplicas
    Age
"""
_EVENT_TITLES = (
    "Last Seen & Type & Reason & Object & Subobject* & Source* & Message & First Seen* & Count* & Name*"
)
_BINDING = """
    Name
    Role = role(roleRef)
    Age
    Users* & Groups* & ServiceAccounts* = subjects(subjects)
"""
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _kind(group: str, type: type[Resource], plural: str, *short: str, **more: Any) -> Kind:
    legacy = "selectable" in more
    version = more.pop("version", "v1")
    return Kind(
        type, group, version, type.__name__, plural, short_names=short, legacy_field_errors=legacy, **more
    )


_CORE = (
    _kind(
        "",
        core.Pod,
        "pods",
        "po",
        categories=("all",),
        subresources=(
            Subresource("attach", CONNECT, kind="PodAttachOptions"),
            Subresource("binding", CREATE, kind="Binding"),
            Subresource("ephemeralcontainers"),
            Subresource("eviction", CREATE, kind="Eviction", group="policy", version="v1"),
            Subresource("exec", CONNECT, kind="PodExecOptions"),
            Subresource("log", ("get",)),
            Subresource("portforward", CONNECT, kind="PodPortForwardOptions"),
            Subresource("resize"),
            STATUS,
        ),
        strategy="strategies.pods.PodStrategy",
        generation="counted",
        returns_deleted=True,
        graceful_deletion=True,
        selectable=selectable(
            "spec.nodeName",
            "spec.host=spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork|false",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ),
        columns="""
            Name
            Ready & Status & Restarts = pod_summary()
            Age
            IP* = first_ip(status.podIPs)
            Node* = spec.nodeName|<none>
            Nominated Node* = status.nominatedNodeName|<none>
            Readiness Gates* = readiness_gates()
        """,
        row_conditions="pod_conditions",
    ),
    _kind(
        "",
        core.PersistentVolumeClaim,
        "persistentvolumeclaims",
        "pvc",
        subresources=(STATUS,),
        strategy="strategies.persistentvolumeclaims.PersistentVolumeClaimStrategy",
        returns_deleted=True,
        columns="""
            Name
            Status = phase()
            Volume = spec.volumeName
            Capacity & Access Modes = bound_size_and_modes()
            StorageClass = claim_class()
            VolumeAttributesClass = spec.volumeAttributesClassName?<unset>
            Age
            VolumeMode* = spec.volumeMode?<unset>
        """,
    ),
    _kind(
        "",
        core.PersistentVolume,
        "persistentvolumes",
        "pv",
        namespaced=False,
        subresources=(STATUS,),
        strategy="strategies.persistentvolumes.PersistentVolumeStrategy",
        returns_deleted=True,
        columns="""
            Name
            Capacity = storage(spec.capacity)
            Access Modes = access_modes(spec.accessModes)
            Reclaim Policy = spec.persistentVolumeReclaimPolicy
            Status = phase()
            Claim = claim_ref(spec.claimRef)|
            StorageClass = volume_class()
            VolumeAttributesClass = spec.volumeAttributesClassName?<unset>
            Reason = status.reason
            Age
            VolumeMode* = spec.volumeMode?<unset>
        """,
    ),
    _kind(
        "",
        core.Node,
        "nodes",
        "no",
        namespaced=False,
        subresources=(Subresource("proxy", PROXY, kind="NodeProxyOptions"), STATUS),
        strategy="strategies.nodes.NodeStrategy",
        selectable=selectable("spec.unschedulable|false"),
        columns="""
            Name
            Status = node_status()
            Roles = node_roles(metadata.labels)
            Age
            Version = status.nodeInfo.kubeletVersion
            Internal-IP* = internal_ip(status.addresses)
            External-IP* = external_ip(status.addresses)
            OS-Image* = status.nodeInfo.osImage|<unknown>
            Kernel-Version* = status.nodeInfo.kernelVersion|<unknown>
            Container-Runtime* = status.nodeInfo.containerRuntimeVersion|<unknown>
        """,
    ),
    _kind(
        "",
        core.Namespace,
        "namespaces",
        "ns",
        namespaced=False,
        verbs=tuple(v for v in CRUD if v != "deletecollection"),
        subresources=(Subresource("finalize", ("update",)), STATUS),
        strategy="strategies.namespaces.NamespaceStrategy",
        check_name=label_problems,
        returns_deleted=True,
        selectable=selectable("status.phase"),
        columns="""
            Name
            Status = status.phase
            Age
        """,
    ),
    _kind(
        "",
        core.Event,
        "events",
        "ev",
        strategy="strategies.events.EventStrategy",
        create_on_update=True,
        selectable=selectable(
            *(f"involvedObject.{f}" for f in _REFERENCE),
            "reason",
            "reportingComponent",
            "source=source.component",
            "type",
        ),
        columns=f"""
            {_EVENT_TITLES} = event()
        """,
    ),
    _kind(
        "",
        core.Secret,
        "secrets",
        strategy="strategies.secrets_configmaps.SecretStrategy",
        selectable=selectable("type"),
        columns="""
            Name
            Type = type
            Data = count(data)
            Age
        """,
    ),
    _kind(
        "",
        core.ConfigMap,
        "configmaps",
        "cm",
        strategy="strategies.secrets_configmaps.ConfigMapStrategy",
        columns="""
            Name
            Data = config_map_keys()
            Age
        """,
    ),
    _kind(
        "",
        core.ServiceAccount,
        "serviceaccounts",
        "sa",
        subresources=(
            Subresource("token", CREATE, kind="TokenRequest", group=_AUTHENTICATION, version="v1"),
        ),
        returns_deleted=True,
        columns=_NAME_AND_AGE,
    ),
    _kind(
        "",
        core.Service,
        "services",
        "svc",
        categories=("all",),
        subresources=(STATUS,),
        strategy="strategies.services.ServiceStrategy",
        check_name=service_problems,
        create_on_update=True,
        returns_deleted=True,
        selectable=selectable("spec.clusterIP", "spec.type"),
        columns="""
            Name
            Type = spec.type
            Cluster-IP = cluster_ip(spec)
            External-IP = external_addresses()
            Port(s) = service_ports(spec.ports)
            Age
            Selector* = labels(spec.selector)
        """,
    ),
    _kind(
        "",
        core.Endpoints,
        "endpoints",
        "ep",
        create_on_update=True,
        warning="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
        columns="""
            Name
            Endpoints = endpoint_addresses(subsets)
            Age
        """,
    ),
    _kind(
        "",
        core.LimitRange,
        "limitranges",
        "limits",
        strategy="strategies.limits_and_quotas.LimitRangeStrategy",
        create_on_update=True,
    ),
    _kind(
        "",
        core.ResourceQuota,
        "resourcequotas",
        "quota",
        subresources=(STATUS,),
        strategy="strategies.limits_and_quotas.ResourceQuotaStrategy",
        returns_deleted=True,
        columns="""
            Name
            Request & Limit = quota_usage(status)
            Age
        """,
    ),
    _kind(
        "",
        core.PodTemplate,
        "podtemplates",
        strategy="strategies.workloads.PodTemplateStrategy",
        generation="counted",
        returns_deleted=True,
        columns="""
            Name
            Containers = names(template.spec.containers)
            Images = images(template.spec.containers)
            Pod Labels = labels(template.metadata.labels)
        """,
    ),
    _kind(
        "",
        core.ReplicationController,
        "replicationcontrollers",
        "rc",
        categories=("all",),
        subresources=(SCALE, STATUS),
        strategy="strategies.workloads.ReplicationControllerStrategy",
        generation="counted",
        propagation="Orphan",
        columns=f"""
            Name
            Desired#integer = spec.replicas?0
            {_REPLICAS}
            {_CONTAINERS}
            Selector* = labels(spec.selector)
        """,
    ),
    _kind(
        "",
        core.ComponentStatus,
        "componentstatuses",
        "cs",
        namespaced=False,
        verbs=("get", "list"),
        columns="""
            Name
            Status & Message & Error = component_health(conditions)
        """,
    ),
    _kind("", core.Binding, "bindings", verbs=CREATE),
)

_WORKLOADS = (
    _kind(
        "apps",
        apps.Deployment,
        "deployments",
        "deploy",
        categories=("all",),
        subresources=(SCALE, STATUS),
        strategy="strategies.workloads.DeploymentsStrategy",
        immutable=("spec.selector",),
        generation="counted",
        columns=f"""
            Name
            Ready = ready_replicas()
            Up-to-date = status.updatedReplicas
            Available = status.availableReplicas
            Age
            {_CONTAINERS}
            Selector* = selector_or_empty(spec.selector)
        """,
    ),
    _kind(
        "apps",
        apps.ReplicaSet,
        "replicasets",
        "rs",
        categories=("all",),
        subresources=(SCALE, STATUS),
        strategy="strategies.workloads.ReplicaSetStrategy",
        immutable=("spec.selector",),
        generation="counted",
        columns=f"""
            Name
            Desired#integer = spec.replicas?1
            {_REPLICAS}
            {_CONTAINERS}
            Selector* = selector(spec.selector)
        """,
    ),
    _kind(
        "apps",
        apps.StatefulSet,
        "statefulsets",
        "sts",
        categories=("all",),
        subresources=(SCALE, STATUS),
        strategy="strategies.statefulsets.StatefulSetStrategy",
        check_name=label_problems,  # it becomes the pods' host names
        generation="counted",
        columns=f"""
            Name
            Ready = ready_replicas()
            Age
            {_CONTAINERS}
        """,
    ),
    _kind(
        "apps",
        apps.DaemonSet,
        "daemonsets",
        "ds",
        categories=("all",),
        subresources=(STATUS,),
        strategy="strategies.workloads.DaemonSetStrategy",
        immutable=("spec.selector",),
        generation="counted",
        columns=f"""
            Name
            Desired#integer = status.desiredNumberScheduled
            Current#integer = status.currentNumberScheduled
            Ready#integer = status.numberReady
            Up-to-date#integer = status.updatedNumberScheduled
            Available#integer = status.numberAvailable
            Node Selector = labels(spec.template.spec.nodeSelector)
            Age
            {_CONTAINERS}
            Selector* = selector(spec.selector)
        """,
    ),
    _kind(
        "apps",
        apps.ControllerRevision,
        "controllerrevisions",
        strategy="strategies.statefulsets.ControllerRevisionStrategy",
        columns="""
            Name
            Controller = controller_owner(metadata.ownerReferences)
            Revision = revision
            Age
        """,
    ),
    _kind(
        "batch",
        batch.Job,
        "jobs",
        categories=("all",),
        subresources=(STATUS,),
        strategy="strategies.jobs.JobStrategy",
        generation="counted",
        propagation="Orphan",
        selectable=selectable("status.successful=status.succeeded|0"),
        columns=f"""
            Name
            Status = job_status()
            Completions = job_completions()
            Duration = job_duration(status)
            Age
            {_CONTAINERS}
            Selector* = selector(spec.selector)
        """,
    ),
    _kind(
        "batch",
        batch.CronJob,
        "cronjobs",
        "cj",
        categories=("all",),
        subresources=(STATUS,),
        strategy="strategies.cronjobs.CronJobStrategy",
        generation="counted",
        columns="""
            Name
            Schedule = spec.schedule
            Timezone = spec.timeZone?<none>
            Suspend#boolean = spec.suspend?false
            Active#integer = count(status.active)
            Last Schedule = age(status.lastScheduleTime)|<none>
            Age
            Containers* = names(spec.jobTemplate.spec.template.spec.containers)
            Images* = images(spec.jobTemplate.spec.template.spec.containers)
            Selector* = selector(spec.jobTemplate.spec.selector)
        """,
    ),
    _kind(
        "policy",
        policy.PodDisruptionBudget,
        "poddisruptionbudgets",
        "pdb",
        subresources=(STATUS,),
        strategy="strategies.poddisruptionbudgets.PodDisruptionBudgetStrategy",
        unconditional_update=False,
        generation="counted",
        columns="""
            Name
            Min Available = text(spec.minAvailable)?N/A
            Max Unavailable = text(spec.maxUnavailable)?N/A
            Allowed Disruptions#integer = status.disruptionsAllowed
            Age
        """,
    ),
)

_STORAGE_KINDS = (
    _kind(
        _STORAGE,
        storage.StorageClass,
        "storageclasses",
        "sc",
        namespaced=False,
        strategy="strategies.storageclasses.StorageClassStrategy",
        returns_deleted=True,
        columns="""
            Name = class_name()
            Provisioner = provisioner
            ReclaimPolicy = reclaimPolicy|Delete
            VolumeBindingMode = volumeBindingMode|Immediate
            AllowVolumeExpansion = allowVolumeExpansion?false
            Age
        """,
    ),
    _kind(
        _STORAGE,
        storage.VolumeAttachment,
        "volumeattachments",
        namespaced=False,
        subresources=(STATUS,),
        strategy="strategies.volumeattachments.VolumeAttachmentStrategy",
        unconditional_update=False,
        status_metadata=False,
        returns_deleted=True,
        columns="""
            Name
            Attacher#string:name = spec.attacher
            PV = spec.source.persistentVolumeName|
            Node = spec.nodeName
            Attached#boolean = status.attached
            Age
        """,
    ),
    _kind(
        _STORAGE,
        storage.CSIDriver,
        "csidrivers",
        namespaced=False,
        strategy="strategies.csi.CSIDriverStrategy",
        unconditional_update=False,
        generation="late",
        returns_deleted=True,
        columns="""
            Name
            AttachRequired#boolean = spec.attachRequired?true
            PodInfoOnMount#boolean = spec.podInfoOnMount?false
            StorageCapacity#boolean = spec.storageCapacity?false
            TokenRequests = audiences(spec.tokenRequests)
            RequiresRepublish#boolean = spec.requiresRepublish?false
            Modes = joined(spec.volumeLifecycleModes)
            Age
        """,
    ),
    _kind(
        _STORAGE,
        storage.CSINode,
        "csinodes",
        namespaced=False,
        strategy="strategies.csi.CSINodeStrategy",
        unconditional_update=False,
        returns_deleted=True,
        columns="""
            Name
            Drivers#integer = count(spec.drivers)
            Age
        """,
    ),
    _kind(
        _STORAGE,
        storage.CSIStorageCapacity,
        "csistoragecapacities",
        strategy="strategies.csi.CSIStorageCapacityStrategy",
        unconditional_update=False,
        columns="""
            Name
            StorageClassName = storageClassName
            Capacity = capacity?<unset>
        """,
    ),
    _kind(
        _STORAGE,
        storage.VolumeAttributesClass,
        "volumeattributesclasses",
        "vac",
        namespaced=False,
        strategy="strategies.storageclasses.VolumeAttributesClassStrategy",
        returns_deleted=True,
        columns="""
            Name
            DriverName = driverName
            Age
        """,
    ),
)

_CLUSTER = (
    _kind(
        "coordination.k8s.io",
        coordination.Lease,
        "leases",
        strategy="strategies.leases.LeaseStrategy",
        unconditional_update=False,
        create_on_update=True,
        columns="""
            Name
            Holder = spec.holderIdentity|
            Age
        """,
    ),
    _kind(
        "events.k8s.io",
        events.Event,
        "events",
        "ev",
        strategy="strategies.events_k8s_io.EventsK8sIoStrategy",
        stored_as="events",
        create_on_update=True,
        selectable=selectable(  # in the stored form, which is that of v1
            *(f"regarding.{f}=involvedObject.{f}" for f in _REFERENCE),
            "reason",
            "reportingController=reportingComponent",
            "type",
        ),
        columns=f"""
            {_EVENT_TITLES} = events_k8s_io_event()
        """,
    ),
    _kind(_AUTHENTICATION, authentication.TokenReview, "tokenreviews", namespaced=False, verbs=CREATE),
    _kind(
        _AUTHENTICATION,
        authentication.SelfSubjectReview,
        "selfsubjectreviews",
        namespaced=False,
        verbs=CREATE,
    ),
    _kind(
        _AUTHORIZATION,
        authorization.SubjectAccessReview,
        "subjectaccessreviews",
        namespaced=False,
        verbs=CREATE,
    ),
    _kind(
        _AUTHORIZATION,
        authorization.SelfSubjectAccessReview,
        "selfsubjectaccessreviews",
        namespaced=False,
        verbs=CREATE,
    ),
    _kind(
        _AUTHORIZATION,
        authorization.SelfSubjectRulesReview,
        "selfsubjectrulesreviews",
        namespaced=False,
        verbs=CREATE,
    ),
    _kind(_AUTHORIZATION, authorization.LocalSubjectAccessReview, "localsubjectaccessreviews", verbs=CREATE),
    _kind(
        _RBAC,
        rbac.Role,
        "roles",
        strategy="strategies.roles.RoleStrategy",
        check_name=path_segment_problems,
        create_on_update=True,
    ),
    _kind(
        _RBAC,
        rbac.ClusterRole,
        "clusterroles",
        namespaced=False,
        strategy="strategies.roles.ClusterRoleStrategy",
        check_name=path_segment_problems,
        create_on_update=True,
    ),
    _kind(
        _RBAC,
        rbac.RoleBinding,
        "rolebindings",
        strategy="strategies.roles.RoleBindingStrategy",
        check_name=path_segment_problems,
        create_on_update=True,
        columns=_BINDING,
    ),
    _kind(
        _RBAC,
        rbac.ClusterRoleBinding,
        "clusterrolebindings",
        namespaced=False,
        strategy="strategies.roles.ClusterRoleBindingStrategy",
        check_name=path_segment_problems,
        create_on_update=True,
        columns=_BINDING,
    ),
    _kind(
        "certificates.k8s.io",
        certificates.CertificateSigningRequest,
        "certificatesigningrequests",
        "csr",
        namespaced=False,
        subresources=(Subresource("approval"), STATUS),
        strategy="strategies.certificatesigningrequests.CertificateSigningRequestStrategy",
        selectable=selectable("spec.signerName"),
        columns="""
            Name
            Age
            SignerName = spec.signerName|<none>
            Requestor = spec.username
            RequestedDuration = duration(spec.expirationSeconds)?<none>
            Condition = request_condition(status)
        """,
    ),
    _kind(
        "scheduling.k8s.io",
        scheduling.PriorityClass,
        "priorityclasses",
        "pc",
        namespaced=False,
        strategy="strategies.priorityclasses.PriorityClassStrategy",
        generation="counted",
        columns="""
            Name
            Value#integer = value
            Global-Default#boolean = globalDefault
            Age
            PreemptionPolicy = preemptionPolicy|
        """,
    ),
    _kind(
        "node.k8s.io",
        noderuntime.RuntimeClass,
        "runtimeclasses",
        namespaced=False,
        strategy="strategies.priorityclasses.RuntimeClassStrategy",
        unconditional_update=False,
        create_on_update=True,
        columns="""
            Name
            Handler = handler
            Age
        """,
    ),
    _kind(
        "discovery.k8s.io",
        discovery.EndpointSlice,
        "endpointslices",
        columns="""
            Name
            AddressType = addressType
            Ports = slice_ports(ports)
            Endpoints = slice_addresses(endpoints)
            Age
        """,
    ),
    # No component here allocates devices: schedulers and kubelets list none of them, and none can be created.
    _kind(
        _RESOURCE,
        resource.ResourceClaim,
        "resourceclaims",
        verbs=READ_AND_DELETE,
        subresources=(STATUS,),
        returns_deleted=True,
        columns="""
            Name
            State = resource_claim_state()
            Age
        """,
    ),
    _kind(
        _RESOURCE,
        resource.ResourceClaimTemplate,
        "resourceclaimtemplates",
        verbs=READ_AND_DELETE,
        returns_deleted=True,
        columns=_NAME_AND_AGE,
    ),
    _kind(
        _RESOURCE,
        resource.ResourceSlice,
        "resourceslices",
        namespaced=False,
        verbs=READ_AND_DELETE,
        returns_deleted=True,
        selectable=selectable("spec.nodeName", "spec.driver"),
        columns="""
            Name
            Node = spec.nodeName|<unset>
            Driver = spec.driver
            Pool = spec.pool.name
            Age
        """,
    ),
    _kind(
        _RESOURCE,
        resource.DeviceClass,
        "deviceclasses",
        namespaced=False,
        verbs=READ_AND_DELETE,
        returns_deleted=True,
        columns=_NAME_AND_AGE,
    ),
    _kind(
        "apiextensions.k8s.io",
        apiextensions.CustomResourceDefinition,
        "customresourcedefinitions",
        "crd",
        "crds",
        namespaced=False,
        categories=("api-extensions",),
        subresources=(STATUS,),
        strategy="crd.definition.strategy.DefinitionStrategy",
        unconditional_update=False,
        generation="counted",
        qualified_finalizers=False,
    ),
)

# Kinds that a server serves from the start: those that are only data, and those whose controllers exist.
ALL: tuple[Kind, ...] = (*_CORE, *_WORKLOADS, *_STORAGE_KINDS, *_CLUSTER)

# Objects that are posted to subresources and never stored.
SUBRESOURCE_KINDS: tuple[Kind, ...] = (
    _kind("policy", policy.Eviction, "evictions", verbs=CREATE),
    _kind("autoscaling", autoscaling.Scale, "scales", verbs=()),
    _kind(_AUTHENTICATION, authentication.TokenRequest, "tokenrequests", verbs=CREATE),
)


def _snapshot(type: type[Resource], plural: str, *short: str, **more: Any) -> Kind:
    return _kind(_SNAPSHOTS, type, plural, *short, **more)


def _group_snapshot(type: type[Resource], plural: str, *short: str, **more: Any) -> Kind:
    return _kind(_GROUP_SNAPSHOTS, type, plural, *short, version="v1beta2", **more)


# Kinds that our clients have types for, while a server knows them by their definitions, as custom resources.
CLIENT_KINDS: tuple[Kind, ...] = (
    _snapshot(snapshot.VolumeSnapshot, "volumesnapshots", "vs", subresources=(STATUS,)),
    _snapshot(
        snapshot.VolumeSnapshotContent,
        "volumesnapshotcontents",
        "vsc",
        "vscs",
        namespaced=False,
        subresources=(STATUS,),
    ),
    _snapshot(
        snapshot.VolumeSnapshotClass, "volumesnapshotclasses", "vsclass", "vsclasses", namespaced=False
    ),
    _group_snapshot(snapshot.VolumeGroupSnapshot, "volumegroupsnapshots", "vgs", subresources=(STATUS,)),
    _group_snapshot(
        snapshot.VolumeGroupSnapshotContent,
        "volumegroupsnapshotcontents",
        "vgsc",
        "vgscs",
        namespaced=False,
        subresources=(STATUS,),
    ),
    _group_snapshot(
        snapshot.VolumeGroupSnapshotClass,
        "volumegroupsnapshotclasses",
        "vgsclass",
        "vgsclasses",
        namespaced=False,
    ),
)

_BY_TYPE = {k.type: k for k in ALL + SUBRESOURCE_KINDS + CLIENT_KINDS}
_BY_KIND = {(k.api_version, k.kind): k for k in ALL + SUBRESOURCE_KINDS}
_BY_PATH = {(k.group, k.version, k.plural): k for k in ALL}


def of(type: type[Resource]) -> Kind:
    return _BY_TYPE[type]


def by_kind(api_version: str, kind: str) -> Kind | None:
    return _BY_KIND.get((api_version, kind))


def by_path(group: str, version: str, plural: str) -> Kind | None:
    return _BY_PATH.get((group, version, plural))


@cache
def define_metadata_only_type(
    group: str, version: str, kind: str, plural: str, *, namespaced: bool
) -> type[Resource]:
    """A type for a kind that has none here, so that clients can watch its objects: their metadata only."""
    made: type[Resource] = defstruct(kind, [], bases=(PartialObjectMetadata,), module=__name__)  # type: ignore[assignment]
    _BY_TYPE[made] = Kind(made, group, version, kind, plural, namespaced=namespaced)
    return made
