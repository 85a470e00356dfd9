"""Create both objects for a namespace, and restore them when they are deleted or changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from volplane.api.core import ConfigMap, Namespace, ServiceAccount
from volplane.api.errors import Forbidden, NotFound
from volplane.api.meta import Resource
from volplane.client.client import Client
from volplane.controllers.serviceaccount.plan import (
    ACCOUNT,
    ROOT_CA,
    CreateRootCA,
    CreateServiceAccount,
    ServiceAccountView,
    Step,
    UpdateRootCA,
    plan,
)
from volplane.loops.controller import Controller, Stop


class ServiceAccounts(Controller[str, ServiceAccountView, Step]):
    name = "serviceaccount-controller"

    def __init__(self, client: Client, *, root_ca: str = "", publisher: Client | None = None) -> None:
        """`publisher`: writes the CA certificate."""
        super().__init__(client)
        self.root_ca = root_ca
        self.publisher = publisher or client

    def setup(self) -> None:
        self.namespaces = self.watch(Namespace, lambda old, new: [new.name] if new else [])
        self.accounts = self.watch(ServiceAccount, self.keys_of_object, fields=f"metadata.name={ACCOUNT}")
        self.configs = self.watch(ConfigMap, self.keys_of_object, fields=f"metadata.name={ROOT_CA}")

    def keys_of_object(self, old: Resource | None, new: Resource | None) -> Iterable[str]:
        changed = new or old
        return [changed.namespace] if changed else []

    def view(self, key: str) -> ServiceAccountView | None:
        namespace = self.namespaces.get(key)
        if namespace is None or namespace.is_deleting:
            return None
        account, config = self.accounts.get(ACCOUNT, key), self.configs.get(ROOT_CA, key)
        return ServiceAccountView(key, account, config, self.root_ca)

    def plan(self, view: ServiceAccountView) -> Iterator[Step]:
        return plan(view)

    async def act(self, key: str, view: ServiceAccountView, step: Step) -> Stop | None:
        try:
            match step:
                case CreateServiceAccount(account):
                    await self.client.create(account, exists_ok=True)
                case CreateRootCA(config):
                    await self.publisher.create(config, exists_ok=True)
                case UpdateRootCA(root_ca):
                    patch = {"data": {"ca.crt": root_ca}}
                    await self.publisher.patch(ConfigMap, ROOT_CA, key, merge=patch, missing_ok=True)
                case _:
                    assert_never(step)
        except (NotFound, Forbidden):
            return Stop()  # the namespace was deleted meanwhile
        return None
