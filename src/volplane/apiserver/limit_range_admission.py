"""LimitRange: containers get the defaults of their namespace; pods and claims must keep within its limits.

A write in a namespace without limit ranges costs one look-up. A limit that is added later does not affect
what is there already, unless its size changes.
"""

from __future__ import annotations

from typing import Any

from volplane.api.core import LimitRange, PersistentVolumeClaim, Pod
from volplane.api.errors import Forbidden
from volplane.apiserver.auth.admission import AdmissionPlugin
from volplane.apiserver.strategy import ApiCall
from volplane.rules.limit_ranges import (
    PreparedLimitRange,
    describe_violations,
    prepare,
    set_container_defaults,
)


class LimitRangeAdmission(AdmissionPlugin):
    def __init__(self) -> None:
        self._ranges: dict[str, dict[str, PreparedLimitRange]] = {}  # namespace → key → limit range

    # The limit ranges, kept up to date by the store indexer

    def put(self, key: str, limit_range: LimitRange) -> None:
        self._ranges.setdefault(limit_range.namespace, {})[key] = prepare(limit_range)

    def drop(self, type: type[Any], key: str) -> None:
        namespace = key.partition("/")[0]
        ranges = self._ranges.get(namespace, {})
        ranges.pop(key, None)
        if not ranges:
            self._ranges.pop(namespace, None)

    # Admission

    def complete(self, call: ApiCall, obj: Any) -> Any:
        if call.namespace in self._ranges and isinstance(obj, Pod):
            for limit_range in self._ranges[call.namespace].values():
                obj = set_container_defaults(obj, limit_range)
        return obj

    async def validate_create(self, call: ApiCall, obj: Any) -> None:
        if call.namespace in self._ranges and isinstance(obj, Pod | PersistentVolumeClaim):
            self._check(call, obj)

    async def validate_update(self, call: ApiCall, old: Any, new: Any) -> None:
        if call.namespace not in self._ranges or old.metadata.deletion_timestamp is not None:
            return
        match new:
            case Pod() if call.subresource == "resize":
                self._check(call, new)
            case PersistentVolumeClaim() if not call.subresource:
                if old.spec.resources.requests != new.spec.resources.requests:
                    self._check(call, new)

    def _check(self, call: ApiCall, obj: Pod | PersistentVolumeClaim) -> None:
        for limit_range in self._ranges[call.namespace].values():
            if why := describe_violations(obj, limit_range):
                raise Forbidden.to(call.kind, obj.metadata.name or call.name, why)
