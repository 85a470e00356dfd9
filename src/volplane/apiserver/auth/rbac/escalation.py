"""Nobody gives what they do not hold: the judge of every write of a role or a binding.

Whoever may `escalate` the role, or `bind` the role that a binding names, is believed; `system:masters` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from volplane.api.errors import Forbidden, NotFound
from volplane.api.meta import ObjectMeta
from volplane.api.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef
from volplane.apiserver.auth.authorize import Act, Authority
from volplane.apiserver.auth.rbac.index import Rbac
from volplane.apiserver.auth.rbac.rules import FULL_AUTHORITY, compacted, missing, shown
from volplane.apiserver.auth.texts import aggregate, listed, quoted
from volplane.apiserver.auth.users import MASTERS
from volplane.apiserver.backend import Backend
from volplane.apiserver.strategy import Call

_KINDS = (ClusterRole, Role, ClusterRoleBinding, RoleBinding)
_PLURALS = {"ClusterRole": "clusterroles", "Role": "roles"}
AGGREGATION = "must have cluster-admin privileges to use the aggregationRule"


class Escalation:
    """A judge of admission: see `auth.admission`."""

    def __init__(self, backend: Backend, rbac: Rbac, authority: Authority) -> None:
        self._backend = backend
        self._rbac = rbac
        self._authority = authority

    async def create(self, call: Call, obj: Any) -> None:
        if isinstance(obj, _KINDS) and MASTERS not in call.user.groups:
            await self._judge(call, None, obj)

    async def update(self, call: Call, old: Any, new: Any) -> None:
        if isinstance(new, _KINDS) and MASTERS not in call.user.groups and not _only_collected(old, new):
            await self._judge(call, old, new)

    async def delete(self, call: Call, obj: Any) -> None:
        return None

    async def post(self, call: Call, obj: Any) -> None:
        return None

    async def _judge(self, call: Call, old: Any, new: Any) -> None:
        if isinstance(new, (Role, ClusterRole)):
            self._judge_role(call, old, new)
        else:
            await self._judge_binding(call, new)

    def _judge_role(self, call: Call, old: Role | ClusterRole | None, new: Role | ClusterRole) -> None:
        kind = call.kind
        act = Act("escalate", kind.group, kind.plural, call.namespace, call.name)
        if self._authority.allows(call.user, act):
            return
        self._require(call, new.name, new.rules)
        # A role made of others can gather anything, and keep anything from being tightened.
        gathers = _has_aggregation(new) or _has_aggregation(old)
        if gathers and self._lacks(call, FULL_AUTHORITY):
            raise Forbidden.to(kind, new.name, AGGREGATION)

    async def _judge_binding(self, call: Call, binding: RoleBinding | ClusterRoleBinding) -> None:
        reference = binding.role_ref
        plural = _PLURALS.get(reference.kind)
        if plural is None:
            return  # validation has a word for it
        act = Act("bind", reference.api_group, plural, call.namespace, reference.name)
        if self._authority.allows(call.user, act):
            return
        self._require(call, binding.name, await self._rules(reference, call.namespace))

    async def _rules(self, reference: RoleRef, namespace: str) -> tuple[PolicyRule, ...]:
        """As the store has them now, not as the index had them a moment ago."""
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

    def _lacks(self, call: Call, rules: Sequence[PolicyRule]) -> list[PolicyRule]:
        view = self._rbac.view(call.user, call.namespace)
        return missing([grant.rule for grant in view.grants], rules)

    def _require(self, call: Call, name: str, rules: Sequence[PolicyRule]) -> None:
        lacks = self._lacks(call, rules)
        if not lacks:
            return
        user = call.user
        told = "\n".join(sorted({shown(rule) for rule in compacted(lacks)}))
        why = (
            f"user {quoted(user.name)} (groups={listed(user.groups)}) "
            f"is attempting to grant RBAC permissions not currently held:\n{told}"
        )
        if errors := self._rbac.view(user, call.namespace).errors:
            why += f"; resolution errors: [{aggregate(errors)}]"
        raise Forbidden.to(call.kind, name, why)


def _has_aggregation(role: Role | ClusterRole | None) -> bool:
    rule = role.aggregation_rule if isinstance(role, ClusterRole) else None
    return rule is not None and bool(rule.cluster_role_selectors)


def _only_collected(old: Any, new: Any) -> bool:
    """Does this write change nothing but what garbage collection needs?"""
    was: ObjectMeta = old.metadata
    restored = structs.replace(
        new.metadata,
        owner_references=was.owner_references,
        finalizers=was.finalizers,
        managed_fields=was.managed_fields,
        resource_version=was.resource_version,
    )
    return bool(structs.replace(new, metadata=restored) == old)
