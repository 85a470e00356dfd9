"""The roles of people: everything, a namespace, what is open to all."""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.meta import LabelSelector
from volplane.api.rbac import AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule
from volplane.apiserver.auth.rbac.policy.words import (
    GROUP,
    HEALTH,
    READ,
    READ_WRITE,
    REVIEWS,
    WRITE,
    bound,
    cluster_role,
    groups,
    meta,
    paths,
    rule,
)
from volplane.apiserver.auth.well_known_users import ACCOUNTS, AUTHENTICATED, MASTERS, UNAUTHENTICATED

_PODS_OF = "pods/attach pods/proxy pods/exec pods/portforward"
_VERSION = ("/version", "/version/")


def _to(role: str) -> dict[str, str]:
    return {f"{GROUP}/aggregate-to-{role}": "true"}


def _aggregate(role: str, **labels: str) -> ClusterRole:
    chosen = LabelSelector(match_labels=_to(role))
    rule = AggregationRule(cluster_role_selectors=(chosen,))
    return ClusterRole(metadata=meta(role, **labels), aggregation_rule=rule)


def _view() -> Iterable[PolicyRule]:
    apps = "statefulsets statefulsets/status statefulsets/scale daemonsets daemonsets/status deployments"
    apps += " deployments/status deployments/scale replicasets replicasets/status replicasets/scale"
    old = "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses"
    old += " ingresses/status replicasets replicasets/scale replicasets/status replicationcontrollers/scale"
    yield rule(
        READ,
        "core",
        "pods replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status"
        " endpoints persistentvolumeclaims persistentvolumeclaims/status configmaps",
    )
    yield rule(
        READ,
        "core",
        "limitranges resourcequotas bindings pods/status resourcequotas/status namespaces/status"
        " replicationcontrollers/status pods/log",
    )
    yield rule(READ, "core", "namespaces")
    yield rule(READ, "core events.k8s.io", "events")
    yield rule(READ, "discovery.k8s.io", "endpointslices")
    yield rule(READ, "apps", f"controllerrevisions {apps}")
    yield rule(READ, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status")
    yield rule(READ, "batch", "jobs cronjobs cronjobs/status jobs/status")
    yield rule(READ, "extensions", f"{old} networkpolicies")
    yield rule(READ, "policy", "poddisruptionbudgets poddisruptionbudgets/status")
    yield rule(READ, "networking.k8s.io", "networkpolicies ingresses ingresses/status")
    yield rule(READ, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates")


def _edit() -> Iterable[PolicyRule]:
    yield rule(READ, "core", f"{_PODS_OF} secrets services/proxy")
    yield rule("impersonate", "core", "serviceaccounts")
    yield rule(WRITE, "core", f"pods {_PODS_OF}")
    yield rule("create", "core", "pods/eviction")
    yield rule(
        WRITE,
        "core",
        "replicationcontrollers replicationcontrollers/scale serviceaccounts services services/proxy"
        " persistentvolumeclaims configmaps secrets",
    )
    yield rule("create", "core", "serviceaccounts/token")
    yield rule(WRITE, "core events.k8s.io", "events")
    yield rule(
        WRITE,
        "apps",
        "statefulsets statefulsets/scale daemonsets deployments deployments/scale deployments/rollback"
        " replicasets replicasets/scale",
    )
    yield rule(WRITE, "autoscaling", "horizontalpodautoscalers")
    yield rule(WRITE, "batch", "jobs cronjobs")
    yield rule(
        WRITE,
        "extensions",
        "daemonsets deployments deployments/scale deployments/rollback ingresses replicasets"
        " replicasets/scale replicationcontrollers/scale networkpolicies",
    )
    yield rule(WRITE, "policy", "poddisruptionbudgets")
    yield rule(WRITE, "networking.k8s.io", "networkpolicies ingresses")
    yield rule(READ_WRITE, "coordination.k8s.io", "leases")
    yield rule(WRITE, "resource.k8s.io", "resourceclaims resourceclaimtemplates")


def cluster_roles() -> Iterable[ClusterRole]:
    yield cluster_role("cluster-admin", rule("*", "*", "*"), paths("*", verbs="*"))
    discovery = ("/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*")
    yield cluster_role("system:discovery", paths(*HEALTH, *_VERSION, *discovery))
    single = (f"{path}/*" for path in HEALTH)
    yield cluster_role(
        "system:monitoring",
        paths("/metrics", "/metrics/slis", *HEALTH, *single),
        rule("get", "core", "nodes/metrics"),
    )
    yield cluster_role(
        "system:basic-user",
        rule("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
        rule("create", "authentication.k8s.io", "selfsubjectreviews"),
    )
    yield cluster_role("system:public-info-viewer", paths(*HEALTH, *_VERSION))
    yield _aggregate("admin")
    yield _aggregate("edit", **_to("admin"))
    yield _aggregate("view", **_to("edit"))
    yield cluster_role(
        "system:aggregate-to-admin",
        rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
        rule(READ_WRITE, GROUP, "roles rolebindings"),
        **_to("admin"),
    )
    yield cluster_role("system:aggregate-to-edit", *_edit(), **_to("edit"))
    yield cluster_role("system:aggregate-to-view", *_view(), **_to("view"))
    yield cluster_role("system:auth-delegator", *REVIEWS)
    openid = ("/.well-known/openid-configuration", "/openid/v1/jwks")
    yield cluster_role(
        "system:service-account-issuer-discovery", paths(*openid, *(f"{path}/" for path in openid))
    )


def cluster_role_bindings() -> Iterable[ClusterRoleBinding]:
    yield bound("cluster-admin", *groups(MASTERS))
    yield bound("system:monitoring", *groups("system:monitoring"))
    yield bound("system:discovery", *groups(AUTHENTICATED))
    yield bound("system:basic-user", *groups(AUTHENTICATED))
    yield bound("system:public-info-viewer", *groups(AUTHENTICATED, UNAUTHENTICATED))
    yield bound("system:service-account-issuer-discovery", *groups(ACCOUNTS))
