"""The words in which the bootstrap roles are written."""

from __future__ import annotations

from volplane.api.meta import ObjectMeta
from volplane.api.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject

GROUP = "rbac.authorization.k8s.io"
AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
ANNOTATIONS = {AUTOUPDATE: "true"}

READ = "get list watch"
WRITE = "create update patch delete deletecollection"
READ_WRITE = f"{READ} {WRITE}"
READ_UPDATE = f"{READ} update patch"
SYSTEM_SPACE, PUBLIC_SPACE = "kube-system", "kube-public"
MANAGER, SCHEDULER, PROXY = "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"


def rule(verbs: str, groups: str, resources: str, *, names: str = "") -> PolicyRule:
    """Words with spaces between; the group `core` is the one without a name."""
    listed = sorted("" if group == "core" else group for group in groups.split())
    return PolicyRule(
        verbs=_sorted(verbs),
        api_groups=tuple(listed),
        resources=_sorted(resources),
        resource_names=_sorted(names),
    )


def paths(*urls: str, verbs: str = "get") -> PolicyRule:
    return PolicyRule(verbs=_sorted(verbs), non_resource_urls=tuple(sorted(urls)))


def _sorted(words: str) -> tuple[str, ...]:
    return tuple(sorted(words.split()))


def meta(name: str, namespace: str = "", **labels: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace=namespace, labels={**LABELS, **labels}, annotations=ANNOTATIONS)


def cluster_role(name: str, *rules: PolicyRule, **labels: str) -> ClusterRole:
    return ClusterRole(metadata=meta(name, **labels), rules=rules)


def users(*names: str) -> tuple[Subject, ...]:
    return tuple(Subject(kind="User", api_group=GROUP, name=name) for name in names)


def groups(*names: str) -> tuple[Subject, ...]:
    return tuple(Subject(kind="Group", api_group=GROUP, name=name) for name in names)


def accounts(*names: str) -> tuple[Subject, ...]:
    return tuple(Subject(kind="ServiceAccount", name=name, namespace=SYSTEM_SPACE) for name in names)


def bound(role: str, *subjects: Subject) -> ClusterRoleBinding:
    reference = RoleRef(api_group=GROUP, kind="ClusterRole", name=role)
    return ClusterRoleBinding(metadata=meta(role), subjects=subjects, role_ref=reference)


EVENTS = rule("create update patch", "core events.k8s.io", "events")
REVIEWS = (
    rule("create", "authentication.k8s.io", "tokenreviews"),
    rule("create", "authorization.k8s.io", "subjectaccessreviews"),
)
HEALTH = ("/livez", "/readyz", "/healthz")
