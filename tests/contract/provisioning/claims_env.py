"""The claim side of a control plane around a scripted driver, and a user who looks at it.

Roles are the real ones; which of them run is the test's choice. By default they are clients of the server
over HTTPS, each with its own connections and caches, and the driver is behind a Unix socket; pauses are short
there, by the flags that set them. In virtual time everything is in memory, and minutes pass in no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any

from tests.controllers.objects import account
from tests.loops.inprocess import InProcessEnv, running, until, world
from tests.support import scripted
from tests.support.https_apiserver import HttpsApiServer, https_apiserver
from tests.support.timing import is_virtual, rest
from volplane import sdk
from volplane.api import codec
from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret
from volplane.api.storage import CSINode, StorageClass, VolumeAttributesClass
from volplane.controllers.binder.controller import Binder
from volplane.controllers.ephemeral.controller import EphemeralVolumes
from volplane.controllers.protection.controller import ClaimProtection, VolumeProtection
from volplane.rules.binding import is_pair
from volplane.sidecars import provisioner

PATIENCE = 60.0
# Where time is real, a retry comes soon and rounds over everything are frequent.
QUICK_ROUNDS: Mapping[str, Any] = MappingProxyType({"sync_period": 0.25})
QUICK_RETRIES: Mapping[str, Any] = MappingProxyType({"retry_interval_start": 0.05})
CONTROLLERS = {
    "binder": Binder,
    "claim-protection": ClaimProtection,
    "volume-protection": VolumeProtection,
    "ephemeral": EphemeralVolumes,
}
EVERYBODY = ("binder", "claim-protection", "volume-protection", "ephemeral", "provisioner")


class ClaimsEnv:
    def __init__(self, around: InProcessEnv | HttpsApiServer, driver: Any = None) -> None:
        self.around, self.client, self.driver = around, around.client, driver

    # --- what a user does

    async def storage_class(self, name: str = "fast", **more: Any) -> StorageClass:
        return await self.client.create(storage_class(name, **more))

    async def claim(self, name: str = "data", **more: Any) -> PersistentVolumeClaim:
        return await self.client.create(claim(name, **more))

    async def volume(self, name: str, size: str = "1Gi", **more: Any) -> PersistentVolume:
        return await self.client.create(volume(name, size, **more))

    async def pod(self, name: str, *claims: str, node: str = "", **spec: Any) -> Pod:
        return await self.client.create(pod(name, *claims, node=node, **spec))

    async def node(self, name: str, zone: str) -> None:
        labels = {"kubernetes.io/hostname": name, scripted.ZONE: zone}
        await self.client.create(codec.convert(Node, {"metadata": {"name": name, "labels": labels}}))
        drivers = [{"name": scripted.NAME, "nodeID": name, "topologyKeys": [scripted.ZONE]}]
        await self.client.create(
            codec.convert(CSINode, {"metadata": {"name": name}, "spec": {"drivers": drivers}})
        )

    async def secret(self, name: str, namespace: str = "default", **data: str) -> None:
        made = {"metadata": {"name": name, "namespace": namespace}, "stringData": data}
        await self.client.create(codec.convert(Secret, made))

    async def attributes(self, name: str, driver: str = scripted.NAME, **parameters: str) -> None:
        made = {"metadata": {"name": name}, "driverName": driver, "parameters": parameters}
        await self.client.create(codec.convert(VolumeAttributesClass, made))

    async def edit(
        self, kind: type[Any], name: str, patch: Mapping[str, Any], *, status: bool = False
    ) -> Any:
        subresource = "status" if status else ""
        return await self.client.patch(kind, name, _space(kind), merge=patch, subresource=subresource)

    async def delete(self, kind: type[Any], name: str, **more: Any) -> None:
        await self.client.delete(kind, name, _space(kind), **more)

    # --- what a user sees

    async def find(self, kind: type[Any], name: str) -> Any:
        return await self.client.find(kind, name, _space(kind))

    async def none_left(self, kind: type[Any]) -> bool:
        return await self.client.list(kind) == []

    async def volumes(self) -> list[PersistentVolume]:
        return await self.client.list(PersistentVolume)

    async def bound(self, name: str = "data", to: str = "") -> tuple[PersistentVolumeClaim, PersistentVolume]:
        async def both() -> Any:
            mine = await self.find(PersistentVolumeClaim, name)
            theirs = await self.find(PersistentVolume, to or mine.spec.volume_name or "-")
            agreed = theirs is not None and is_pair(mine, theirs) and theirs.status.phase == "Bound"
            return (mine, theirs) if agreed else None

        found: tuple[PersistentVolumeClaim, PersistentVolume] = await until(both, PATIENCE)
        return found

    async def phase(self, kind: type[Any], name: str, phase: str) -> Any:
        async def reached() -> Any:
            found = await self.find(kind, name)
            return found if found is not None and found.status.phase == phase else None

        return await until(reached, PATIENCE)

    async def appears(self, kind: type[Any], name: str) -> Any:
        return await until(lambda: self.find(kind, name), PATIENCE)

    async def gone(self, kind: type[Any], name: str) -> None:
        async def away() -> bool:
            return await self.find(kind, name) is None

        await until(away, PATIENCE)

    async def guarded(self, kind: type[Any], name: str, finalizer: str) -> None:
        async def there() -> bool:
            found = await self.find(kind, name)
            return found is not None and finalizer in found.metadata.finalizers

        await until(there, PATIENCE)

    async def event(self, reason: str, message: str = "", *, about: str = "") -> Event:
        async def reported() -> Event | None:
            return next(iter(await self.events(reason, message, about=about)), None)

        found: Event = await until(reported, PATIENCE)
        return found

    async def events(self, reason: str, message: str = "", *, about: str = "") -> list[Event]:
        everything = await self.client.list(Event)
        return [
            e
            for e in everything
            if e.reason == reason and message in e.message and about in ("", e.involved_object.name)
        ]

    async def called(self, method: str, times: int = 1) -> list[Any]:
        """The requests, once there are that many."""
        return await self.called_by(self.driver, method, times)

    async def called_by(self, driver: Any, method: str, times: int = 1) -> list[Any]:
        async def enough() -> list[Any] | None:
            return found if len(found := driver.requests_of(method)) >= times else None

        found: list[Any] = await until(enough, PATIENCE)
        return found

    async def rest(self, seconds: float = 1.0) -> None:
        await rest(seconds)


def _space(kind: type[Any]) -> str:
    return "" if kind in (PersistentVolume, StorageClass, Node, CSINode, VolumeAttributesClass) else "default"


@asynccontextmanager
async def claims_env(
    driver: Any = None,
    roles: tuple[str, ...] = EVERYBODY,
    *,
    binder: Mapping[str, Any] | None = None,
    client: Any = None,
    on: Callable[[], AbstractAsyncContextManager[InProcessEnv | HttpsApiServer]] | None = None,
    **settings: Any,
) -> AsyncIterator[ClaimsEnv]:
    """`binder` are its options, `settings` the provisioner's, `client` the one that the provisioner uses,
    `on` the server where it is not the usual one.
    """
    rounds = {**({} if is_virtual() else QUICK_ROUNDS), **(binder or {})}
    async with (on or (world if is_virtual() else https_apiserver))() as around, AsyncExitStack() as stack:
        await around.client.create(account())
        jobs = [
            kind(around.role(name), **(rounds if name == "binder" else {})).run()
            for name, kind in CONTROLLERS.items()
            if name in roles
        ]
        await stack.enter_async_context(running(*jobs))
        if driver is not None and "provisioner" in roles:
            role = client(around) if client is not None else around.role("csi-provisioner")
            await stack.enter_async_context(provisioning(role, driver, **settings))
        yield ClaimsEnv(around, driver)


@asynccontextmanager
async def provisioning(role: Any, driver: Any, **settings: Any) -> AsyncIterator[None]:
    async with running(provision(role, driver, **settings)):
        if is_virtual():
            await asyncio.sleep(0.1)
        yield


async def provision(role: Any, driver: Any, **settings: Any) -> None:
    """The provisioner beside the driver: in memory where time is virtual, else on a socket."""
    options = {k: settings.pop(k) for k in ("identity", "namespace", "node") if k in settings}
    options = {"identity": "me", **options}
    if is_virtual():
        caller = sdk.Local(driver, component="csi-provisioner")
        try:
            await provisioner.run(role, provisioner.ProvisionerOptions(**settings), caller=caller, **options)
        finally:
            await caller.close()
    else:
        async with scripted.on_socket(driver) as socket:
            made = provisioner.ProvisionerOptions(csi_address=socket.path, **{**QUICK_RETRIES, **settings})
            await provisioner.run(role, made, **options)


# --- objects


def storage_class(name: str = "fast", mode: str = "Immediate", **more: Any) -> StorageClass:
    notes = {"storageclass.kubernetes.io/is-default-class": "true"} if more.pop("default", False) else {}
    whole = {"provisioner": scripted.NAME, "volumeBindingMode": mode, "reclaimPolicy": "Delete", **more}
    return codec.convert(StorageClass, {"metadata": {"name": name, "annotations": notes}, **whole})


def claim(
    name: str = "data", size: str = "1Gi", cls: str | None = "fast", notes: Any = None, **spec: Any
) -> PersistentVolumeClaim:
    metadata = {"name": name, "namespace": "default", "annotations": notes or {}}
    whole = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec}
    if cls is not None:
        whole["storageClassName"] = cls
    return codec.convert(PersistentVolumeClaim, {"metadata": metadata, "spec": whole})


def volume(name: str, size: str = "1Gi", cls: str = "", **more: Any) -> PersistentVolume:
    metadata = {"name": name, **more.pop("metadata", {})}
    whole = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": size},
        "storageClassName": cls,
        "csi": {"driver": scripted.NAME, "volumeHandle": f"vol-{name}"},
        **more,
    }
    return codec.convert(PersistentVolume, {"metadata": metadata, "spec": whole})


def pod(name: str, *claims: str, node: str = "", **spec: Any) -> Pod:
    volumes = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": c}} for i, c in enumerate(claims)]
    whole = {"containers": [{"name": "c", "image": "busybox"}], "volumes": volumes, "nodeName": node, **spec}
    return codec.convert(Pod, {"metadata": {"name": name, "namespace": "default"}, "spec": whole})
