"""/scale of a custom resource, with the paths to the replicas from its definition."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from volplane.api.apiextensions import CustomResourceSubresourceScale as Paths
from volplane.api.autoscaling import Scale, ScaleSpec, ScaleStatus
from volplane.api.errors import Cause, InternalError, invalid
from volplane.api.meta import ObjectMeta
from volplane.apiserver.crd.custom.jsonpath import get, members

Plain = dict[str, Any]
MOST = (1 << 31) - 1


class CustomScale:
    """Reads and sets the replicas of one kind."""

    def __init__(self, paths: Paths) -> None:
        self._wanted = paths.spec_replicas_path
        self._there = paths.status_replicas_path
        self._selector = paths.label_selector_path or ""

    def view(self, obj: Plain) -> Scale:
        replicas = get(obj, members(self._wanted))
        if replicas is None:
            raise InternalError.because(f'the spec replicas field "{self._wanted}" does not exist')
        meta = obj["metadata"]
        selector = get(obj, members(self._selector)) if self._selector else ""
        return Scale(
            metadata=ObjectMeta(
                name=meta.get("name", ""),
                namespace=meta.get("namespace", ""),
                uid=meta.get("uid", ""),
                resource_version=meta.get("resourceVersion", ""),
                creation_timestamp=meta.get("creationTimestamp", ""),
            ),
            spec=ScaleSpec(replicas=_number(replicas)),
            status=ScaleStatus(
                replicas=_number(get(obj, members(self._there))),
                selector=selector if isinstance(selector, str) else "",
            ),
        )

    def current(self, obj: Plain) -> Scale:
        """Return the Scale that a change starts from; missing replicas count as 0."""
        if get(obj, members(self._wanted)) is None:
            obj = self.set(obj, 0)
        return self.view(obj)

    def set(self, obj: Plain, replicas: int) -> Plain:
        made = deepcopy(obj)
        *way, last = members(self._wanted)
        held = made
        for name in way:
            inner = held.get(name)
            if not isinstance(inner, dict):
                inner = held[name] = {}
            held = inner
        held[last] = replicas
        return made

    def validate(self, obj: Plain, *, status_only: bool = False) -> list[Cause]:
        causes = [] if status_only else _replicas(obj, self._wanted)
        causes += _replicas(obj, self._there)
        selector = get(obj, members(self._selector)) if self._selector else None
        if selector is not None and not isinstance(selector, str):
            causes.append(
                invalid(self._selector, "", _wrong_type(members(self._selector), selector, "string"))
            )
        return causes


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _replicas(obj: Plain, path: str) -> list[Cause]:
    value = get(obj, members(path))
    if value is None:
        return []
    if not isinstance(value, int) or isinstance(value, bool):
        return [invalid(path, 0, _wrong_type(members(path), value, "int64"))]
    if value < 0:
        return [invalid(path, value, "should be a non-negative integer")]
    return [] if value <= MOST else [invalid(path, value, f"should be less than or equal to {MOST}")]


def _wrong_type(path: Sequence[str], value: Any, wanted: str) -> str:
    return (
        f".{'.'.join(path)} accessor error: {value} is of the type {type(value).__name__}, expected {wanted}"
    )
