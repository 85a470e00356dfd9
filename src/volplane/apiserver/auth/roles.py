"""What the system's own users may do, as a fixed table until roles are API objects.

Everybody of the system reads everything that is not a secret of others; each writes what its work needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from volplane.apiserver.auth.authorize import Rule

READ = frozenset({"get", "list", "watch"})
ALL = frozenset({"*"})


def _rule(verbs: frozenset[str] | str, *resources: str) -> Rule:
    return Rule(frozenset({verbs}) if isinstance(verbs, str) else verbs, frozenset(resources))


_EVERYTHING = (_rule(ALL, "*"),)
_EVENTS_AND_LEASES = _rule(ALL, "events", "leases.coordination.k8s.io")

_SCHEDULER = (
    _rule(READ, "*"),
    _EVENTS_AND_LEASES,
    _rule("create", "pods/binding"),
    _rule(frozenset({"patch", "update"}), "pods/status", "persistentvolumes", "persistentvolumeclaims"),
    _rule("delete", "pods"),
)
_NODE = (
    _rule(READ, "*"),
    _EVENTS_AND_LEASES,
    _rule(ALL, "nodes", "nodes/status", "csinodes.storage.k8s.io", "pods", "pods/status", "pods/eviction"),
    _rule(ALL, "persistentvolumes", "persistentvolumes/status"),
    _rule(
        frozenset({"patch", "update"}),
        "persistentvolumeclaims/status",
        "volumeattachments.storage.k8s.io/status",
    ),
    _rule("create", "serviceaccounts/token", "tokenreviews.authentication.k8s.io"),
    _rule("create", "subjectaccessreviews.authorization.k8s.io"),
)
_DRIVER = (
    _rule(READ, "*"),
    _EVENTS_AND_LEASES,
    _rule(ALL, "persistentvolumes", "persistentvolumes/status"),
    _rule(ALL, "persistentvolumeclaims", "persistentvolumeclaims/status"),
    _rule(ALL, "volumeattachments.storage.k8s.io", "volumeattachments.storage.k8s.io/status"),
    _rule(ALL, "csistoragecapacities.storage.k8s.io", "csinodes.storage.k8s.io"),
)

SYSTEM_ROLES: Mapping[str, tuple[Rule, ...]] = {
    "system:kube-controller-manager": _EVERYTHING,
    "system:kube-scheduler": _SCHEDULER,
    "system:nodes": _NODE,
    "system:serviceaccounts:kube-system": _DRIVER,
}
