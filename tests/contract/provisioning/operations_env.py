"""What the cases of expansion and snapshots play on: the real API server, real roles, a scripted driver.

On `real()` the server is on HTTPS and the driver behind its socket; on `virtual()` both are in memory, and
minutes pass in no time. `process()` runs a role as the process that a user starts, to be killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.contract.provisioning.claims_env import QUICK_RETRIES
from tests.controllers.objects import claim as claim_of
from tests.controllers.objects import storage_class
from tests.loops.inprocess import running, until, world
from tests.support import scripted
from tests.support.https_apiserver import https_apiserver
from tests.support.snapshots import definitions
from tests.support.timing import GRAIN, is_virtual, rest
from volplane import sdk
from volplane.api.core import Event, PersistentVolume, PersistentVolumeClaim
from volplane.api.meta import Resource
from volplane.client.client import Client
from volplane.controllers.binder.controller import Binder
from volplane.controllers.protection.controller import ClaimProtection, VolumeProtection
from volplane.csi.client import Caller, CsiChannel
from volplane.sidecars import provisioner

T = TypeVar("T", bound=Resource)
Role = Callable[..., Awaitable[None]]

GI = 1 << 30
PATIENCE = 60.0


class OperationsEnv:
    def __init__(self, client: Client, driver: Any, connect: Callable[[str], Client], call: Any) -> None:
        self.client, self.driver = client, driver
        self._connect, self._call = connect, call
        self.kubeconfig = self.socket = ""

    # --- roles

    @asynccontextmanager
    async def sidecar(self, run: Role, settings: Any, component: str = "sidecar") -> AsyncIterator[None]:
        async with self._call(component) as caller:
            client = self._connect(component)
            async with running(run(client, settings, caller=caller, identity=component)):
                yield
            await client.close()

    @asynccontextmanager
    async def controllers(self, *rooms: Any) -> AsyncIterator[None]:
        clients = [self._connect(room.name) for room in rooms]
        made = [room(client) for room, client in zip(rooms, clients, strict=True)]
        async with running(*(controller.run() for controller in made)):
            yield
        for client in clients:
            await client.close()

    @asynccontextmanager
    async def process(
        self, verb: str, *flags: str, failpoint: str = ""
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """The role as a process; with a `failpoint` it kills itself there."""
        arguments = [verb, f"--kubeconfig={self.kubeconfig}", *flags]
        if verb != "snapshot-controller":
            arguments.append(f"--csi-address={self.socket}")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "volplane",
            *arguments,
            env={**os.environ, **({"VOLPLANE_FAILPOINT": failpoint} if failpoint else {})},
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()

    async def killed(self, process: asyncio.subprocess.Process) -> None:
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == -signal.SIGKILL

    # --- objects

    async def bound(self, name: str = "data", size: str = "1Gi", **spec: Any) -> PersistentVolumeClaim:
        """A claim with a volume that the driver made."""
        await self.client.create(claim_of(name, size, "fast", **spec))

        async def is_bound() -> PersistentVolumeClaim | None:
            found = await self.claim(name)
            return found if found.status.phase == "Bound" else None

        made: PersistentVolumeClaim = await self.until(is_bound)
        return made

    async def claim(self, name: str = "data") -> PersistentVolumeClaim:
        return await self.client.get(PersistentVolumeClaim, name, "default")

    async def volume(self, name: str = "data") -> PersistentVolume:
        return await self.client.get(PersistentVolume, (await self.claim(name)).spec.volume_name)

    async def ask(self, name: str = "data", **spec: Any) -> PersistentVolumeClaim:
        """What a user edits: size="2Gi", attributes="gold"."""
        patch: dict[str, Any] = {}
        if "size" in spec:
            patch["resources"] = {"requests": {"storage": spec["size"]}}
        if "attributes" in spec:
            patch["volumeAttributesClassName"] = spec["attributes"]
        return await self.client.patch(PersistentVolumeClaim, name, "default", merge={"spec": patch})

    async def until(self, test: Callable[[], Awaitable[Any]], seconds: float = PATIENCE) -> Any:
        return await until(test, seconds)

    async def until_claim(
        self, test: Callable[[PersistentVolumeClaim], Any], name: str = "data"
    ) -> PersistentVolumeClaim:
        async def found() -> PersistentVolumeClaim | None:
            claim = await self.claim(name)
            return claim if test(claim) else None

        claim: PersistentVolumeClaim = await self.until(found)
        return claim

    async def rest(self, seconds: float) -> None:
        await rest(seconds)

    async def called(self, method: str, times: int, *, pause: float) -> None:
        """Until the driver was called so often; each of these calls came at least a pause after the last."""
        await asyncio.sleep(pause * (times - 1))

        async def enough() -> bool:
            return len(self.driver.requests_of(method)) >= times

        await self.until(enough)
        assert min(self.driver.pauses(method)[: times - 1]) > pause - GRAIN

    async def gone(self, type: type[T], name: str, namespace: str = "") -> None:
        async def is_gone() -> bool:
            return await self.client.find(type, name, namespace) is None

        await self.until(is_gone)

    async def events(self, name: str = "data") -> list[tuple[str, str, str]]:
        found = await self.client.list(Event, fields=f"involvedObject.name={name}")
        return [(e.type, e.reason, e.message) for e in found]

    async def said(self, reason: str, name: str = "data") -> str:
        """The message of an event, when it is there."""

        async def found() -> list[str]:
            return [message for _, why, message in await self.events(name) if why == reason]

        messages: list[str] = await self.until(found)
        return messages[-1]

    async def count(self, reason: str, name: str = "data") -> int:
        found = await self.client.list(Event, fields=f"involvedObject.name={name}")
        return sum(e.count for e in found if e.reason == reason)


def operations_env(*features: str, mode: str = "Immediate") -> AbstractAsyncContextManager[OperationsEnv]:
    """Where the time of the test says."""
    return (virtual if is_virtual() else real)(*features, mode=mode)


@asynccontextmanager
async def virtual(*features: str, mode: str = "Immediate") -> AsyncIterator[OperationsEnv]:
    driver = scripted.driver(*features)
    takes = not {"snapshots", "groups"}.isdisjoint(features)
    async with world() as w:

        @asynccontextmanager
        async def call(component: str) -> AsyncIterator[Caller]:
            caller = sdk.Local(driver, component=component)
            yield caller
            await caller.close()

        async with _furnished(OperationsEnv(w.client, driver, w.role, call), mode, snapshots=takes) as env:
            yield env


@asynccontextmanager
async def real(*features: str, mode: str = "Immediate") -> AsyncIterator[OperationsEnv]:
    driver = scripted.driver(*features)
    takes = not {"snapshots", "groups"}.isdisjoint(features)
    async with AsyncExitStack() as stack:
        around = await stack.enter_async_context(https_apiserver())
        socket = await stack.enter_async_context(scripted.on_socket(driver))

        @asynccontextmanager
        async def call(component: str) -> AsyncIterator[Caller]:
            async with CsiChannel(socket.path, component=component) as channel:
                yield channel

        made = OperationsEnv(around.client, driver, around.role, call)
        made.kubeconfig, made.socket = around.kubeconfig, socket.path
        yield await stack.enter_async_context(_furnished(made, mode, snapshots=takes))


@asynccontextmanager
async def _furnished(env: OperationsEnv, mode: str, *, snapshots: bool) -> AsyncIterator[OperationsEnv]:
    """A class that lets its claims grow, and who makes and binds volumes."""
    for definition in definitions() if snapshots else ():
        await env.client.create(definition)
    made = storage_class("fast", mode, provisioner=scripted.NAME, allowVolumeExpansion=True)
    await env.client.create(made)
    pauses = {} if is_virtual() else QUICK_RETRIES
    async with (
        env.controllers(Binder, ClaimProtection, VolumeProtection),
        env.sidecar(provisioner.run, provisioner.ProvisionerOptions(**pauses), "csi-provisioner"),
    ):
        yield env


def directory_of(path: str) -> Path:
    return Path(path).parent


def conditions(claim: PersistentVolumeClaim) -> dict[str, str]:
    return {c.type: c.message for c in claim.status.conditions}


def sizes(claim: PersistentVolumeClaim) -> Mapping[str, str]:
    """The claim's sizes by what they mean; what is not there is ""."""
    status = claim.status
    return {
        "request": claim.spec.resources.requests.get("storage", ""),
        "capacity": status.capacity.get("storage", ""),
        "allocated": status.allocated_resources.get("storage", ""),
        "state": status.allocated_resource_statuses.get("storage", ""),
    }
