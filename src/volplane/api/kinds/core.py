"""The kinds of core/v1."""

from __future__ import annotations

from volplane.api import core
from volplane.api.kind import Subresource, selectable
from volplane.api.kinds.shared import (
    CONNECT,
    CONTAINERS,
    CREATE,
    CRUD,
    EVENT_REFERENCE,
    EVENT_TITLES,
    NAME_AND_AGE,
    PROXY,
    REPLICAS,
    SCALE,
    STATUS,
    builtin_kind,
)
from volplane.api.name_validation import label_problems, service_problems

KINDS = (
    builtin_kind(
        core.Pod,
        "pods po",
        categories=("all",),
        subresources=(
            Subresource("attach", CONNECT, kind="PodAttachOptions"),
            Subresource("binding", CREATE, kind="Binding"),
            Subresource("ephemeralcontainers"),
            Subresource("eviction", CREATE, kind="Eviction", group="policy", version="v1"),
            Subresource("exec", CONNECT, kind="PodExecOptions"),
            Subresource("log", ("get",)),
            Subresource("portforward", CONNECT, kind="PodPortForwardOptions"),
            Subresource("proxy", PROXY, kind="PodProxyOptions"),
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
    builtin_kind(
        core.PersistentVolumeClaim,
        "persistentvolumeclaims pvc",
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
    builtin_kind(
        core.PersistentVolume,
        "persistentvolumes pv",
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
    builtin_kind(
        core.Node,
        "nodes no",
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
    builtin_kind(
        core.Namespace,
        "namespaces ns",
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
    builtin_kind(
        core.Event,
        "events ev",
        strategy="strategies.events.EventStrategy",
        create_on_update=True,
        selectable=selectable(
            *(f"involvedObject.{f}" for f in EVENT_REFERENCE),
            "reason",
            "reportingComponent",
            "source=source.component",
            "type",
        ),
        columns=f"""
            {EVENT_TITLES} = event()
        """,
    ),
    builtin_kind(
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
    builtin_kind(
        core.ConfigMap,
        "configmaps cm",
        strategy="strategies.secrets_configmaps.ConfigMapStrategy",
        columns="""
            Name
            Data = config_map_keys()
            Age
        """,
    ),
    builtin_kind(
        core.ServiceAccount,
        "serviceaccounts sa",
        subresources=(
            Subresource("token", CREATE, kind="TokenRequest", group="authentication.k8s.io", version="v1"),
        ),
        returns_deleted=True,
        columns=NAME_AND_AGE,
    ),
    builtin_kind(
        core.Service,
        "services svc",
        categories=("all",),
        subresources=(Subresource("proxy", PROXY, kind="ServiceProxyOptions"), STATUS),
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
    builtin_kind(
        core.Endpoints,
        "endpoints ep",
        create_on_update=True,
        warning="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
        columns="""
            Name
            Endpoints = endpoint_addresses(subsets)
            Age
        """,
    ),
    builtin_kind(
        core.LimitRange,
        "limitranges limits",
        strategy="strategies.limitranges.LimitRangeStrategy",
        create_on_update=True,
    ),
    builtin_kind(
        core.ResourceQuota,
        "resourcequotas quota",
        subresources=(STATUS,),
        strategy="strategies.resourcequotas.ResourceQuotaStrategy",
        returns_deleted=True,
        columns="""
            Name
            Request & Limit = quota_usage(status)
            Age
        """,
    ),
    builtin_kind(
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
    builtin_kind(
        core.ReplicationController,
        "replicationcontrollers rc",
        categories=("all",),
        subresources=(SCALE, STATUS),
        strategy="strategies.workloads.ReplicationControllerStrategy",
        generation="counted",
        propagation="Orphan",
        columns=f"""
            Name
            Desired#integer = spec.replicas?0
            {REPLICAS}
            {CONTAINERS}
            Selector* = labels(spec.selector)
        """,
    ),
    builtin_kind(
        core.ComponentStatus,
        "componentstatuses cs",
        namespaced=False,
        verbs=("get", "list"),
        columns="""
            Name
            Status & Message & Error = component_health(conditions)
        """,
    ),
    builtin_kind(core.Binding, "bindings", verbs=CREATE),
)
