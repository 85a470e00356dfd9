"""Makes both objects for a namespace, and again when somebody deletes or changes them."""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.core import ConfigMap, Namespace, ServiceAccount
from volplane.api.errors import Forbidden, NotFound
from volplane.api.meta import ObjectMeta, Resource
from volplane.client.client import Client
from volplane.loops.controller import Controller

ACCOUNT = "default"
ROOT_CA = "kube-root-ca.crt"
_ABOUT = (
    "The certificate authority with which clients inside the cluster check the API server, kept current by "
    "Volplane."
)


class ServiceAccounts(Controller[str]):
    name = "serviceaccount-controller"

    def __init__(self, client: Client, *, root_ca: str = "") -> None:
        super().__init__(client)
        self.root_ca = root_ca  # PEM; without it no ConfigMap is made

    def setup(self) -> None:
        self.namespaces = self.watch(Namespace, lambda old, new: [new.name] if new else [])
        named = {"fields": f"metadata.name={ACCOUNT}"}
        self.accounts = self.watch(ServiceAccount, self._namespace_of, **named)
        self.maps = self.watch(ConfigMap, self._namespace_of, fields=f"metadata.name={ROOT_CA}")

    def _namespace_of(self, old: Resource | None, new: Resource | None) -> Iterable[str]:
        held = new or old
        return [held.namespace] if held else []

    async def reconcile(self, key: str) -> None:
        namespace = self.namespaces.get(key)
        if namespace is None or namespace.is_deleting:
            return
        try:
            await self._ensure(key)
        except (NotFound, Forbidden):
            return  # the namespace went while we looked

    async def _ensure(self, namespace: str) -> None:
        if self.accounts.get(ACCOUNT, namespace) is None:
            account = ServiceAccount(metadata=ObjectMeta(name=ACCOUNT, namespace=namespace))
            await self.client.create(account, exists_ok=True)
        if not self.root_ca:
            return
        held = self.maps.get(ROOT_CA, namespace)
        data = {"ca.crt": self.root_ca}
        if held is None:
            metadata = ObjectMeta(
                name=ROOT_CA, namespace=namespace, annotations={"kubernetes.io/description": _ABOUT}
            )
            await self.client.create(ConfigMap(metadata=metadata, data=data), exists_ok=True)
        elif held.data != data:
            await self.client.patch(ConfigMap, ROOT_CA, namespace, merge={"data": data}, missing_ok=True)
