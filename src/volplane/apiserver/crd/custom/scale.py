"""/scale of a custom resource, with the paths to the replicas from its definition."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from volplane.api.apiextensions import CustomResourceSubresourceScale as Paths
from volplane.api.autoscaling import Scale, ScaleSpec, ScaleStatus
from volplane.api.errors import Cause, InternalError, invalid
from volplane.apiserver.crd.custom.jsonpath import get, members

Plain = dict[str, Any]
MOST = (1 << 31) - 1


class CustomScale:
    """Reads and sets the replicas of one kind."""

    def __init__(self, paths: Paths) -> None:
        self._spec_path = paths.spec_replicas_path
        self._status_path = paths.status_replicas_path
        self._selector = paths.label_selector_path or ""

    def view(self, obj: Plain) -> Scale:
        replicas = get(obj, members(self._spec_path))
        if replicas is None:
            raise InternalError.because(f'the spec replicas field "{self._spec_path}" does not exist')
        selector = get(obj, members(self._selector)) if self._selector else ""
        status = ScaleStatus(
            replicas=_number(get(obj, members(self._status_path))),
            selector=selector if isinstance(selector, str) else "",
        )
        return Scale(spec=ScaleSpec(replicas=_number(replicas)), status=status)

    def current(self, obj: Plain) -> Scale:
        """Return the Scale that a change starts from; missing replicas count as 0."""
        if get(obj, members(self._spec_path)) is None:
            obj = self.set(obj, 0)
        return self.view(obj)

    def set(self, obj: Plain, replicas: int) -> Plain:
        result = deepcopy(obj)
        *parents, last = members(self._spec_path)
        parent = result
        for name in parents:
            if not isinstance(parent.get(name), dict):
                parent[name] = {}
            parent = parent[name]
        parent[last] = replicas
        return result

    def validate(self, obj: Plain, *, status_only: bool = False) -> list[Cause]:
        causes = [] if status_only else _replicas(obj, self._spec_path)
        causes += _replicas(obj, self._status_path)
        selector = get(obj, members(self._selector)) if self._selector else None
        if selector is not None and not isinstance(selector, str):
            causes.append(invalid(self._selector, "", _wrong_type(self._selector, selector, "string")))
        return causes


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _replicas(obj: Plain, path: str) -> list[Cause]:
    value = get(obj, members(path))
    if value is None:
        return []
    if not isinstance(value, int) or isinstance(value, bool):
        return [invalid(path, 0, _wrong_type(path, value, "int64"))]
    if value < 0:
        return [invalid(path, value, "should be a non-negative integer")]
    return [] if value <= MOST else [invalid(path, value, f"should be less than or equal to {MOST}")]


def _wrong_type(path: str, value: Any, wanted: str) -> str:
    path = ".".join(members(path))
    return f".{path} accessor error: {value} is of the type {type(value).__name__}, expected {wanted}"
