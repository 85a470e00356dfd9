"""ResourceQuota: a write that exceeds a quota of its namespace is forbidden.

Usage is counted from the stored objects, because the status of a quota may be out of date. A write that was
allowed counts from that moment until it is stored or has failed (a reservation), so that writes at the same
time cannot exceed a quota together. Between the list of the stored objects and the reservation nothing waits.

What an object uses is computed once for each of its revisions. A write in a namespace without quotas costs
one look-up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from volplane.api.core import Pod, ResourceQuota
from volplane.api.errors import Forbidden
from volplane.apiserver.auth.admission import AdmissionPlugin
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.rules.quotas import usage
from volplane.rules.quotas.limits import QuotaLimits, limits_of
from volplane.rules.quotas.pods import describe_unnamed
from volplane.rules.quotas.usage import ObjectUsage
from volplane.store import StoreRecord

# Updates that may use more: resource → subresources, None for all.
_UPDATES: dict[str, frozenset[str] | None] = {
    usage.PODS: frozenset({"resize"}),
    usage.CLAIMS: frozenset({""}),
    usage.SERVICES: None,
}

Collection = tuple[str, str]  # resource and namespace


class QuotaReservation(Struct, eq=False):
    """A write that was allowed and is not stored yet."""

    key: str  # in the store
    usage: ObjectUsage


class QuotaAdmission(AdmissionPlugin):
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._quotas: dict[str, dict[str, QuotaLimits]] = {}  # namespace → name → quota
        self._reservations: dict[Collection, set[QuotaReservation]] = {}
        self._usages: dict[Collection, dict[str, tuple[int, ObjectUsage]]] = {}  # by key, with the revision

    # The quotas, kept up to date by the store indexer

    def put(self, key: str, quota: ResourceQuota) -> None:
        self._quotas.setdefault(quota.namespace, {})[key] = limits_of(quota)

    def drop(self, type: type[Any], key: str) -> None:
        namespace = key.partition("/")[0]
        quotas = self._quotas.get(namespace, {})
        quotas.pop(key, None)
        if not quotas:
            self._quotas.pop(namespace, None)
            for collection in [each for each in self._usages if each[1] == namespace]:
                del self._usages[collection]

    # Admission, after validation

    async def validate_create(self, call: ApiCall, obj: Any) -> None:
        if call.namespace in self._quotas:
            await self._check(call, None, obj)

    async def validate_update(self, call: ApiCall, old: Any, new: Any) -> None:
        if call.namespace in self._quotas:
            below = _UPDATES.get(call.kind.resource, frozenset())
            if below is None or call.subresource in below:
                await self._check(call, old, new)

    async def _check(self, call: ApiCall, old: Any, new: Any) -> None:
        resource = call.kind.resource
        quotas = [q for q in self._quotas[call.namespace].values() if resource in q.limited]
        if not quotas:
            return
        entry = self._backend.registry.find(call.kind.group, call.kind.version, call.kind.plural)
        assert entry is not None
        after = usage.usage_of(resource, new)
        before = None if old is None else usage.usage_of(resource, old)
        quotas = [q for q in quotas if q.covers(after)]
        self._require_named_amounts(call, quotas, new)
        increases = [(q, q.compute_increase(resource, before, after, call.now)) for q in quotas]
        increases = [(quota, increase) for quota, increase in increases if increase]
        if not increases:
            return
        listing = await self._backend.store.list(entry.namespace_prefix(call.namespace))
        key = entry.key(call.namespace, entry.access.metadata(new).name)
        if old is None and any(record.key == key for record in listing.records):
            return  # the write will fail, because the name is taken
        # From here to the reservation nothing may wait.
        collection = resource, call.namespace
        used = self._count_stored(entry, collection, listing.records)
        self._count_reserved(collection, key, used)
        for quota, increase in increases:
            held = quota.compute_used(resource, used.values(), call.now)
            if why := quota.describe_excess(held, increase):
                raise _forbid(call, new, why)
        if not call.dry_run:
            self._reserve(call, collection, QuotaReservation(key, after))

    def _require_named_amounts(self, call: ApiCall, quotas: Iterable[QuotaLimits], obj: Any) -> None:
        if not isinstance(obj, Pod):
            return
        for quota in quotas:
            if why := describe_unnamed(obj, quota.limited[usage.PODS]):
                raise _forbid(call, obj, f"failed quota: {quota.name}: {why}")

    def _count_stored(
        self, entry: ServedResource, collection: Collection, records: Iterable[StoreRecord]
    ) -> dict[str, ObjectUsage]:
        """What the stored objects use, by key."""
        resource, _ = collection
        if not usage.uses_more_than_its_number(resource):
            return dict.fromkeys((r.key for r in records), usage.usage_by_number(resource))
        known, current = self._usages.get(collection, {}), {}
        for record in records:
            held = known.get(record.key)
            if held is None or held[0] != record.revision:
                obj = entry.watch_cache.object(record)
                held = record.revision, usage.usage_of(resource, obj)
            current[record.key] = held
        self._usages[collection] = current
        return {key: used for key, (_, used) in current.items()}

    def _count_reserved(self, collection: Collection, own: str, used: dict[str, ObjectUsage]) -> None:
        """Add what writes of other objects will use when they are stored."""
        for reservation in self._reservations.get(collection, ()):
            if reservation.key != own:
                stored = used.get(reservation.key)
                used[reservation.key] = (
                    reservation.usage if stored is None else usage.greater_usage(stored, reservation.usage)
                )

    def _reserve(self, call: ApiCall, collection: Collection, reservation: QuotaReservation) -> None:
        self._reservations.setdefault(collection, set()).add(reservation)

        def release() -> None:
            held = self._reservations[collection]
            held.discard(reservation)
            if not held:
                del self._reservations[collection]

        call.releases.append(release)


def _forbid(call: ApiCall, obj: Any, why: str) -> Forbidden:
    name = obj.metadata.name if not isinstance(obj, dict) else obj["metadata"].get("name", "")
    return Forbidden.to(call.kind, name or call.name, why)
