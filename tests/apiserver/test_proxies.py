"""Requests to pods, Services and nodes through the API server's proxies."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.test_kubectl import Kubectl
from tests.apiserver.test_streams import pod_on_a_node
from volplane import web

SPACE = "/api/v1/namespaces/default"


def own_address() -> str:
    """An address of this machine that is not only its own; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.77", 9))
        except OSError:
            pytest.skip("this machine has no address but its loopback")
        address: str = probe.getsockname()[0]
        return address


class WebServer:
    """What runs in the pod."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.headers: list[web.Headers] = []

    async def __call__(self, request: web.Request) -> web.Response | web.Upgraded:
        self.requests.append((request.method, request.path, request.query.raw))
        self.headers.append(request.headers)
        if request.headers.get("upgrade"):
            stream = await request.upgrade([("Connection", "Upgrade"), ("Upgrade", "echo")])
            while data := await stream.read():
                await stream.write(data.upper())
            return web.Upgraded()
        if request.path == "/moved":
            return web.Response(status=302, headers=[("Location", "/here")], body=b"")
        if request.path == "/missing":
            return web.Response(status=404, headers=[("Content-Type", "text/plain")], body=b"nothing\n")
        return web.Response(
            headers=[("Content-Type", "text/x"), ("X-Own", "1")], body=request.body or b"hi\n"
        )


@asynccontextmanager
async def web_pod(api: Any) -> AsyncIterator[tuple[WebServer, int]]:
    """A pod `web` at an address of this machine, with a Service `web` (80 → its port)."""
    address, main = own_address(), WebServer()
    listener = await web.serve(main, host=address)
    await api.post(f"{SPACE}/serviceaccounts", {"metadata": {"name": "default"}})
    box = {"name": "c", "image": "i", "ports": [{"containerPort": listener.port}]}
    await api.post(f"{SPACE}/pods", {"metadata": {"name": "web"}, "spec": {"containers": [box]}})
    status = {"podIP": address, "podIPs": [{"ip": address}]}
    assert (await api.merge(f"{SPACE}/pods/web/status", {"status": status})).status == 200
    ports = [{"name": "http", "port": 80, "targetPort": listener.port}]
    await api.post(f"{SPACE}/services", {"metadata": {"name": "web"}, "spec": {"ports": ports}})
    of = {"kind": "Pod", "name": "web", "namespace": "default"}
    subset = {
        "addresses": [{"ip": address, "targetRef": of}],
        "ports": [{"name": "http", "port": listener.port}],
    }
    made = await api.post(f"{SPACE}/endpoints", {"metadata": {"name": "web"}, "subsets": [subset]})
    assert made.status == 201, made.json
    try:
        yield main, listener.port
    finally:
        await listener.close(0)


async def test_a_pod_answers_through_its_proxy(served: Any) -> None:
    async with served() as api, web_pod(api) as (main, port):
        for name in ("web", f"web:{port}", f"http:web:{port}"):
            got = await api.get(
                f"{SPACE}/pods/{name}/proxy/a/b%20c?x=1&y=2", x_mine="v", impersonate_none="x"
            )
            assert (got.status, got.body) == (200, b"hi\n")
            assert (got.headers.get("content-type"), got.headers.get("x-own")) == ("text/x", "1")
            assert main.requests.pop() == ("GET", "/a/b c", "x=1&y=2")
            sent = main.headers.pop()
            assert sent.get("x-mine") == "v"
            assert sent.get("x-forwarded-uri") == f"{SPACE}/pods/{name}/proxy/a/b c"
            assert "authorization" not in sent
            assert "impersonate-none" not in sent
        posted = await api.post(f"{SPACE}/pods/web/proxy/form", {"a": 1})
        assert posted.body == b'{"a": 1}'
        assert main.requests.pop() == ("POST", "/form", "")


async def test_errors_and_redirections_of_the_pod_reach_the_client(served: Any) -> None:
    async with served() as api, web_pod(api):
        missing = await api.get(f"{SPACE}/pods/web/proxy/missing")
        assert (missing.status, missing.body) == (404, b"nothing\n")
        moved = await api.get(f"{SPACE}/pods/web/proxy/moved")
        assert (moved.status, moved.headers.get("location")) == (302, f"{SPACE}/pods/web/proxy/here")
        bare = await api.get(f"{SPACE}/pods/web/proxy?a=b")
        assert (bare.status, bare.headers.get("location")) == (301, f"{SPACE}/pods/web/proxy/?a=b")


async def test_a_connection_may_be_upgraded(served: Any) -> None:
    async with served() as api, web_pod(api):
        headers = [("Connection", "Upgrade"), ("Upgrade", "echo")]
        answer, stream = await api.http.upgrade(f"{SPACE}/pods/web/proxy/socket", headers)
        assert answer.status == 101
        assert stream is not None
        await stream.write(b"hello")
        async with asyncio.timeout(60):
            assert await stream.read() == b"HELLO"
        stream.close()


async def test_a_service_answers_with_one_of_its_pods(served: Any) -> None:
    async with served() as api, web_pod(api) as (main, _):
        for name in ("web:80", "web:http", "http:web:http"):
            assert (await api.get(f"{SPACE}/services/{name}/proxy/x")).body == b"hi\n"
        assert len(main.requests) == 3
        for name, why in (
            ("web:81", 'no service port 81 found for service "web"'),
            ("web:other", 'no endpoints available for service "web:other"'),
        ):
            answer = await api.get(f"{SPACE}/services/{name}/proxy/")
            assert (answer.status, answer.json["message"]) == (503, why)
        assert (await api.get(f"{SPACE}/services/nobody:80/proxy/")).status == 404
        # An endpoint counts only as long as its pod has that address.
        await api.merge(f"{SPACE}/pods/web/status", {"status": {"podIP": "192.0.2.9", "podIPs": None}})
        assert (await api.get(f"{SPACE}/services/web:80/proxy/")).status == 503


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::ffff:127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", ""]
)
async def test_addresses_of_the_server_itself_are_not_reached(served: Any, address: str) -> None:
    async with served() as api:
        await api.post(f"{SPACE}/serviceaccounts", {"metadata": {"name": "default"}})
        spec = {"containers": [{"name": "c", "image": "i"}]}
        await api.post(f"{SPACE}/pods", {"metadata": {"name": "web"}, "spec": spec})
        status = {"podIP": address, "podIPs": [{"ip": address}]} if address else {}
        await api.merge(f"{SPACE}/pods/web/status", {"status": status})
        answer = await api.get(f"{SPACE}/pods/web:80/proxy/")
        assert (answer.status, answer.json["message"]) == (400, "address not allowed")


@pytest.mark.parametrize("name", ["ftp:web:80", "a:b:c:d", ":80"])
async def test_a_name_with_a_port_must_be_well_formed(served: Any, name: str) -> None:
    async with served() as api:
        answer = await api.get(f"{SPACE}/pods/{name}/proxy/")
        assert (answer.status, answer.json["message"]) == (400, f'invalid pod request "{name}"')


async def test_a_pod_that_does_not_answer_is_unavailable(served: Any) -> None:
    async with served() as api, web_pod(api):
        answer = await api.get(f"{SPACE}/pods/web:1/proxy/")
        assert (answer.status, answer.json["reason"]) == (503, "ServiceUnavailable")
        assert answer.json["message"].startswith("error trying to reach service: ")


async def test_a_node_is_reached_at_the_port_of_its_kubelet(served: Any) -> None:
    async with served() as api, pod_on_a_node(api) as node:
        kubelet = (await api.get("/api/v1/nodes/n1")).json["status"]["daemonEndpoints"]["kubeletEndpoint"]
        for name in (f"n1:{kubelet['Port']}", f"https:n1:{kubelet['Port']}"):
            got = await api.get(f"/api/v1/nodes/{name}/proxy/containerLogs/default/p/c")
            assert got.body == b"one\ntwo\n"
        assert node.peers == ["kube-apiserver-kubelet-client"] * 2
        other = await api.get("/api/v1/nodes/n1:1/proxy/metrics")
        assert (other.status, other.json["message"]) == (400, "address not allowed")


@pytest.mark.peer("kubectl")
async def test_kubectl_reads_through_proxies(served: Any, tmp_path: Path) -> None:
    async with served() as api, web_pod(api) as (_, port):
        kubectl = Kubectl(api.server.kubeconfig, tmp_path)
        assert await kubectl("get", "--raw", f"{SPACE}/pods/web:{port}/proxy/x") == "hi\n"
        assert await kubectl("get", "--raw", f"{SPACE}/services/web:http/proxy/x") == "hi\n"
