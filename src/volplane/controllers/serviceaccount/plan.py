"""Which of the two objects a namespace lacks."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.core import ConfigMap, ServiceAccount
from volplane.api.meta import ObjectMeta

ACCOUNT = "default"
ROOT_CA = "kube-root-ca.crt"
_DESCRIPTION = (
    "The certificate authority with which clients inside the cluster check the API server, kept current by "
    "Volplane."
)


class ServiceAccountView(Struct, frozen=True):
    namespace: str
    account: ServiceAccount | None = None
    config: ConfigMap | None = None
    root_ca: str = ""  # PEM; without it there is no ConfigMap


class CreateServiceAccount(Struct, frozen=True):
    account: ServiceAccount


class CreateRootCA(Struct, frozen=True):
    config: ConfigMap


class UpdateRootCA(Struct, frozen=True):
    root_ca: str


Step = CreateServiceAccount | CreateRootCA | UpdateRootCA


def plan(view: ServiceAccountView) -> Iterator[Step]:
    if view.account is None:
        metadata = ObjectMeta(name=ACCOUNT, namespace=view.namespace)
        yield CreateServiceAccount(ServiceAccount(metadata=metadata))
    if not view.root_ca:
        return
    data = {"ca.crt": view.root_ca}
    if view.config is None:
        about = {"kubernetes.io/description": _DESCRIPTION}
        metadata = ObjectMeta(name=ROOT_CA, namespace=view.namespace, annotations=about)
        yield CreateRootCA(ConfigMap(metadata=metadata, data=data))
    elif view.config.data != data:
        yield UpdateRootCA(view.root_ca)
