"""The token of a service account, requested from the API server and renewed before it expires."""

from __future__ import annotations

import asyncio

from volplane.api.authentication import TokenRequest, TokenRequestSpec
from volplane.api.core import ServiceAccount
from volplane.api.errors import APIError, Unauthorized
from volplane.api.meta import ObjectMeta
from volplane.base import clock
from volplane.client.client import Client
from volplane.client.credentials import Credentials

LIFE = 3600  # seconds
RENEW_SHARE = 0.8  # of its life: then a token is renewed
MIN_USE = 60.0  # seconds, even if by the local clock the token is expired: that clock may be ahead


class AccountToken:
    """Implements `CredentialSource`. The account is created if it does not exist."""

    def __init__(self, client: Client, namespace: str, account: str) -> None:
        """`client`: of a user who may create service accounts and their tokens."""
        self._client, self._namespace, self._account = client, namespace, account
        self._lock = asyncio.Lock()
        self._token, self._renew_at = "", 0.0

    async def get_credentials(self) -> Credentials:
        async with self._lock:
            if not self._token or clock.now() >= self._renew_at:
                try:
                    await self._request()
                except APIError as error:
                    raise Unauthorized(
                        f"no token for service account {self._namespace}/{self._account}: {error}"
                    ) from error
            return Credentials(self._token)

    def reject(self, used: Credentials) -> None:
        if used.token == self._token:
            self._token = ""

    async def _request(self) -> None:
        account, now = self._account, clock.now()
        if await self._client.find(ServiceAccount, account, self._namespace) is None:
            metadata = ObjectMeta(name=account, namespace=self._namespace)
            await self._client.create(ServiceAccount(metadata=metadata), exists_ok=True)
        made = await self._client.create(
            TokenRequest(spec=TokenRequestSpec(expiration_seconds=LIFE)),
            namespace=self._namespace,
            name=account,
            subresource="token",
            of=ServiceAccount,
        )
        # The server may give it a shorter life.
        left = (clock.parse(made.status.expiration_timestamp) - clock.wall()).total_seconds()
        self._token = made.status.token
        self._renew_at = now + max(MIN_USE, RENEW_SHARE * min(left, LIFE))
