"""The roles inside namespaces: locks for leaders, and the few objects that others may read."""

from __future__ import annotations

from volplane.api.rbac import PolicyRule, Role, RoleBinding, RoleRef, Subject
from volplane.apiserver.auth.rbac.policy.words import (
    EVENTS,
    GROUP,
    MANAGER,
    PUBLIC_SPACE,
    READ,
    SCHEDULER,
    SYSTEM_SPACE,
    accounts,
    meta,
    rule,
    users,
)


def _role(namespace: str, name: str, *rules: PolicyRule) -> Role:
    return Role(metadata=meta(name, namespace), rules=rules)


def _role_binding(namespace: str, role: str, *subjects: Subject, name: str = "") -> RoleBinding:
    reference = RoleRef(api_group=GROUP, kind="Role", name=role)
    return RoleBinding(metadata=meta(name or role, namespace), subjects=subjects, role_ref=reference)


_READER = "extension-apiserver-authentication-reader"
_SIGNER, _CLOUD, _CLEANER = (
    f"system:controller:{name}" for name in ("bootstrap-signer", "cloud-provider", "token-cleaner")
)
_LOCK_MANAGER, _LOCK_SCHEDULER = (
    f"system::leader-locking-{name}" for name in ("kube-controller-manager", "kube-scheduler")
)


def roles() -> list[Role]:
    leases = tuple(
        rule("get watch list create update", "coordination.k8s.io", kind)
        for kind in ("leases", "leasecandidates")
    )
    return [
        _role(
            SYSTEM_SPACE,
            _READER,
            rule(READ, "core", "configmaps", names="extension-apiserver-authentication"),
        ),
        _role(SYSTEM_SPACE, _SIGNER, rule(READ, "core", "secrets")),
        _role(SYSTEM_SPACE, _CLOUD, rule("create get list watch", "core", "configmaps")),
        _role(SYSTEM_SPACE, _CLEANER, rule("get list watch delete", "core", "secrets"), EVENTS),
        _role(SYSTEM_SPACE, _LOCK_MANAGER, *leases),
        _role(SYSTEM_SPACE, _LOCK_SCHEDULER, *leases),
        _role(
            PUBLIC_SPACE,
            _SIGNER,
            rule(READ, "core", "configmaps"),
            rule("update", "core", "configmaps", names="cluster-info"),
            EVENTS,
        ),
    ]


def role_bindings() -> list[RoleBinding]:
    reader = _role_binding(SYSTEM_SPACE, _READER, *users(MANAGER, SCHEDULER), name=f"system::{_READER}")
    managers = accounts("kube-controller-manager", "leader-election-controller")
    return [
        reader,
        _role_binding(SYSTEM_SPACE, _LOCK_MANAGER, *users(MANAGER), *managers),
        _role_binding(SYSTEM_SPACE, _LOCK_SCHEDULER, *users(SCHEDULER), *accounts("kube-scheduler")),
        _role_binding(SYSTEM_SPACE, _SIGNER, *accounts("bootstrap-signer")),
        _role_binding(SYSTEM_SPACE, _CLOUD, *accounts("cloud-provider")),
        _role_binding(SYSTEM_SPACE, _CLEANER, *accounts("token-cleaner")),
        _role_binding(PUBLIC_SPACE, _SIGNER, *accounts("bootstrap-signer")),
    ]
