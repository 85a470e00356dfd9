"""A server that is restarted on its data directory continues where it stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.etcd import free_port
from volplane import apiserver
from volplane.api.core import ConfigMap
from volplane.api.meta import ObjectMeta
from volplane.apiserver.server import RunningApiServer
from volplane.client.transport import PatchStyle
from volplane.store.sqlite import SqliteStore


async def start(directory: Path, port: int = 0) -> tuple[RunningApiServer, SqliteStore]:
    store = await SqliteStore.open(str(directory / "state.db"))
    options = apiserver.ApiServerOptions(data_dir=str(directory), port=port)
    return await apiserver.run(options, store), store


def config_map(name: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"))


async def test_objects_revisions_and_history_survive_a_restart(tmp_path: Path) -> None:
    port = free_port()  # a restarted server publishes its port, so it must be the same
    server, store = await start(tmp_path, port)
    first = await server.in_process_transport().create(config_map("a"))
    second = await server.in_process_transport().create(config_map("b"))
    await server.close(0)
    await store.close()

    server, store = await start(tmp_path, port)
    local = server.in_process_transport()
    page = await local.list(ConfigMap, "default")
    assert [m.name for m in page.items] == ["a", "b"]
    assert page.items[0] == first
    assert page.revision == second.revision  # bootstrap found everything there and wrote nothing
    third = await local.create(config_map("c"))
    assert third.revision == second.revision + 1
    async with local.watch(ConfigMap, "default", revision=first.revision) as changes:
        received = [change.object for change in await anext(changes)]
        assert received == [second, third]
    await server.close(0)
    await store.close()


async def test_many_writers_of_one_object_lose_no_write(tmp_path: Path) -> None:
    server, store = await start(tmp_path)
    local = server.in_process_transport()
    await local.create(config_map("a"))

    async def write(who: int) -> None:
        for at in range(5):
            patch = {"data": {f"w{who}-{at}": "x"}}
            await local.patch(ConfigMap, "a", "default", patch, PatchStyle.MERGE)

    await asyncio.gather(*(write(who) for who in range(10)))
    assert len((await local.get(ConfigMap, "a", "default")).data) == 50
    await server.close(0)
    await store.close()
