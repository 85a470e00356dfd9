"""Admission by who asks: judges that may refuse a write, whatever its kind says about it.

The verbs call these after the kind's own admission and before validation; a judge raises an error of
`api.errors` or says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from volplane.apiserver.strategy import Call


class Judge(Protocol):
    async def create(self, call: Call, obj: Any) -> None: ...

    async def update(self, call: Call, old: Any, new: Any) -> None:
        """Also for /status and other parts: `call.subresource` tells."""

    async def delete(self, call: Call, obj: Any) -> None: ...

    async def post(self, call: Call, obj: Any) -> None:
        """An object posted below another: a token request, an eviction, a binding."""


class Admission:
    def __init__(self, judges: Sequence[Judge] = ()) -> None:
        self.judges = judges

    async def create(self, call: Call, obj: Any) -> None:
        for judge in self.judges:
            await judge.create(call, obj)

    async def update(self, call: Call, old: Any, new: Any) -> None:
        for judge in self.judges:
            await judge.update(call, old, new)

    async def delete(self, call: Call, obj: Any) -> None:
        for judge in self.judges:
            await judge.delete(call, obj)

    async def post(self, call: Call, obj: Any) -> None:
        for judge in self.judges:
            await judge.post(call, obj)
