"""The real server over HTTPS, as the contract's cases meet it: one of its own, or one shared by a file."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
import yaml

from tests.apiserver.conftest import Api, client_of, served
from volplane import apiserver, web
from volplane.store.memory import MemoryStore
from volplane.web import tls

__all__ = ["served"]

PATIENCE = 60.0
T = TypeVar("T")


class Here(Api):
    """The administrator of the shared server, with a namespace of the test's own."""

    space = ""

    def at(self, plural: str, *below: str, group: str = "") -> str:
        """The path of a collection in the test's namespace, or of what is below it."""
        root = f"/apis/{group}" if group else "/api/v1"
        return "/".join((f"{root}/namespaces/{self.space}/{plural}", *below))


class Shared:
    """A server in a thread of its own: the tests' loops come and go, it stays."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="the shared server")
        self._numbers = itertools.count(1)

    def start(self) -> None:
        self._thread.start()
        self.store = MemoryStore()
        settings = apiserver.ApiServerOptions(data_dir=str(self.directory))
        self.server = self.call(apiserver.run(settings, self.store))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Done where the server lives; its state belongs to that thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def stop(self) -> None:
        self.call(self.server.close(0))
        self.call(self.store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @asynccontextmanager
    async def __call__(self, login: str = "certificate") -> AsyncIterator[Here]:
        """`async with shared() as api:` - a client in this test's loop, and an empty namespace."""
        http = client_of(self.server, login)
        here = Here(self.server, self.store, http)
        here.space = f"t{next(self._numbers)}"
        try:
            if login == "certificate":
                made = await here.post("/api/v1/namespaces", {"metadata": {"name": here.space}})
                assert made.status == 201, made.json
            yield here
        finally:
            await http.close()


class Peer:
    """Another API server in place of ours: what the cases expect is what a real one does."""

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig = Path(kubeconfig)
        config = yaml.safe_load(self.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.url, self._token = cluster["server"], user["token"]
        self._ca = cluster["certificate-authority"]
        self.port = int(self.url.rpartition(":")[2])
        self._numbers = itertools.count(time.time_ns())

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Here]:
        headers = {"authorization": f"Bearer {self._token}"}
        http = web.HttpClient(self.url, ssl=tls.client_context(self._ca), headers=headers)
        here = Here(self, MemoryStore(), http)
        here.space = f"t{next(self._numbers)}"
        try:
            await here.post("/api/v1/namespaces", {"metadata": {"name": here.space}})
            yield here
        finally:
            await http.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared | Peer]:
    """`VOLPLANE_CONTRACT_PEER=kubeconfig` runs the cases that share a server against another one."""
    if peer := os.environ.get("VOLPLANE_CONTRACT_PEER"):
        yield Peer(peer)
        return
    server = Shared(tmp_path_factory.mktemp("shared"))
    server.start()
    yield server
    server.stop()
