"""Before the server knows anybody's roles, and when it has missed how they changed."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from volplane import apiserver, web
from volplane.api.core import Node
from volplane.api.errors import Forbidden
from volplane.api.meta import ObjectMeta
from volplane.api.rbac import ClusterRoleBinding, RoleRef, Subject
from volplane.apiserver.auth.certificates import Authority
from volplane.apiserver.core import Core
from volplane.apiserver.strategy import User
from volplane.store import Listing
from volplane.store.memory import MemoryStore
from volplane.web import tls

PATIENCE = 10.0


class Slow(MemoryStore):
    """Lists nothing until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()

    async def list(self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0) -> Listing:
        await self.let.wait()
        return await super().list(prefix, after=after, limit=limit, revision=revision)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def connected(http: web.Http, path: str) -> web.Answer:
    """The first answer of a server that may not listen yet."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await http.request("GET", path, timeout=PATIENCE)
            except OSError:
                await asyncio.sleep(0.01)


async def test_who_comes_before_the_start_is_over_waits_for_it(tmp_path: Path) -> None:
    store, port = Slow(), free_port()
    authority = Authority(tmp_path / "pki")
    pair = authority.client("somebody", "system:kube-scheduler", ())
    context = tls.client_context(str(authority.pair.cert_path), str(pair.cert_path), str(pair.key_path))
    http = web.Http(f"https://127.0.0.1:{port}", ssl=context)
    starting = asyncio.create_task(
        apiserver.run(apiserver.Settings(data_dir=str(tmp_path), port=port), store)
    )
    try:
        assert (await connected(http, "/livez")).status == 200
        assert (await connected(http, "/readyz")).status == 500
        asked = asyncio.create_task(http.request("GET", "/api/v1/nodes", timeout=PATIENCE))
        assert (await connected(http, "/readyz")).status == 500
        assert not asked.done()
        store.let.set()
        assert (await asked).status == 200
        assert (await connected(http, "/readyz")).status == 200
    finally:
        store.let.set()
        await http.close()
        await (await starting).close(0)
        await store.close()


def binding(name: str) -> ClusterRoleBinding:
    group = "rbac.authorization.k8s.io"
    return ClusterRoleBinding(
        metadata=ObjectMeta(name=name),
        subjects=(Subject(kind="User", api_group=group, name=name),),
        role_ref=RoleRef(api_group=group, kind="ClusterRole", name="cluster-admin"),
    )


async def allowed(core: Core, name: str) -> bool:
    try:
        await core.local(User(name)).list(Node)
    except Forbidden:
        return False
    return True


async def turns() -> None:
    """Let everybody run who can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_index_that_was_overrun_lists_again() -> None:
    store = MemoryStore(backlog=4)
    core = await Core(store).start()
    try:
        admin = core.local()
        await admin.create(binding("gone"))
        await asyncio.sleep(0)
        for number in range(10):  # nobody else runs in between, so its watch falls behind
            await admin.create(binding(f"user-{number}"))
        await admin.delete(ClusterRoleBinding, "gone")
        await turns()
        assert all([await allowed(core, f"user-{number}") for number in range(10)])
        assert not await allowed(core, "gone")
        await admin.create(binding("later"))
        await turns()
        assert await allowed(core, "later")
    finally:
        await core.close()
        await store.close()
