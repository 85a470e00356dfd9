"""The roles that every cluster begins with, and who has them.

What each role holds is part of the API: its users rely on it, so the tables follow upstream's of this version
rule by rule.
"""

from __future__ import annotations

from functools import cache

from volplane.api.rbac import ClusterRole, ClusterRoleBinding, Role, RoleBinding
from volplane.apiserver.auth.rbac.aggregation import aggregate_roles
from volplane.apiserver.auth.rbac.policy import components, controllers, people, spaces


@cache
def cluster_roles() -> tuple[ClusterRole, ...]:
    """Roles that are made of others have the others' rules already."""
    plain = [
        *people.cluster_roles(),
        *components.cluster_roles(),
        *components.certificate_roles(),
        *controllers.cluster_roles(),
    ]
    return aggregate_roles(plain)


@cache
def cluster_role_bindings() -> tuple[ClusterRoleBinding, ...]:
    return (
        *people.cluster_role_bindings(),
        *components.cluster_role_bindings(),
        *controllers.cluster_role_bindings(),
    )


@cache
def roles() -> tuple[Role, ...]:
    return tuple(spaces.roles())


@cache
def role_bindings() -> tuple[RoleBinding, ...]:
    return tuple(spaces.role_bindings())
