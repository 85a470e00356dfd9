"""Prevent privilege escalation: users can grant only permissions that they hold themselves.

Exempt are users with the verb `escalate` on the role, or `bind` on the role of a binding, and
`system:masters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from volplane.api.errors import Forbidden, NotFound
from volplane.api.meta import ObjectMeta
from volplane.api.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef
from volplane.apiserver.auth.admission import AdmissionPlugin
from volplane.apiserver.auth.authorize import Attributes, AuthorizerChain
from volplane.apiserver.auth.go_format import aggregate_errors, go_list, go_quote
from volplane.apiserver.auth.rbac.rules import FULL_AUTHORITY, compact_rules, format_rule, missing_rules
from volplane.apiserver.auth.rbac.user_rules import Rbac
from volplane.apiserver.auth.well_known_users import MASTERS
from volplane.apiserver.backend import Backend
from volplane.apiserver.strategy import ApiCall

_KINDS = (ClusterRole, Role, ClusterRoleBinding, RoleBinding)
_PLURALS = {"ClusterRole": "clusterroles", "Role": "roles"}
AGGREGATION = "must have cluster-admin privileges to use the aggregationRule"


class EscalationCheck(AdmissionPlugin):
    """An admission plugin: see `auth.admission`."""

    def __init__(self, backend: Backend, rbac: Rbac, authorizer: AuthorizerChain) -> None:
        self._backend = backend
        self._rbac = rbac
        self._authorizer = authorizer

    async def create(self, call: ApiCall, obj: Any) -> None:
        if isinstance(obj, _KINDS) and MASTERS not in call.user.groups:
            await self._check(call, None, obj)

    async def update(self, call: ApiCall, old: Any, new: Any) -> None:
        if (
            isinstance(new, _KINDS)
            and MASTERS not in call.user.groups
            and not _is_garbage_collection_update(old, new)
        ):
            await self._check(call, old, new)

    async def _check(self, call: ApiCall, old: Any, new: Any) -> None:
        if isinstance(new, (Role, ClusterRole)):
            self._check_role(call, old, new)
        else:
            await self._check_binding(call, new)

    def _check_role(self, call: ApiCall, old: Role | ClusterRole | None, new: Role | ClusterRole) -> None:
        kind = call.kind
        attrs = Attributes("escalate", kind.group, kind.plural, call.namespace, call.name)
        if self._authorizer.allows(call.user, attrs):
            return
        self._require(call, new.name, new.rules)
        # An aggregated role can collect any permission.
        gathers = _has_aggregation(new) or _has_aggregation(old)
        if gathers and self._lacks(call, FULL_AUTHORITY):
            raise Forbidden.to(kind, new.name, AGGREGATION)

    async def _check_binding(self, call: ApiCall, binding: RoleBinding | ClusterRoleBinding) -> None:
        reference = binding.role_ref
        plural = _PLURALS.get(reference.kind)
        if plural is None:
            return  # validation reports it
        attrs = Attributes("bind", reference.api_group, plural, call.namespace, reference.name)
        if self._authorizer.allows(call.user, attrs):
            return
        self._require(call, binding.name, await self._rules(reference, call.namespace))

    async def _rules(self, reference: RoleRef, namespace: str) -> tuple[PolicyRule, ...]:
        """Read the rules from the store, because the index may lag behind."""
        reader = self._backend.reader
        role: Role | ClusterRole | None
        if reference.kind == "ClusterRole":
            role = await reader.get(ClusterRole, reference.name)
        else:
            role = await reader.get(Role, reference.name, namespace)
        if role is None:
            of = ClusterRole if reference.kind == "ClusterRole" else Role
            raise NotFound.of(self._backend.registry.of(of).kind, reference.name)
        return role.rules

    def _lacks(self, call: ApiCall, rules: Sequence[PolicyRule]) -> list[PolicyRule]:
        view = self._rbac.user_rules(call.user, call.namespace)
        return missing_rules([grant.rule for grant in view.grants], rules)

    def _require(self, call: ApiCall, name: str, rules: Sequence[PolicyRule]) -> None:
        lacks = self._lacks(call, rules)
        if not lacks:
            return
        user = call.user
        rules_text = "\n".join(sorted({format_rule(rule) for rule in compact_rules(lacks)}))
        why = (
            f"user {go_quote(user.name)} (groups={go_list(user.groups)}) "
            f"is attempting to grant RBAC permissions not currently held:\n{rules_text}"
        )
        if errors := self._rbac.user_rules(user, call.namespace).errors:
            why += f"; resolution errors: [{aggregate_errors(errors)}]"
        raise Forbidden.to(call.kind, name, why)


def _has_aggregation(role: Role | ClusterRole | None) -> bool:
    rule = role.aggregation_rule if isinstance(role, ClusterRole) else None
    return rule is not None and bool(rule.cluster_role_selectors)


def _is_garbage_collection_update(old: Any, new: Any) -> bool:
    """Return whether a write changes only what garbage collection changes."""
    was: ObjectMeta = old.metadata
    restored = structs.replace(
        new.metadata,
        owner_references=was.owner_references,
        finalizers=was.finalizers,
        managed_fields=was.managed_fields,
        resource_version=was.resource_version,
    )
    return bool(structs.replace(new, metadata=restored) == old)
