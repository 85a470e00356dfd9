"""The clients of the service accounts of controllers, as upstream's --use-service-account-credentials."""

from __future__ import annotations

from types import TracebackType

from volplane.cli.client_factory import open_transport
from volplane.client.account_token import AccountToken
from volplane.client.cache import Caches
from volplane.client.client import Client
from volplane.client.https import HttpsTransport
from volplane.client.updating_client import UpdatingClient

NAMESPACE = "kube-system"


class AccountClients:
    """Each account has a connection of its own. What they read is read once, by the manager's own user."""

    def __init__(self, kubeconfig: str, component: str) -> None:
        self._kubeconfig, self._component = kubeconfig, component
        self._transport = open_transport(kubeconfig, component)
        self._caches = Caches(self._transport)
        self.manager = Client(self._transport, caches=self._caches, component=component)
        # What the accounts need is asked for also while the Lease is not held any more.
        self._tokens = Client(self._transport, component=component)
        self._transports: dict[str, HttpsTransport] = {}
        self._clients: dict[str, Client] = {}

    def client_of(self, account: str) -> Client:
        if account not in self._clients:
            source = AccountToken(self._tokens, NAMESPACE, account)
            agent = f"{self._component}/{account}"
            transport = self._transports[account] = open_transport(self._kubeconfig, agent, source=source)
            client = UpdatingClient(
                transport, self._transport, caches=self._caches, component=self._component
            )
            client.check_write = self.manager.require_write
            self._clients[account] = client
        return self._clients[account]

    async def __aenter__(self) -> AccountClients:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._caches.close()
        for transport in (*self._transports.values(), self._transport):
            await transport.close()
