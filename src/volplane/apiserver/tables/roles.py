"""Roles and bindings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from volplane.api.rbac import ClusterRoleBinding, RoleBinding
from volplane.apiserver.tables.columns import TablePrinter, age_of, columns


def _binding(binding: RoleBinding | ClusterRoleBinding, now: datetime) -> list[Any]:
    role = f"{binding.role_ref.kind}/{binding.role_ref.name}"
    by_kind: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in binding.subjects:
        account = subject.kind == "ServiceAccount"
        name = f"{subject.namespace}/{subject.name}" if account else subject.name
        by_kind.setdefault(subject.kind, []).append(name)
    who = [", ".join(by_kind[kind]) for kind in ("User", "Group", "ServiceAccount")]
    return [binding.name, role, age_of(binding, now), *who]


_BINDING = TablePrinter(columns("Name", "Role", "Age", "Users*", "Groups*", "ServiceAccounts*"), _binding)

PRINTERS: Mapping[str, TablePrinter] = {
    "rolebindings.rbac.authorization.k8s.io": _BINDING,
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDING,
}
