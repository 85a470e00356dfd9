"""Contract provisioning A: the PV controller killed after each of its four writes, on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.provisioning.claims_env import PATIENCE, claim, volume
from tests.loops.inprocess import until
from tests.support import role_processes
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.client.client import Client
from volplane.rules.binding import is_pair

ONLY = ("controller-manager", "--controllers", "persistentvolume-binder-controller")


async def pair(client: Client) -> bool:
    mine = await client.get(PersistentVolumeClaim, "data", "default")
    named = await client.find(PersistentVolume, mine.spec.volume_name) if mine.spec.volume_name else None
    return named is not None and is_pair(mine, named) and named.status.phase == "Bound"


@pytest.mark.parametrize(
    "write",
    [
        "patch PersistentVolume",
        "patch PersistentVolume/status",
        "patch PersistentVolumeClaim",
        "patch PersistentVolumeClaim/status",
    ],
)
async def test_a_crash_after_each_of_the_four_writes_is_finished_and_no_second_volume_taken(
    write: str, tmp_path: Path
) -> None:
    async with role_processes.server(tmp_path) as server:
        for name in ("one", "two"):
            await server.client.create(volume(name))
            await server.client.patch(
                PersistentVolume, name, merge={"status": {"phase": "Available"}}, subresource="status"
            )
        async with server.role(*ONLY, die=f"{write}:after") as dying:
            await server.client.create(claim(cls=""))
            await dying.wait_until_killed()
        before = [v.name for v in await server.client.list(PersistentVolume) if v.spec.claim_ref]
        assert len(before) == 1
        async with server.role(*ONLY):
            await until(lambda: pair(server.client), PATIENCE)
        after = [v.name for v in await server.client.list(PersistentVolume) if v.spec.claim_ref]
        assert after == before
