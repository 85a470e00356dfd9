"""The live page over HTTP, with a real API server and without a browser."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.controllers import objects
from tests.dashboard.pages import serve_page, version_of
from volplane.api import codec
from volplane.api.rbac import ClusterRole, ClusterRoleBinding
from volplane.apiserver.strategy import RequestUser
from volplane.client.client import Client
from volplane.dashboard import open_views
from volplane.dashboard.gate import SECURITY_HEADERS

PATIENCE = 30.0


async def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the page has no event for it
        await asyncio.sleep(0.01)


LOADS = """
import sys
from volplane.cluster import single_process
loaded = {name for name in sys.modules if name.startswith("volplane.dashboard")}
print(sorted(loaded))
"""


def test_a_cluster_loads_the_entrance_of_the_page_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADS], capture_output=True, text=True, timeout=60, check=True
    )
    names = (
        "volplane.dashboard",
        "volplane.dashboard.entrance",
        "volplane.dashboard.gate",
        "volplane.dashboard.source",
    )
    assert done.stdout.strip() == str(list(names))


async def allow(client: Client, user: str, *resources: str) -> None:
    """Let a user read these resources."""
    groups = ["", "storage.k8s.io"]
    rules = [{"verbs": ["get", "list", "watch"], "apiGroups": groups, "resources": list(resources)}]
    subjects = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}
    await client.create(codec.convert(ClusterRole, {"metadata": {"name": user}, "rules": rules}))
    binding = {"metadata": {"name": user}, "subjects": subjects, "roleRef": ref}
    await client.create(codec.convert(ClusterRoleBinding, binding))


@pytest.mark.parametrize("path", ["/", "/cluster", "/page.css", "/0123456789abcdef/cluster", "/?token=wrong"])
async def test_without_a_session_nothing_is_shown(path: str) -> None:
    async with serve_page() as (page, _, _):
        answer = await page.http.request("GET", path)
        assert answer.status == 403
        assert b"volplane ui" in answer.body
        assert not answer.headers.get("Set-Cookie")


async def test_every_answer_has_the_security_headers() -> None:
    async with serve_page() as (page, _, _):
        refused = await page.http.request("GET", "/")
        await page.log_in()
        html = await page.ask("/cluster")
        style = html.body.decode().partition('rel="stylesheet" href="')[2].partition('"')[0]
        answers = [refused, html, await page.ask("/none"), await page.ask(style.removeprefix(page.prefix))]
        assert [answer.status for answer in answers] == [403, 200, 404, 200]
        for answer in answers:
            assert {name: answer.headers.get(name) for name, _ in SECURITY_HEADERS} == dict(SECURITY_HEADERS)
        assert html.headers.get("Cache-Control") == "no-store"
        policy = html.headers.get("Content-Security-Policy")
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy


async def test_a_page_has_no_inline_script_or_style() -> None:
    async with serve_page() as (page, client, _):
        await client.create(objects.node("worker-1"))
        await page.log_in()
        html = await page.get("/cluster")
        assert "<style" not in html
        assert " style=" not in html
        assert html.count("<script") == html.count("<script src=") == 1
        assert not any(f" on{event}=" in html for event in ("click", "load", "error", "input"))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_no_request_changes_anything(method: str) -> None:
    async with serve_page() as (page, _, _):
        await page.log_in()
        answer = await page.http.request(method, f"{page.prefix}/cluster", headers={"Cookie": page.cookie})
        assert answer.status == 405
        assert answer.headers.get("Allow") == "GET, HEAD"


async def test_a_foreign_host_header_is_refused_although_the_session_is_right() -> None:
    async with serve_page() as (page, _, _):
        await page.log_in()
        headers = f"Host: evil.example:{page.page.port}\r\nCookie: {page.cookie}"
        reader, writer = await asyncio.open_connection("127.0.0.1", page.page.port)
        writer.write(f"GET {page.prefix}/cluster HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 421")
        assert b"<html" not in answer


async def test_names_of_objects_cannot_become_markup() -> None:
    async with serve_page() as (page, client, _):
        labels = {"topology.kubernetes.io/zone": "a"}
        pod = objects.pod("web", on="worker-1")
        await client.create(objects.account())
        await client.create(
            codec.convert(type(objects.node("n")), {"metadata": {"name": "worker-1", "labels": labels}})
        )
        await client.create(pod)
        await page.log_in()
        html = await page.get('/cluster?q=<script>alert("1")</script>')
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert(&quot;1&quot;)" in html


async def test_a_change_is_sent_to_an_open_page() -> None:
    async with serve_page() as (page, client, _), asyncio.timeout(PATIENCE):
        await client.create(objects.node("worker-1"))
        await page.log_in()
        html = await page.get("/cluster")
        assert 'id="node-worker-1"' in html
        async with page.events("/cluster", version_of(html)) as events:
            await client.create(objects.claim("data", "5Gi"))
            while "data" not in (changed := await anext(events)).get("storage", ""):
                pass
            assert "node-worker-1" not in changed


async def test_a_view_and_what_it_follows_are_closed_after_the_last_viewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_views, "LINGER", 0.05)
    async with serve_page() as (page, client, _), asyncio.timeout(PATIENCE):
        await client.create(objects.node("worker-1"))
        await page.log_in()
        before = len(asyncio.all_tasks())
        html = await page.get("/cluster")
        async with page.events("/cluster", version_of(html)):
            await asyncio.sleep(0.2)
            assert len(asyncio.all_tasks()) > before + 5
        pages = page.page._pages
        assert pages is not None
        await wait_until(lambda: pages._views._observer is None)
        assert not pages._views._views
        assert len(asyncio.all_tasks()) <= before + 1  # the connection of the page


async def test_the_page_shows_what_its_user_may_read_and_says_what_it_may_not() -> None:
    viewer = RequestUser("viewer", ("system:authenticated",))
    async with serve_page(viewer) as (page, client, _), asyncio.timeout(PATIENCE):
        await client.create(objects.node("worker-1"))
        await client.create(objects.claim("data"))
        await allow(client, "viewer", "nodes", "persistentvolumes")
        await page.log_in()
        html = await page.get("/cluster")
        assert "worker-1" in html
        assert "data" not in html.partition("<main")[2].replace("data-", "")
        assert "persistentvolumeclaims is forbidden" in html


async def test_many_views_are_not_kept_for_nothing() -> None:
    async with serve_page() as (page, _, _), asyncio.timeout(PATIENCE):
        await page.log_in()
        for number in range(open_views.MOST_UNUSED + 8):
            await page.get(f"/cluster?q={number}")
        pages = page.page._pages
        assert pages is not None
        views = pages._views._views
        await wait_until(lambda: len(views) <= open_views.MOST_UNUSED)
