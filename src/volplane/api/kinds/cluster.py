"""The kinds of the other groups: leases, events, reviews, RBAC, certificates, classes."""

from __future__ import annotations

from volplane.api import (
    apiextensions,
    authentication,
    authorization,
    certificates,
    coordination,
    discovery,
    events,
    noderuntime,
    rbac,
    scheduling,
)
from volplane.api.kind import Subresource, selectable
from volplane.api.kinds.shared import (
    CREATE,
    EVENT_REFERENCE,
    EVENT_TITLES,
    STATUS,
    builtin_kind,
)
from volplane.api.name_validation import path_segment_problems

_BINDING_COLUMNS = """
    Name
    Role = role(roleRef)
    Age
    Users* & Groups* & ServiceAccounts* = subjects(subjects)
"""

KINDS = (
    builtin_kind(
        coordination.Lease,
        "leases.coordination.k8s.io",
        strategy="strategies.leases.LeaseStrategy",
        unconditional_update=False,
        create_on_update=True,
        columns="""
            Name
            Holder = spec.holderIdentity|
            Age
        """,
    ),
    builtin_kind(
        events.Event,
        "events.events.k8s.io ev",
        strategy="strategies.events_k8s_io.EventsK8sIoStrategy",
        stored_as="events",
        create_on_update=True,
        selectable=selectable(  # in the stored form, which is that of v1
            *(f"regarding.{f}=involvedObject.{f}" for f in EVENT_REFERENCE),
            "reason",
            "reportingController=reportingComponent",
            "type",
        ),
        columns=f"""
            {EVENT_TITLES} = events_k8s_io_event()
        """,
    ),
    builtin_kind(
        authentication.TokenReview, "tokenreviews.authentication.k8s.io", namespaced=False, verbs=CREATE
    ),
    builtin_kind(
        authentication.SelfSubjectReview,
        "selfsubjectreviews.authentication.k8s.io",
        namespaced=False,
        verbs=CREATE,
    ),
    builtin_kind(
        authorization.SubjectAccessReview,
        "subjectaccessreviews.authorization.k8s.io",
        namespaced=False,
        verbs=CREATE,
    ),
    builtin_kind(
        authorization.SelfSubjectAccessReview,
        "selfsubjectaccessreviews.authorization.k8s.io",
        namespaced=False,
        verbs=CREATE,
    ),
    builtin_kind(
        authorization.SelfSubjectRulesReview,
        "selfsubjectrulesreviews.authorization.k8s.io",
        namespaced=False,
        verbs=CREATE,
    ),
    builtin_kind(
        authorization.LocalSubjectAccessReview, "localsubjectaccessreviews.authorization.k8s.io", verbs=CREATE
    ),
    builtin_kind(
        rbac.Role,
        "roles.rbac.authorization.k8s.io",
        strategy="strategies.roles.RoleStrategy",
        check_name=path_segment_problems,
        create_on_update=True,
    ),
    builtin_kind(
        rbac.ClusterRole,
        "clusterroles.rbac.authorization.k8s.io",
        namespaced=False,
        strategy="strategies.roles.ClusterRoleStrategy",
        check_name=path_segment_problems,
        create_on_update=True,
    ),
    builtin_kind(
        rbac.RoleBinding,
        "rolebindings.rbac.authorization.k8s.io",
        strategy="strategies.roles.RoleBindingStrategy",
        check_name=path_segment_problems,
        create_on_update=True,
        columns=_BINDING_COLUMNS,
    ),
    builtin_kind(
        rbac.ClusterRoleBinding,
        "clusterrolebindings.rbac.authorization.k8s.io",
        namespaced=False,
        strategy="strategies.roles.ClusterRoleBindingStrategy",
        check_name=path_segment_problems,
        create_on_update=True,
        columns=_BINDING_COLUMNS,
    ),
    builtin_kind(
        certificates.CertificateSigningRequest,
        "certificatesigningrequests.certificates.k8s.io csr",
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
    builtin_kind(
        scheduling.PriorityClass,
        "priorityclasses.scheduling.k8s.io pc",
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
    builtin_kind(
        noderuntime.RuntimeClass,
        "runtimeclasses.node.k8s.io",
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
    builtin_kind(
        discovery.EndpointSlice,
        "endpointslices.discovery.k8s.io",
        columns="""
            Name
            AddressType = addressType
            Ports = slice_ports(ports)
            Endpoints = slice_addresses(endpoints)
            Age
        """,
    ),
    builtin_kind(
        apiextensions.CustomResourceDefinition,
        "customresourcedefinitions.apiextensions.k8s.io crd crds",
        namespaced=False,
        categories=("api-extensions",),
        subresources=(STATUS,),
        strategy="crd.definition.strategy.DefinitionStrategy",
        unconditional_update=False,
        generation="counted",
        qualified_finalizers=False,
    ),
)
