"""The API server without a wire: all verbs over a store, called in process.

This is the whole server for tests and simulations on a virtual clock; `server.Server` adds HTTPS to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from volplane.apiserver import strategies
from volplane.apiserver.auth.authorize import Authorizer, Roles, masters, public
from volplane.apiserver.auth.issuer import Issuer
from volplane.apiserver.auth.roles import SYSTEM_ROLES
from volplane.apiserver.auth.users import ADMIN
from volplane.apiserver.backend import Backend
from volplane.apiserver.bootstrap import bootstrap
from volplane.apiserver.housekeeping import keep_house
from volplane.apiserver.local import Local
from volplane.apiserver.registry import Registry
from volplane.apiserver.served import SERVED
from volplane.apiserver.strategy import User
from volplane.store import Store


class Core:
    def __init__(self, store: Store, issuer: Issuer | None = None) -> None:
        self.backend = Backend(store, Registry(SERVED, strategies.of), issuer or Issuer())
        self.authorizers: Sequence[Authorizer] = [masters, public, Roles(SYSTEM_ROLES)]
        self._house: asyncio.Task[None] | None = None

    def local(self, user: User = ADMIN) -> Local:
        """The server as an in-process transport, for one user."""
        return Local(self.backend, user, self.authorizers)

    async def start(self) -> Core:
        await bootstrap(self.backend)
        self._house = asyncio.create_task(keep_house(self.backend), name="apiserver housekeeping")
        return self

    async def close(self) -> None:
        """Ends what was started; the store belongs to the caller."""
        if self._house is not None:
            self._house.cancel()
            with suppress(asyncio.CancelledError):
                await self._house
