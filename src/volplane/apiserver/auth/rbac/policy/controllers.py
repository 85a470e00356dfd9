"""The roles of the controllers: each holds what its work needs, and its service account has it."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.api.rbac import ClusterRole, ClusterRoleBinding, PolicyRule
from volplane.apiserver.auth.rbac.policy.words import EVENTS, READ, accounts, bound, cluster_role, rule

PREFIX = "system:controller:"

_CLAIMS, _VOLUMES = "persistentvolumeclaims", "persistentvolumes"
_STORAGE = "storage.k8s.io"
_SIGNERS = " ".join(
    f"kubernetes.io/{name}"
    for name in (
        "legacy-unknown",
        "kube-apiserver-client",
        "kube-apiserver-client-kubelet",
        "kubelet-serving",
    )
)

RULES: Mapping[str, tuple[PolicyRule, ...]] = {
    # Volumes
    "attachdetach-controller": (
        rule("list watch", "core", f"{_VOLUMES} {_CLAIMS}"),
        rule(READ, "core", "nodes"),
        rule("patch update", "core", "nodes/status"),
        rule("list watch", "core", "pods"),
        EVENTS,
        rule("get create delete list watch", _STORAGE, "volumeattachments"),
        rule(READ, _STORAGE, "csidrivers"),
        rule(READ, _STORAGE, "csinodes"),
    ),
    "ephemeral-volume-controller": (
        rule(READ, "core", "pods"),
        rule("update", "core", "pods/finalizers"),
        rule("get list watch create", "core", _CLAIMS),
        EVENTS,
    ),
    "expand-controller": (
        rule("get list watch update patch", "core", _VOLUMES),
        rule("update patch", "core", f"{_CLAIMS}/status"),
        rule(READ, "core", _CLAIMS),
        EVENTS,
        rule("get", "core", "services"),
    ),
    "persistent-volume-binder": (
        rule("get list watch update create delete", "core", _VOLUMES),
        rule("update", "core", f"{_VOLUMES}/status"),
        rule("get list watch update", "core", _CLAIMS),
        rule("update", "core", f"{_CLAIMS}/status"),
        rule("list watch get create delete", "core", "pods"),
        rule(READ, _STORAGE, "storageclasses"),
        rule("list watch", "core", "nodes"),
        EVENTS,
        rule("watch", "core", "events"),
        rule("get", "core", "services"),
    ),
    "pv-protection-controller": (rule("get list watch update", "core", _VOLUMES), EVENTS),
    "pvc-protection-controller": (
        rule("get list watch update", "core", _CLAIMS),
        rule(READ, "core", "pods"),
        EVENTS,
    ),
    "volumeattributesclass-protection-controller": (
        rule(READ, "core", _CLAIMS),
        rule(READ, "core", _VOLUMES),
        rule("get list watch update", _STORAGE, "volumeattributesclasses"),
        EVENTS,
    ),
    "selinux-warning-controller": (
        EVENTS,
        rule(READ, "core", _VOLUMES),
        rule(READ, "core", _CLAIMS),
        rule(READ, "core", "pods"),
        rule(READ, _STORAGE, "csidrivers"),
    ),
    # Workloads
    "cronjob-controller": (
        rule("get list watch update", "batch", "cronjobs"),
        rule("get list watch create update delete patch", "batch", "jobs"),
        rule("update", "batch", "cronjobs/status"),
        rule("update", "batch", "cronjobs/finalizers"),
        rule("list watch delete", "core", "pods"),
        EVENTS,
    ),
    "daemon-set-controller": (
        rule(READ, "extensions apps", "daemonsets"),
        rule("update", "extensions apps", "daemonsets/status"),
        rule("update", "extensions apps", "daemonsets/finalizers"),
        rule("list watch", "core", "nodes"),
        rule("list watch create delete patch", "core", "pods"),
        rule("create", "core", "pods/binding"),
        rule("get list watch create delete update patch", "apps", "controllerrevisions"),
        EVENTS,
    ),
    "deployment-controller": (
        rule("get list watch update", "extensions apps", "deployments"),
        rule("update", "extensions apps", "deployments/status"),
        rule("update", "extensions apps", "deployments/finalizers"),
        rule("get list watch create update patch delete", "apps extensions", "replicasets"),
        rule("get list watch update", "core", "pods"),
        EVENTS,
    ),
    "disruption-controller": (
        rule(READ, "extensions apps", "deployments"),
        rule(READ, "apps extensions", "replicasets"),
        rule(READ, "core", "replicationcontrollers"),
        rule(READ, "policy", "poddisruptionbudgets"),
        rule(READ, "apps", "statefulsets"),
        rule("update", "policy", "poddisruptionbudgets/status"),
        rule("patch update", "core", "pods/status"),
        rule("get", "*", "*/scale"),
        EVENTS,
    ),
    "horizontal-pod-autoscaler": (
        rule(READ, "autoscaling", "horizontalpodautoscalers"),
        rule("update", "autoscaling", "horizontalpodautoscalers/status"),
        rule("get update", "*", "*/scale"),
        rule("list watch", "core", "pods"),
        rule("list watch", "metrics.k8s.io", "pods"),
        rule(READ, "custom.metrics.k8s.io", "*"),
        rule(READ, "external.metrics.k8s.io", "*"),
        EVENTS,
    ),
    "job-controller": (
        rule("get list watch update patch", "batch", "jobs"),
        rule("update", "batch", "jobs/status"),
        rule("update", "batch", "jobs/finalizers"),
        rule("list watch create delete patch", "core", "pods"),
        EVENTS,
    ),
    "replicaset-controller": (
        rule("get list watch update", "apps extensions", "replicasets"),
        rule("update", "apps extensions", "replicasets/status"),
        rule("update", "apps extensions", "replicasets/finalizers"),
        rule("list watch patch create delete", "core", "pods"),
        EVENTS,
    ),
    "replication-controller": (
        rule("get list watch update", "core", "replicationcontrollers"),
        rule("update", "core", "replicationcontrollers/status"),
        rule("update", "core", "replicationcontrollers/finalizers"),
        rule("list watch patch create delete", "core", "pods"),
        EVENTS,
    ),
    "resource-claim-controller": (
        rule(READ, "core", "pods"),
        rule("update", "core", "pods/finalizers"),
        rule("get list watch create delete", "resource.k8s.io", "resourceclaims"),
        rule("update patch", "resource.k8s.io", "resourceclaims resourceclaims/status"),
        rule("update patch", "core", "pods/status"),
        EVENTS,
    ),
    "statefulset-controller": (
        rule("list watch", "core", "pods"),
        rule(READ, "apps", "statefulsets"),
        rule("update", "apps", "statefulsets/status"),
        rule("update", "apps", "statefulsets/finalizers"),
        rule("get create delete update patch", "core", "pods"),
        rule("get create delete update patch list watch", "apps", "controllerrevisions"),
        rule("get create list watch", "core", _CLAIMS),
        rule("update delete", "core", _CLAIMS),
        rule("update", "core", "pods/finalizers"),
        EVENTS,
    ),
    "ttl-after-finished-controller": (rule("get list watch delete", "batch", "jobs"), EVENTS),
    # Nodes
    "node-controller": (
        rule("get list watch update delete patch", "core", "nodes"),
        rule("patch update", "core", "nodes/status"),
        rule("patch update", "core", "pods/status"),
        rule("list watch get delete", "core", "pods"),
        EVENTS,
    ),
    "pod-garbage-collector": (
        rule("list watch delete", "core", "pods"),
        rule(READ, "core", "nodes"),
        rule("patch", "core", "pods/status"),
    ),
    "route-controller": (
        rule("list watch", "core", "nodes"),
        rule("patch", "core", "nodes/status"),
        EVENTS,
    ),
    "ttl-controller": (rule("update patch list watch", "core", "nodes"), EVENTS),
    # Networks
    "endpoint-controller": (
        rule(READ, "core", "services pods"),
        rule("get list watch create update delete", "core", "endpoints"),
        rule("create", "core", "endpoints/restricted"),
        EVENTS,
    ),
    "endpointslice-controller": (
        rule(READ, "core", "services pods nodes"),
        rule("update", "core", "services/finalizers"),
        rule("get list watch create update delete", "discovery.k8s.io", "endpointslices"),
        EVENTS,
    ),
    "endpointslicemirroring-controller": (
        rule(READ, "core", "services endpoints"),
        rule("update", "core", "services/finalizers"),
        rule("update", "core", "endpoints/finalizers"),
        rule("get list watch create update delete", "discovery.k8s.io", "endpointslices"),
        EVENTS,
    ),
    "service-cidrs-controller": (
        rule("get list watch patch update", "networking.k8s.io", "servicecidrs"),
        rule("patch update", "networking.k8s.io", "servicecidrs/finalizers"),
        rule("patch update", "networking.k8s.io", "servicecidrs/status"),
        rule(READ, "networking.k8s.io", "ipaddresses"),
        EVENTS,
    ),
    "service-controller": (
        rule(READ, "core", "services"),
        rule("patch update", "core", "services/status"),
        rule("list watch", "core", "nodes"),
        EVENTS,
    ),
    # Everything else
    "certificate-controller": (
        rule("get list watch delete", "certificates.k8s.io", "certificatesigningrequests"),
        rule(
            "update",
            "certificates.k8s.io",
            "certificatesigningrequests/status certificatesigningrequests/approval",
        ),
        rule(
            "approve", "certificates.k8s.io", "signers", names="kubernetes.io/kube-apiserver-client-kubelet"
        ),
        rule("sign", "certificates.k8s.io", "signers", names=_SIGNERS),
        rule("create", "authorization.k8s.io", "subjectaccessreviews"),
        EVENTS,
    ),
    "clusterrole-aggregation-controller": (
        rule("escalate get list watch update patch", "rbac.authorization.k8s.io", "clusterroles"),
    ),
    "generic-garbage-collector": (rule("get list watch patch update delete", "*", "*"), EVENTS),
    "legacy-service-account-token-cleaner": (
        rule("get", "core", "configmaps", names="kube-apiserver-legacy-service-account-token-tracking"),
        rule("patch delete", "core", "secrets"),
    ),
    "namespace-controller": (
        rule("get list watch delete", "core", "namespaces"),
        rule("update", "core", "namespaces/finalize namespaces/status"),
        rule("get list watch delete deletecollection", "*", "*"),
    ),
    "resourcequota-controller": (
        rule("list watch", "*", "*"),
        rule("update", "core", "resourcequotas/status"),
        EVENTS,
    ),
    "root-ca-cert-publisher": (rule("create update", "core", "configmaps"), EVENTS),
    "service-account-controller": (rule("create", "core", "serviceaccounts"), EVENTS),
    "validatingadmissionpolicy-status-controller": (
        rule(READ, "admissionregistration.k8s.io", "validatingadmissionpolicies"),
        rule("get patch update", "admissionregistration.k8s.io", "validatingadmissionpolicies/status"),
        EVENTS,
    ),
}


def cluster_roles() -> list[ClusterRole]:
    return [cluster_role(f"{PREFIX}{name}", *rules) for name, rules in RULES.items()]


def cluster_role_bindings() -> list[ClusterRoleBinding]:
    return [bound(f"{PREFIX}{name}", *accounts(name)) for name in RULES]
