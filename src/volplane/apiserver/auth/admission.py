"""Admission plugins: they may refuse any write, in addition to the admission of its kind.

The verbs call `create`, `update` and `delete` after the kind's own admission and before validation, and
`validate_create` and `validate_update` after validation. A plugin raises an error of `api.errors` to refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volplane.apiserver.strategy import ApiCall


class AdmissionPlugin:
    """By default everything is allowed."""

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
    """Calls all plugins in order."""

    def __init__(self) -> None:
        self.plugins: Sequence[AdmissionPlugin] = ()

    async def create(self, call: ApiCall, obj: Any) -> None:
        for plugin in self.plugins:
            await plugin.create(call, obj)

    async def update(self, call: ApiCall, old: Any, new: Any) -> None:
        for plugin in self.plugins:
            await plugin.update(call, old, new)

    async def delete(self, call: ApiCall, obj: Any) -> None:
        for plugin in self.plugins:
            await plugin.delete(call, obj)

    async def post(self, call: ApiCall, obj: Any) -> None:
        for plugin in self.plugins:
            await plugin.post(call, obj)

    async def validate_create(self, call: ApiCall, obj: Any) -> None:
        for plugin in self.plugins:
            await plugin.validate_create(call, obj)

    async def validate_update(self, call: ApiCall, old: Any, new: Any) -> None:
        for plugin in self.plugins:
            await plugin.validate_update(call, old, new)
