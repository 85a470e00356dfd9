"""Kinds that nothing here acts on: validated from the published schema, stored, watched and printed.

Such a kind has a row only. Its type is defined from the published schema when it is first needed
(`api.data_types`), and creating an object answers with a warning that says what does not happen to it.
"""

from __future__ import annotations

from typing import Any

from volplane.api.kind import Kind, selectable
from volplane.api.kinds.shared import NAME_AND_AGE, STATUS
from volplane.api.name_validation import path_segment_problems

_STATUS = (STATUS,)
_NO_DEVICES = "no device is allocated"


def data_kind(message: str, names: str, inactive: str, *, version: str = "v1", **more: Any) -> Kind:
    """A row. `message`: the group and the kind in the published schema; `inactive`: what the warning says."""
    resource, *short = names.split()
    plural, _, group = resource.partition(".")
    return Kind(
        None,
        group,
        version,
        message.partition(".")[2],
        plural,
        message=message if version == "v1" else message.replace(".", f"/{version}.", 1),
        short_names=tuple(short),
        inactive=inactive,
        legacy_field_errors="selectable" in more,
        **more,
    )


def _cluster_kind(message: str, names: str, inactive: str, **more: Any) -> Kind:
    return data_kind(message, names, inactive, namespaced=False, **more)


_WEBHOOKS = """
    Name
    Webhooks#integer = count(webhooks)
    Age
"""
_POLICY_BINDING = """
    Name
    PolicyName = spec.policyName
    ParamRef = param_ref(spec.paramRef)
    Age
"""

KINDS = (
    _cluster_kind(
        "admissionregistration.MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "not called",
        categories=("api-extensions",),
        generation="counted",
        columns=_WEBHOOKS,
    ),
    _cluster_kind(
        "admissionregistration.ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "not called",
        categories=("api-extensions",),
        generation="counted",
        columns=_WEBHOOKS,
    ),
    _cluster_kind(
        "admissionregistration.ValidatingAdmissionPolicy",
        "validatingadmissionpolicies.admissionregistration.k8s.io",
        "not evaluated",
        categories=("api-extensions",),
        subresources=_STATUS,
        generation="counted",
        columns="""
            Name
            Validations#integer = count(spec.validations)?0
            ParamKind = param_kind(spec.paramKind)
            Age
        """,
    ),
    _cluster_kind(
        "admissionregistration.ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings.admissionregistration.k8s.io",
        "not evaluated",
        categories=("api-extensions",),
        generation="counted",
        columns=_POLICY_BINDING,
    ),
    _cluster_kind(
        "admissionregistration.MutatingAdmissionPolicy",
        "mutatingadmissionpolicies.admissionregistration.k8s.io",
        "not evaluated",
        version="v1beta1",
        categories=("api-extensions",),
        generation="counted",
        columns="""
            Name
            Mutations#integer = count(spec.mutations)?0
            ParamKind = param_kind(spec.paramKind)
            Age
        """,
    ),
    _cluster_kind(
        "admissionregistration.MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
        "not evaluated",
        version="v1beta1",
        categories=("api-extensions",),
        generation="counted",
        columns=_POLICY_BINDING,
    ),
    _cluster_kind(
        "apiregistration.APIService",
        "apiservices.apiregistration.k8s.io",
        "requests to its group are not forwarded",
        categories=("api-extensions",),
        subresources=_STATUS,
        generation="counted",
        columns="""
            Name
            Service = api_service(spec.service)
            Available = api_service_available(status.conditions)
            Age
        """,
    ),
    _cluster_kind(
        "apiserverinternal.StorageVersion",
        "storageversions.internal.apiserver.k8s.io",
        "not used",
        version="v1alpha1",
        subresources=_STATUS,
        columns="""
            Name
            CommonEncodingVersion = status.commonEncodingVersion?<unset>
            StorageVersions = storage_versions(status.storageVersions)
            Age
        """,
    ),
    data_kind(
        "autoscaling.HorizontalPodAutoscaler",
        "horizontalpodautoscalers.autoscaling hpa",
        "nothing is scaled",
        version="v2",
        categories=("all",),
        subresources=_STATUS,
        columns="""
            Name
            Reference = scale_target(spec.scaleTargetRef)
            Targets = metric_targets()
            MinPods = spec.minReplicas?<unset>
            MaxPods = spec.maxReplicas
            Replicas = status.currentReplicas?0
            Age
        """,
    ),
    data_kind(
        "autoscaling.HorizontalPodAutoscaler",
        "horizontalpodautoscalers.autoscaling hpa",
        "nothing is scaled",
        stored_as="horizontalpodautoscalers.autoscaling",
        strategy="strategies.autoscalers.AutoscalerStrategy",
        categories=("all",),
        subresources=_STATUS,
        columns="""
            Name
            Reference = scale_target(spec.scaleTargetRef)
            Targets = cpu_target()
            MinPods = spec.minReplicas?<unset>
            MaxPods = spec.maxReplicas
            Replicas = status.currentReplicas?0
            Age
        """,
    ),
    _cluster_kind(
        "certificates.ClusterTrustBundle",
        "clustertrustbundles.certificates.k8s.io",
        "not projected into volumes",
        version="v1beta1",
        check_name=path_segment_problems,
        selectable=selectable("spec.signerName"),
        columns="""
            Name
            SignerName = spec.signerName
        """,
    ),
    data_kind(
        "certificates.PodCertificateRequest",
        "podcertificaterequests.certificates.k8s.io",
        "not signed",
        version="v1beta1",
        subresources=_STATUS,
        selectable=selectable("spec.signerName", "spec.podName", "spec.nodeName"),
        columns="""
            Name
            PodName = spec.podName
            ServiceAccountName = spec.serviceAccountName
            NodeName = spec.nodeName
            SignerName = spec.signerName
            State = certificate_request_state(status.conditions)
            UnverifiedUserAnnotations = labels(spec.unverifiedUserAnnotations)?<none>
        """,
    ),
    data_kind(
        "coordination.LeaseCandidate",
        "leasecandidates.coordination.k8s.io",
        "no leader is chosen from it",
        version="v1beta1",
        create_on_update=True,
        columns="""
            Name
            LeaseName = spec.leaseName
            BinaryVersion = spec.binaryVersion
            EmulationVersion = spec.emulationVersion
            Age
        """,
    ),
    _cluster_kind(
        "flowcontrol.FlowSchema",
        "flowschemas.flowcontrol.apiserver.k8s.io",
        "requests are not queued by it",
        subresources=_STATUS,
        generation="counted",
        columns="""
            Name
            PriorityLevel = spec.priorityLevelConfiguration.name
            MatchingPrecedence = spec.matchingPrecedence
            DistinguisherMethod = spec.distinguisherMethod.type|<none>
            Age
            MissingPL = missing_priority_level(status.conditions)
        """,
    ),
    _cluster_kind(
        "flowcontrol.PriorityLevelConfiguration",
        "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
        "requests are not queued by it",
        subresources=_STATUS,
        generation="counted",
        columns="""
            Name
            Type = spec.type
            NominalConcurrencyShares = spec.limited.nominalConcurrencyShares?<none>
            Queues = spec.limited.limitResponse.queuing.queues?<none>
            HandSize = spec.limited.limitResponse.queuing.handSize?<none>
            QueueLengthLimit = spec.limited.limitResponse.queuing.queueLengthLimit?<none>
            Age
        """,
    ),
    data_kind(
        "networking.Ingress",
        "ingresses.networking.k8s.io ing",
        "no traffic is routed",
        subresources=_STATUS,
        generation="counted",
        columns="""
            Name
            Class = spec.ingressClassName?<none>
            Hosts = ingress_hosts(spec.rules)
            Address = ingress_addresses(status.loadBalancer.ingress)|
            Ports = ingress_ports(spec.tls)
            Age
        """,
    ),
    _cluster_kind(
        "networking.IngressClass",
        "ingressclasses.networking.k8s.io",
        "no controller implements it",
        generation="counted",
        columns="""
            Name
            Controller = spec.controller
            Parameters = ingress_class_parameters(spec.parameters)
            Age
        """,
    ),
    data_kind(
        "networking.NetworkPolicy",
        "networkpolicies.networking.k8s.io netpol",
        "traffic is not filtered",
        generation="counted",
        columns="""
            Name
            Pod-Selector = selector(spec.podSelector)
            Age
        """,
    ),
    _cluster_kind(
        "networking.ServiceCIDR",
        "servicecidrs.networking.k8s.io",
        "no address is allocated from it",
        subresources=_STATUS,
        generation="counted",
        columns="""
            Name
            CIDRs = join_words(spec.cidrs)?
            Age
        """,
    ),
    _cluster_kind(
        "networking.IPAddress",
        "ipaddresses.networking.k8s.io ip",
        "no address is reserved by it",
        check_name=path_segment_problems,
        generation="counted",
        selectable=selectable("spec.parentRef.group", "spec.parentRef.name"),
        columns="""
            Name
            ParentRef = parent_ref(spec.parentRef)
        """,
    ),
    data_kind(
        "resource.ResourceClaim",
        "resourceclaims.resource.k8s.io",
        _NO_DEVICES,
        subresources=_STATUS,
        returns_deleted=True,
        columns="""
            Name
            State = resource_claim_state()
            Age
        """,
    ),
    data_kind(
        "resource.ResourceClaimTemplate",
        "resourceclaimtemplates.resource.k8s.io",
        _NO_DEVICES,
        returns_deleted=True,
        columns=NAME_AND_AGE,
    ),
    _cluster_kind(
        "resource.ResourceSlice",
        "resourceslices.resource.k8s.io",
        _NO_DEVICES,
        returns_deleted=True,
        generation="counted",
        selectable=selectable("spec.nodeName", "spec.driver"),
        columns="""
            Name
            Node = spec.nodeName|
            Driver = spec.driver
            Pool = spec.pool.name
            Age
        """,
    ),
    _cluster_kind(
        "resource.DeviceClass",
        "deviceclasses.resource.k8s.io",
        _NO_DEVICES,
        returns_deleted=True,
        generation="counted",
        columns=NAME_AND_AGE,
    ),
    _cluster_kind(
        "resource.DeviceTaintRule",
        "devicetaintrules.resource.k8s.io",
        _NO_DEVICES,
        version="v1alpha3",
        subresources=_STATUS,
        returns_deleted=True,
        generation="counted",
        columns="""
            Name
            Key = spec.taint.key
            Value = spec.taint.value|
            Effect = spec.taint.effect
            TimeAdded = age(spec.taint.timeAdded)|
            Age
        """,
    ),
    data_kind(
        "scheduling.Workload",
        "workloads.scheduling.k8s.io",
        "its pods are scheduled one by one",
        version="v1alpha1",
        generation="counted",
        columns=NAME_AND_AGE,
    ),
    _cluster_kind(
        "storagemigration.StorageVersionMigration",
        "storageversionmigrations.storagemigration.k8s.io",
        "no object is rewritten",
        version="v1beta1",
        subresources=_STATUS,
        generation="counted",
        columns="""
            Name
            Resource = group_resource(spec.resource)
            Status = migration_status(status.conditions)
        """,
    ),
)
