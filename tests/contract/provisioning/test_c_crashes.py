"""Contract provisioning C: the provisioner killed for real, between a real server and a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.contract.provisioning.claims_env import PATIENCE, claim, storage_class
from tests.loops.inprocess import until
from tests.support import role_processes, scripted
from tests.support.role_processes import Role, Server
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.client.client import Client

CONTROLLERS = ",".join(
    [
        "persistentvolume-binder-controller",
        "persistentvolumeclaim-protection-controller",
        "persistentvolume-protection-controller",
    ]
)


class Crashes:
    def __init__(self, server: Server, driver: scripted.ScriptedDriver, socket: scripted.Socket) -> None:
        self.server, self.driver, self.socket = server, driver, socket
        self.client: Client = server.client

    def provisioner(self, die: str = "", *flags: str) -> Role:
        return self.server.role("provisioner", "--csi-address", self.socket.path, *flags, die=die)

    async def bound(self) -> PersistentVolumeClaim:
        async def is_bound() -> PersistentVolumeClaim | None:
            mine = await self.client.get(PersistentVolumeClaim, "data", "default")
            return mine if mine.status.phase == "Bound" else None

        made: PersistentVolumeClaim = await until(is_bound, PATIENCE)
        return made

    async def nothing_left(self) -> None:
        async def empty() -> bool:
            claims = await self.client.list(PersistentVolumeClaim)
            return not claims and not await self.client.list(PersistentVolume) and not self.driver.volumes

        await until(empty, PATIENCE)


@asynccontextmanager
async def crashes(directory: Path, *features: str) -> AsyncIterator[Crashes]:
    driver = scripted.driver(*features)
    async with (
        role_processes.server(directory) as server,
        scripted.on_socket(driver) as socket,
        server.role("controller-manager", "--controllers", CONTROLLERS),
    ):
        await server.client.create(storage_class())
        yield Crashes(server, driver, socket)


@pytest.mark.parametrize("die", ["rpc:CreateVolume:after", "create PersistentVolume:before"])
async def test_a_crash_after_create_volume_ends_in_one_volume_and_one_object(
    die: str, tmp_path: Path
) -> None:
    async with crashes(tmp_path) as c:
        async with c.provisioner(die) as dying:
            await c.client.create(claim())
            await dying.wait_until_killed()
        assert len(c.driver.volumes) == 1
        assert await c.client.list(PersistentVolume) == []
        async with c.provisioner():
            mine = await c.bound()
            assert [v.name for v in await c.client.list(PersistentVolume)] == [f"pvc-{mine.uid}"]
            assert len({r.name for r in c.driver.requests_of("CreateVolume")}) == 1
            assert len(c.driver.volumes) == 1


@pytest.mark.parametrize("deleted", ["before the crash", "while it is down"])
async def test_a_crash_after_create_volume_with_the_claim_deleted_meanwhile_leaks_nothing(
    deleted: str, tmp_path: Path
) -> None:
    """Upstream leaks the disk here; the order on the claim is what saves it."""
    async with crashes(tmp_path) as c:
        hold = scripted.Hold(then=scripted.Break())
        c.driver.script("CreateVolume", hold)
        async with c.provisioner() as dying:
            await c.client.create(claim())
            await asyncio.wait_for(hold.reached_event.wait(), PATIENCE)
            if deleted == "before the crash":
                await c.client.delete(PersistentVolumeClaim, "data", "default")
            dying.kill()
        hold.release()  # the disk is made; nobody hears of it

        async def made() -> bool:
            return bool(c.driver.volumes)

        await until(made, PATIENCE)
        if deleted == "while it is down":
            await c.client.delete(PersistentVolumeClaim, "data", "default")
        async with c.provisioner():
            await c.nothing_left()
        assert len(c.driver.requests_of("DeleteVolume")) == 1


async def test_a_crash_between_the_deletion_of_the_disk_and_the_finalizer_is_finished(tmp_path: Path) -> None:
    async with crashes(tmp_path) as c:
        async with c.provisioner("rpc:DeleteVolume:after") as dying:
            await c.client.create(claim())
            await c.bound()
            await c.client.delete(PersistentVolumeClaim, "data", "default")
            await dying.wait_until_killed()
        assert c.driver.volumes == {}
        async with c.provisioner():
            await c.nothing_left()
        assert len(c.driver.requests_of("DeleteVolume")) == 2


async def test_a_crash_after_the_object_is_deleted_and_before_its_finalizer_goes_repeats_the_deletion(
    tmp_path: Path,
) -> None:
    async with crashes(tmp_path) as c:
        async with c.provisioner("delete PersistentVolume:after") as dying:
            await c.client.create(claim())
            await c.bound()
            await c.client.delete(PersistentVolumeClaim, "data", "default")
            await dying.wait_until_killed()
        (left,) = await c.client.list(PersistentVolume)
        assert left.is_deleting
        async with c.provisioner():
            await c.nothing_left()
        assert len(c.driver.requests_of("DeleteVolume")) == 2
