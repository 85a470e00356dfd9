"""Requests before RBAC is loaded, and recovery after a missed change."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from volplane import apiserver, web
from volplane.api.core import Node
from volplane.api.errors import Forbidden
from volplane.api.meta import ObjectMeta
from volplane.api.rbac import ClusterRoleBinding, RoleRef, Subject
from volplane.apiserver.auth.certificates import CertificateAuthority
from volplane.apiserver.in_process_server import InProcessServer
from volplane.apiserver.strategy import RequestUser
from volplane.store import Listing
from volplane.store.memory import MemoryStore
from volplane.web import tls

PATIENCE = 10.0


class SlowStore(MemoryStore):
    """Lists block until `let` is set."""

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


async def wait_for_answer(http: web.HttpClient, path: str) -> web.ClientResponse:
    """Return the first response of a server that may not listen yet."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await http.request("GET", path, timeout=PATIENCE)
            except OSError:
                await asyncio.sleep(0.01)


async def test_requests_during_startup_wait_for_it(tmp_path: Path) -> None:
    store, port = SlowStore(), free_port()
    authority = CertificateAuthority(tmp_path / "pki")
    pair = authority.client("somebody", "system:kube-scheduler", ())
    context = tls.client_context(str(authority.pair.cert_path), str(pair.cert_path), str(pair.key_path))
    http = web.HttpClient(f"https://127.0.0.1:{port}", ssl=context)
    starting = asyncio.create_task(
        apiserver.run(apiserver.ApiServerOptions(data_dir=str(tmp_path), port=port), store)
    )
    try:
        assert (await wait_for_answer(http, "/livez")).status == 200
        assert (await wait_for_answer(http, "/readyz")).status == 500
        asked = asyncio.create_task(http.request("GET", "/api/v1/nodes", timeout=PATIENCE))
        assert (await wait_for_answer(http, "/readyz")).status == 500
        assert not asked.done()
        store.let.set()
        assert (await asked).status == 200
        assert (await wait_for_answer(http, "/readyz")).status == 200
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


async def may_list_nodes(core: InProcessServer, name: str) -> bool:
    try:
        await core.in_process_transport(RequestUser(name)).list(Node)
    except Forbidden:
        return False
    return True


async def run_pending_tasks() -> None:
    """Let all ready tasks run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_index_whose_watch_was_overrun_lists_again() -> None:
    store = MemoryStore(backlog=4)
    core = await InProcessServer(store).start()
    try:
        admin = core.in_process_transport()
        await admin.create(binding("gone"))
        await asyncio.sleep(0)
        for number in range(10):  # no other task runs in between, so its watch falls behind
            await admin.create(binding(f"user-{number}"))
        await admin.delete(ClusterRoleBinding, "gone")
        await run_pending_tasks()
        assert all([await may_list_nodes(core, f"user-{number}") for number in range(10)])
        assert not await may_list_nodes(core, "gone")
        await admin.create(binding("later"))
        await run_pending_tasks()
        assert await may_list_nodes(core, "later")
    finally:
        await core.close()
        await store.close()
