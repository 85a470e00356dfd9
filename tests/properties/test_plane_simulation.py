"""Users, crashes and unreliable neighbours against the whole control plane, in virtual time, by seed.

Whatever happens in between: in the end every pod runs or is gone, and what is not needed any more is nowhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest

from tests.controllers.objects import account, claim, node, pod, storage_class
from tests.loops.inprocess import InProcessEnv, until, world
from tests.properties.simulated_cluster import (
    Attacher,
    Kubelet,
    Provisioner,
    SimulatedCloud,
    SimulatedRole,
    names_of,
)
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.errors import APIError
from volplane.api.storage import VolumeAttachment
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.binder.controller import Binder
from volplane.controllers.protection.controller import ClaimProtection, VolumeProtection
from volplane.scheduler.controller import Scheduler

pytestmark = pytest.mark.virtual
SEEDS = int(os.environ.get("VOLPLANE_SEEDS", "4"))
NODES = ("a1", "a2", "b1")
ROLES: tuple[type[Any], ...] = (Binder, ClaimProtection, VolumeProtection, AttachDetach, Scheduler)
CLAIMS = tuple(f"c{i}" for i in range(4))
PODS = tuple(f"p{i}" for i in range(6))


class Stage:
    def __init__(self, around: InProcessEnv, random: Random, trouble: float) -> None:
        self.around, self.random, self.trouble = around, random, trouble
        self.client = around.client
        self.cloud = SimulatedCloud()
        self.roles: dict[type[Any], asyncio.Task[None]] = {}
        self.neighbours: list[SimulatedRole] = []

    async def open(self) -> None:
        await self.client.create(account())
        for name in NODES:
            await self.client.create(node(name, zone=name[0]))
        await self.client.create(storage_class("now", reclaimPolicy="Delete"))
        await self.client.create(storage_class("late", "WaitForFirstConsumer", reclaimPolicy="Delete"))
        for role in ROLES:
            self.start(role)
        provisioner = self._neighbour(Provisioner)
        provisioner.start()
        attacher = self._neighbour(Attacher)
        attacher.start()
        for name in NODES:
            kubelet = self._neighbour(Kubelet)
            kubelet.start(name)

    def _neighbour(self, kind: Callable[..., Any]) -> Any:
        made = kind(self.around.role("neighbour"), self.cloud, Random(self.random.random()), self.trouble)
        self.neighbours.append(made)
        return made

    def start(self, role: type[Any]) -> None:
        controller = role(self.around.role(role.__name__))
        self.roles[role] = asyncio.create_task(controller.run(), name=role.__name__)

    async def crash(self, role: type[Any]) -> None:
        task = self.roles.pop(role)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(self.random.uniform(0, 2))
        self.start(role)

    async def close(self) -> None:
        for task in self.roles.values():
            task.cancel()
        await asyncio.gather(*self.roles.values(), return_exceptions=True)
        for neighbour in self.neighbours:
            await neighbour.stop()

    async def act(self) -> None:
        """One thing that a user does, or that befalls the plane; what makes no sense is refused."""
        deed = self.random.choice(("claim", "pod", "pod", "pod", "delete pod", "delete claim", "crash"))
        with suppress(APIError):
            match deed:
                case "claim":
                    await self.client.create(claim(self._any(CLAIMS), cls=self._any(("now", "late"))))
                case "pod":
                    used = self.random.sample(CLAIMS, self.random.choice((1, 1, 2)))
                    await self.client.create(pod(self._any(PODS), *used))
                case "delete pod":
                    await self.client.delete(Pod, self._any(PODS), "default")
                case "delete claim":
                    await self.client.delete(PersistentVolumeClaim, self._any(CLAIMS), "default")
                case "crash":
                    await self.crash(self._any(ROLES))

    def _any(self, of: tuple[Any, ...]) -> Any:
        return self.random.choice(of)


@asynccontextmanager
async def stage(seed: int, trouble: float) -> AsyncIterator[Stage]:
    async with world() as around:
        made = Stage(around, Random(seed), trouble)
        await made.open()
        try:
            yield made
        finally:
            await made.close()


@pytest.mark.parametrize("trouble", [0.0, 0.2], ids=["reliable", "unreliable"])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_the_plane_comes_to_rest_with_nothing_left_over(seed: int, trouble: float) -> None:
    async with stage(seed, trouble) as s:
        for _ in range(80):
            await s.act()
            await asyncio.sleep(s.random.choice((0, 0, 0.05, 0.5, 3.0)))
        for neighbour in s.neighbours:
            neighbour.trouble = 0.0
        # A claim each, and a pod for each: everybody gets what was asked for.
        for name in PODS:
            await s.client.delete(Pod, name, "default", missing_ok=True)
        await until(lambda: _none(s, Pod), 600)
        for name in CLAIMS:
            with suppress(APIError):
                await s.client.create(claim(name, cls="late"))
        for name in CLAIMS:
            await s.client.create(pod(f"last-{name}", name))
        await until(lambda: _all_run(s), 900)
        # And in the end nothing is left.
        for name in CLAIMS:
            await s.client.delete(Pod, f"last-{name}", "default")
            await s.client.delete(PersistentVolumeClaim, name, "default", missing_ok=True)
        for kind in (Pod, PersistentVolumeClaim, VolumeAttachment, PersistentVolume):
            try:
                await until(lambda kind=kind: _none(s, kind), 900)  # type: ignore[misc]
            except TimeoutError:
                left = names_of(await s.client.list(kind))
                raise AssertionError(f"left over: {kind.__name__} {left}") from None
        assert s.cloud.errors == []
        for each in await s.client.list(Node):
            assert each.status.volumes_attached == ()
        assert s.cloud.attached == {}
        assert s.cloud.mounted == set()
        if not trouble:
            assert s.cloud.refused == 0, "an attach was asked for while the disk was elsewhere"


async def _none(s: Stage, kind: type[Any]) -> bool:
    return not await s.client.list(kind)


async def _all_run(s: Stage) -> bool:
    found = await s.client.list(Pod)
    return len(found) == len(CLAIMS) and all(p.status.phase == "Running" for p in found)
