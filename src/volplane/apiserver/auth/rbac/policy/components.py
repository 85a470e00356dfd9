"""The roles of the cluster's own components: nodes, scheduler, controller manager and their neighbours."""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.rbac import ClusterRole, ClusterRoleBinding, PolicyRule
from volplane.apiserver.auth.rbac.policy.words import (
    EVENTS,
    MANAGER,
    PROXY,
    READ,
    READ_UPDATE,
    READ_WRITE,
    REVIEWS,
    SCHEDULER,
    accounts,
    bound,
    cluster_role,
    rule,
    users,
)

# What a node may do, as far as that does not depend on what runs on it: see `auth.nodes`.
NODE_RULES = (
    rule("create", "authentication.k8s.io", "tokenreviews"),
    rule("create", "authorization.k8s.io", "subjectaccessreviews localsubjectaccessreviews"),
    rule(READ, "core", "services"),
    rule("create get list watch", "core", "nodes"),
    rule("update patch", "core", "nodes/status"),
    rule("update patch", "core", "nodes"),
    EVENTS,
    rule(READ, "core", "pods"),
    rule("create delete", "core", "pods"),
    rule("update patch", "core", "pods/status"),
    rule("create", "core", "pods/eviction"),
    rule(READ, "core", "secrets configmaps"),
    rule("get", "core", "persistentvolumeclaims persistentvolumes"),
    rule("get", "core", "endpoints"),
    rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
    rule("get create update patch delete", "coordination.k8s.io", "leases"),
    rule("get", "storage.k8s.io", "volumeattachments"),
    rule("create", "core", "serviceaccounts/token"),
    rule("get update patch", "core", "persistentvolumeclaims/status"),
    rule(READ, "storage.k8s.io", "csidrivers"),
    rule("get create update patch delete", "storage.k8s.io", "csinodes"),
    rule(READ, "node.k8s.io", "runtimeclasses"),
    rule("get", "resource.k8s.io", "resourceclaims"),
    rule("deletecollection", "resource.k8s.io", "resourceslices"),
    rule("get", "core", "serviceaccounts"),
)


def cluster_roles() -> Iterable[ClusterRole]:
    yield cluster_role("system:node", *NODE_RULES)
    yield cluster_role(
        "system:node-problem-detector",
        rule("get", "core", "nodes"),
        rule("patch", "core", "nodes/status"),
        EVENTS,
    )
    yield cluster_role(
        "system:node-proxier",
        rule("list watch", "core", "services endpoints"),
        rule(READ, "core", "nodes"),
        EVENTS,
        rule("list watch", "networking.k8s.io", "servicecidrs"),
        rule("list watch", "discovery.k8s.io", "endpointslices"),
    )
    kubelet = "nodes/proxy nodes/metrics nodes/stats nodes/log"
    yield cluster_role(
        "system:kubelet-api-admin",
        rule(READ, "core", "nodes"),
        rule("proxy", "core", "nodes"),
        rule("*", "core", kubelet),
        rule("*", "core", "nodes/pods nodes/healthz nodes/configz"),
    )
    yield cluster_role("system:kube-aggregator", rule(READ, "core", "services endpoints"))
    yield cluster_role("system:kube-dns", rule("list watch", "core", "endpoints services"))
    yield cluster_role(
        "system:heapster",
        rule(READ, "core", "events pods nodes namespaces"),
        rule(READ, "extensions", "deployments"),
    )
    yield cluster_role(MANAGER, *_manager())
    yield cluster_role(SCHEDULER, *_scheduler())
    yield cluster_role(
        "system:persistent-volume-provisioner",
        rule("get list watch create delete", "core", "persistentvolumes"),
        rule("get list watch update", "core", "persistentvolumeclaims"),
        rule(READ, "storage.k8s.io", "storageclasses"),
        rule("watch", "core", "events"),
        EVENTS,
    )
    yield cluster_role(
        "system:volume-scheduler",
        rule(READ_UPDATE, "core", "persistentvolumes"),
        rule(READ, "storage.k8s.io", "storageclasses"),
        rule(READ_UPDATE, "core", "persistentvolumeclaims"),
    )


def _manager() -> Iterable[PolicyRule]:
    yield EVENTS
    yield rule("create", "coordination.k8s.io", "leases")
    yield rule("get update", "coordination.k8s.io", "leases", names="kube-controller-manager")
    yield rule("create", "core", "secrets serviceaccounts")
    yield rule("delete", "core", "secrets")
    yield rule("get", "core", "namespaces secrets serviceaccounts configmaps")
    yield rule("update", "core", "secrets serviceaccounts")
    yield from REVIEWS
    yield rule("list watch", "*", "*")
    yield rule("create", "core", "serviceaccounts/token")


def _scheduler() -> Iterable[PolicyRule]:
    yield EVENTS
    yield rule("create", "coordination.k8s.io", "leases")
    yield rule("get update list watch", "coordination.k8s.io", "leases", names="kube-scheduler")
    yield rule(READ_WRITE, "coordination.k8s.io", "leasecandidates")
    yield rule(READ, "core", "nodes")
    yield rule("get list watch delete", "core", "pods")
    yield rule("create", "core", "pods/binding bindings")
    yield rule("patch update", "core", "pods/status")
    yield rule(READ, "core", "services replicationcontrollers")
    yield rule(READ, "apps extensions", "replicasets")
    yield rule(READ, "apps", "statefulsets")
    yield rule(READ, "policy", "poddisruptionbudgets")
    yield rule(READ, "core", "persistentvolumeclaims persistentvolumes")
    yield from REVIEWS
    yield rule(READ, "storage.k8s.io", "csinodes")
    yield rule(READ, "storage.k8s.io", "volumeattachments")
    yield rule(READ, "core", "namespaces")
    yield rule(READ, "storage.k8s.io", "csidrivers")
    yield rule(READ, "storage.k8s.io", "csistoragecapacities")
    yield rule(READ, "resource.k8s.io", "deviceclasses")
    yield rule(READ_UPDATE, "resource.k8s.io", "resourceclaims")
    yield rule(READ_UPDATE, "resource.k8s.io", "resourceclaims/status")
    yield rule("update", "core", "pods/finalizers")
    yield rule(READ, "resource.k8s.io", "resourceslices")


_REQUESTS = "system:certificates.k8s.io"


def certificate_roles() -> Iterable[ClusterRole]:
    group, requests = "certificates.k8s.io", "certificatesigningrequests"
    yield cluster_role("system:node-bootstrapper", rule("create get list watch", group, requests))
    for client in ("nodeclient", "selfnodeclient"):
        yield cluster_role(f"{_REQUESTS}:{requests}:{client}", rule("create", group, f"{requests}/{client}"))
    for role, signer in (
        ("legacy-unknown-approver", "legacy-unknown"),
        ("kubelet-serving-approver", "kubelet-serving"),
        ("kube-apiserver-client-approver", "kube-apiserver-client"),
        ("kube-apiserver-client-kubelet-approver", "kube-apiserver-client-kubelet"),
    ):
        signed = rule("approve", group, "signers", names=f"kubernetes.io/{signer}")
        yield cluster_role(f"{_REQUESTS}:{role}", signed)


def cluster_role_bindings() -> Iterable[ClusterRoleBinding]:
    yield bound("system:node-proxier", *users(PROXY))
    yield bound(MANAGER, *users(MANAGER))
    yield bound("system:kube-dns", *accounts("kube-dns"))
    yield bound(SCHEDULER, *users(SCHEDULER))
    yield bound("system:volume-scheduler", *users(SCHEDULER))
    yield bound("system:node")  # nobody: what runs on a node decides
