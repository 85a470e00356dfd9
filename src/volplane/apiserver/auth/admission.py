"""Admission plugins: they may refuse any write, in addition to the admission of its kind.

The verbs call `complete` before the kind's own admission, `create`, `update` and `delete` after it and before
validation, and `validate_create` and `validate_update` after validation. A plugin raises an error of
`api.errors` to refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volplane.apiserver.strategy import ApiCall


class AdmissionPlugin:
    """By default everything is allowed."""

    def complete(self, call: ApiCall, obj: Any) -> Any:
        """Return a new object with what its writer left out."""
        return obj

    async def create(self, call: ApiCall, obj: Any) -> None:
        return None

    async def update(self, call: ApiCall, old: Any, new: Any) -> None:
        """Also called for subresources such as /status: see `call.subresource`."""

    async def delete(self, call: ApiCall, obj: Any) -> None:
        return None

    async def post(self, call: ApiCall, obj: Any) -> None:
        """Called for objects posted to a subresource: TokenRequest, Eviction, Binding."""

    async def validate_create(self, call: ApiCall, obj: Any) -> None:
        """Called after validation, with the object as it will be stored."""

    async def validate_update(self, call: ApiCall, old: Any, new: Any) -> None:
        """Called after validation, with the object as it will be stored."""


class AdmissionChain:
    """Calls the plugins that take part in a verb, in order."""

    def __init__(self) -> None:
        self.set_plugins(())

    def set_plugins(self, plugins: Sequence[AdmissionPlugin]) -> None:
        def overriding(name: str) -> list[Any]:
            base = getattr(AdmissionPlugin, name)
            return [getattr(plugin, name) for plugin in plugins if getattr(type(plugin), name) is not base]

        self._complete = overriding("complete")
        self._create = overriding("create")
        self._update = overriding("update")
        self._delete = overriding("delete")
        self._post = overriding("post")
        self._validate_create = overriding("validate_create")
        self._validate_update = overriding("validate_update")

    def complete(self, call: ApiCall, obj: Any) -> Any:
        for step in self._complete:
            obj = step(call, obj)
        return obj

    async def create(self, call: ApiCall, obj: Any) -> None:
        for check in self._create:
            await check(call, obj)

    async def update(self, call: ApiCall, old: Any, new: Any) -> None:
        for check in self._update:
            await check(call, old, new)

    async def delete(self, call: ApiCall, obj: Any) -> None:
        for check in self._delete:
            await check(call, obj)

    async def post(self, call: ApiCall, obj: Any) -> None:
        for check in self._post:
            await check(call, obj)

    async def validate_create(self, call: ApiCall, obj: Any) -> None:
        for check in self._validate_create:
            await check(call, obj)

    async def validate_update(self, call: ApiCall, old: Any, new: Any) -> None:
        for check in self._validate_update:
            await check(call, old, new)
