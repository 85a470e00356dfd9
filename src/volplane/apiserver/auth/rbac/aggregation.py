"""Aggregated cluster roles: their rules are the union of the roles that their selectors match.

The rules are written into the role itself, and again whenever a matched role changes. A controller manager
that does the same work computes the same rules. One role is written at a time, and the next one only after
that change was seen: otherwise two roles that select each other would exchange their rules forever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from volplane.api.errors import NotFound
from volplane.api.rbac import ClusterRole, PolicyRule
from volplane.api.selectors import LabelMatcher
from volplane.apiserver.backend import Backend
from volplane.apiserver.verbs.update import SERVER_WRITE, modify
from volplane.store import StoreClosed, StoreError, StoreRecord

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # before retrying a store that failed


def rules_of(role: ClusterRole, others: Mapping[str, ClusterRole]) -> tuple[PolicyRule, ...]:
    """Return the rules of an aggregated role, or the role's own rules if it is not aggregated."""
    if role.aggregation_rule is None:
        return role.rules
    found: dict[PolicyRule, None] = {}
    for selector in role.aggregation_rule.cluster_role_selectors:
        chosen = LabelMatcher.of(selector)
        for name in sorted(others):
            if name != role.name and chosen.matches(others[name].metadata.labels):
                found |= dict.fromkeys(others[name].rules)
    return tuple(found)


def aggregate_roles(roles: Sequence[ClusterRole]) -> tuple[ClusterRole, ...]:
    """Return the roles with all aggregated rules filled in; aggregated roles may select each other."""
    by_name = {role.name: role for role in roles}
    while name := find_outdated(by_name):
        by_name[name] = structs.replace(by_name[name], rules=rules_of(by_name[name], by_name))
    return tuple(by_name.values())


def find_outdated(roles: Mapping[str, ClusterRole]) -> str:
    """Return the first role whose rules are out of date, or ""."""
    return next((name for name in sorted(roles) if rules_of(roles[name], roles) != roles[name].rules), "")


class RoleAggregation:
    """Keeps the rules of aggregated roles up to date in the store."""

    def __init__(self, backend: Backend, roles: Mapping[str, ClusterRole]) -> None:
        self._backend = backend
        self._roles = roles  # the live index
        self._woken = asyncio.Event()

    def put(self, key: str, obj: Any) -> None:
        self._woken.set()

    def drop(self, type: type[Any], key: str) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled, or until the store is closed. Each write comes back as a change."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                if name := find_outdated(self._roles):
                    await self._write(name)
            except StoreClosed:
                return
            except StoreError:
                log.exception("cannot write an aggregated role; retrying")
                await asyncio.sleep(RETRY_SECONDS)
                self._woken.set()

    async def _write(self, name: str) -> None:
        entry = self._backend.registry.of(ClusterRole)

        async def set_rules(role: ClusterRole, record: StoreRecord) -> ClusterRole:
            return structs.replace(role, rules=rules_of(role, self._roles))

        call = self._backend.system_call("update", entry, name)
        try:
            await modify(self._backend, entry, call, set_rules, SERVER_WRITE)
        except NotFound:
            return  # deleted meanwhile
