"""Cluster roles made of others: their rules are those of every role that their selectors choose.

The rules are written into the role itself, so that everybody who reads it sees them, and again whenever one
of the others changes. A controller manager that does the same work comes to the same rules. The subtle thing:
one role is written at a time, and the next one on what that has changed; two roles that choose each other
would otherwise exchange their rules for ever.
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
from volplane.apiserver.auth.well_known_users import SYSTEM
from volplane.apiserver.backend import Backend
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.update import SERVER_WRITE, modify
from volplane.base import clock
from volplane.store import StoreClosed, StoreError, StoreRecord

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # seconds before a store that refuses is asked again


def rules_of(role: ClusterRole, others: Mapping[str, ClusterRole]) -> tuple[PolicyRule, ...]:
    """What a role that is made of others holds; one that is not keeps its own."""
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
    """All of these with their rules in place: a role may be made of one that is itself made of others."""
    by_name = {role.name: role for role in roles}
    while name := find_outdated(by_name):
        by_name[name] = structs.replace(by_name[name], rules=rules_of(by_name[name], by_name))
    return tuple(by_name.values())


def find_outdated(roles: Mapping[str, ClusterRole]) -> str:
    """The first role whose rules are not those of the others; none is ""."""
    return next((name for name in sorted(roles) if rules_of(roles[name], roles) != roles[name].rules), "")


class RoleAggregation:
    """Keeps the rules of such roles up to date in the store."""

    def __init__(self, backend: Backend, roles: Mapping[str, ClusterRole]) -> None:
        self._backend = backend
        self._roles = roles  # the live index
        self._woken = asyncio.Event()

    def put(self, key: str, obj: Any) -> None:
        self._woken.set()

    def drop(self, type: type[Any], key: str) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled, or until the store is closed. What is written here comes back as a change."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                if name := find_outdated(self._roles):
                    await self._write(name)
            except StoreClosed:
                return
            except StoreError:
                log.exception("a role made of others could not be written; it is tried again")
                await asyncio.sleep(RETRY_SECONDS)
                self._woken.set()

    async def _write(self, name: str) -> None:
        entry = self._backend.registry.of(ClusterRole)

        async def set_rules(role: ClusterRole, record: StoreRecord) -> ClusterRole:
            return structs.replace(role, rules=rules_of(role, self._roles))

        call = ApiCall("update", entry.kind, SYSTEM, self._backend.reader, clock.wall(), name=name)
        try:
            await modify(self._backend, entry, call, set_rules, SERVER_WRITE)
        except NotFound:
            return  # deleted meanwhile
