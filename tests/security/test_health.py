"""Health checks: a server whose store is unreachable or cannot write is alive, but not ready."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.apiserver.conftest import Answer, Api, client_of
from tests.support.etcd import etcd
from volplane import apiserver
from volplane.store import Store
from volplane.store.etcd import EtcdStore
from volplane.store.memory import MemoryStore
from volplane.store.sqlite import SqliteStore

PATIENCE = 60.0
MAPS = "/api/v1/namespaces/default/configmaps"


@asynccontextmanager
async def serving(directory: Path, store: Store) -> AsyncIterator[Api]:
    server = await apiserver.run(apiserver.ApiServerOptions(data_dir=str(directory)), store)
    http = client_of(server)
    try:
        yield Api(server, store, http)  # type: ignore[arg-type]  # only the tests of memory look into it
    finally:
        await http.close()
        await server.close(0)
        await store.close()


async def until(api: Api, path: str, status: int) -> Answer:
    """The first answer with this status; each asks the store anew."""
    async with asyncio.timeout(PATIENCE):
        while (got := await api.get(path)).status != status:
            pass
    return got


async def check_not_ready(api: Api) -> None:
    reported = await until(api, "/readyz", 500)
    assert "[+]ping ok\n" in reported.body.decode()
    assert "[-]etcd failed: reason withheld\n" in reported.body.decode()
    assert reported.body.decode().endswith("readyz check failed\n")
    assert (await api.get("/healthz")).status == 500
    assert (await api.get("/readyz?exclude=etcd")).status == 200
    assert (await api.get("/readyz/etcd")).body.startswith(b"internal server error: ")
    assert (await api.get("/readyz/ping")).body == b"ok"
    live = await api.get("/livez?verbose")
    assert live.status == 200
    *checks, passed = live.body.decode().splitlines()
    assert passed == "livez check passed"
    assert checks[:2] == ["[+]ping ok", "[+]log ok"]
    assert not any("etcd" in check for check in checks)
    (component,) = (await api.get("/api/v1/componentstatuses")).json["items"]
    assert component["conditions"][0]["status"] == "False"


@pytest.mark.peer("etcd")
async def test_a_server_whose_etcd_is_frozen_or_dead_is_alive_but_not_ready(tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as member:
        store = await EtcdStore.open([member.url])
        async with serving(tmp_path, store) as api:
            assert (await api.get("/readyz")).body == b"ok"
            member.freeze()
            try:
                await check_not_ready(api)
            finally:
                member.thaw()
            await until(api, "/readyz", 200)
            member.kill()
            await check_not_ready(api)
            member.start()
            member.wait()
            await until(api, "/readyz", 200)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


@pytest.mark.root
async def test_a_server_whose_disk_is_full_is_not_ready_until_there_is_space(
    tmp_path: Path, small_disk: Path
) -> None:
    store = await SqliteStore.open(small_disk / "state.db")
    async with serving(tmp_path, store) as api:
        assert (await api.get("/readyz")).body == b"ok"
        filler = fill(small_disk)
        async with asyncio.timeout(PATIENCE):  # until what the log has taken already is full as well
            for number in itertools.count():
                if (await api.post(MAPS, {"metadata": {"name": f"m{number}"}})).status >= 500:
                    break
        await check_not_ready(api)
        filler.unlink()
        assert (await api.get("/readyz")).body == b"ok"


async def test_a_store_that_stopped_after_a_disk_error_is_named_in_the_answer(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "state.db")
    async with serving(tmp_path, store) as api:
        store._writer._classify_error(OSError("Input/output error"))
        await check_not_ready(api)
        why = (await api.get("/readyz/etcd")).body.decode()
        assert "disk error (Input/output error)" in why


async def test_a_server_that_shuts_down_is_not_ready_and_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore()) as api:
        health = api.server._app.health
        health.closing = True
        reported = (await api.get("/readyz")).body.decode()
        assert "[-]shutdown failed: reason withheld\n" in reported
        assert (await api.get("/livez")).status == 200
