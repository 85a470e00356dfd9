"""Logs and exec: the server relays between the client and the node."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from volplane import web
from volplane.api.core import ServiceAccount
from volplane.api.meta import ObjectMeta
from volplane.apiserver.subresources.streams import relay
from volplane.web import tls, websocket
from volplane.web.stream import Flow

DEFAULT = "/api/v1/namespaces/default"
OUTPUT = b"word " * 40_000


class RecordingKubelet:
    """A kubelet that records requests and echoes what it receives."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.peers: list[str] = []
        self.protocols: list[str] = []

    async def __call__(self, request: web.Request) -> web.Response | web.Upgraded:
        self.requests.append((request.method, request.path, request.query.raw))
        self.peers.append(request.peer.common_name if request.peer else "")
        self.protocols += request.headers.all("sec-websocket-protocol")
        if request.path.startswith("/containerLogs"):
            if request.query.flag("previous"):
                return web.Response(
                    status=400, body=b'previous terminated container "c" in pod "p" not found'
                )
            return web.Response(headers=[("Content-Type", "text/plain")], body=_lines())
        if request.query.get("command") == "refuse":
            return web.Response(status=404, body=b"no such container")
        if request.headers.get("sec-websocket-key"):
            await _echo_upper_case(
                await websocket.server_accept(request, ("v5.channel.k8s.io", "v4.channel.k8s.io"))
            )
            return web.Upgraded()
        stream = await request.upgrade([("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")])
        while data := await stream.read():
            await stream.write(data.upper())
        return web.Upgraded()


async def _echo_upper_case(socket: websocket.WebSocket) -> None:
    """Echo channel 0 on channel 1."""
    while (message := await socket.receive()) is not None:
        assert isinstance(message, bytes)
        await socket.send(b"\1" + message[1:].upper())


async def _lines() -> AsyncIterator[bytes]:
    yield b"one\n"
    yield b"two\n"


@asynccontextmanager
async def pod_on_a_node(api: Any) -> AsyncIterator[RecordingKubelet]:
    """Run a pod `p` on a node with a listening kubelet."""
    node = RecordingKubelet()
    pair = api.server.authority.server("kubelet", ("127.0.0.1",))
    ca = str(api.server.authority.pair.cert_path)
    context = tls.server_context(str(pair.cert_path), str(pair.key_path), ca)
    listener = await web.serve(node, ssl=context)
    local = api.server.in_process_transport()
    await api.post("/api/v1/nodes", {"metadata": {"name": "n1"}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": listener.port}},
    }
    assert (await api.merge("/api/v1/nodes/n1/status", {"status": status})).status == 200
    await local.create(ServiceAccount(metadata=ObjectMeta(name="default", namespace="default")))
    containers = [{"name": "c", "image": "busybox"}, {"name": "d", "image": "busybox"}]
    for name, spec in (
        ("p", {"containers": containers[:1], "nodeName": "n1"}),
        ("two", {"containers": containers, "nodeName": "n1"}),
        ("waiting", {"containers": containers[:1]}),
    ):
        made = await api.post(f"{DEFAULT}/pods", {"metadata": {"name": name}, "spec": spec})
        assert made.status == 201, made.json
    try:
        yield node
    finally:
        await listener.close(0)


async def test_logs_come_from_the_node(served: Any) -> None:
    async with served() as api, pod_on_a_node(api) as node:
        got = await api.get(f"{DEFAULT}/pods/p/log?tailLines=5&timestamps=true&container=c")
        assert (got.status, got.body) == (200, b"one\ntwo\n")
        assert got.headers.get("content-type") == "text/plain"
        assert node.requests == [("GET", "/containerLogs/default/p/c", "timestamps=true&tailLines=5")]
        assert node.peers == ["kube-apiserver-kubelet-client"]


async def test_an_error_of_the_node_becomes_a_status(served: Any) -> None:
    async with served() as api, pod_on_a_node(api):
        refused = await api.get(f"{DEFAULT}/pods/p/log?previous=true")
        assert (refused.status, refused.json["reason"]) == (400, "BadRequest")
        assert refused.json["message"] == 'previous terminated container "c" in pod "p" not found'


async def test_the_container_must_be_known(served: Any) -> None:
    async with served() as api, pod_on_a_node(api):
        which = await api.get(f"{DEFAULT}/pods/two/log")
        assert which.status == 400
        assert which.json["message"] == (
            "a container name must be specified for pod two, choose one of: [c d]"
        )
        wrong = await api.get(f"{DEFAULT}/pods/p/log?container=x")
        assert wrong.json["message"] == "container x is not valid for pod p"
        assert (await api.get(f"{DEFAULT}/pods/nobody/log")).status == 404
        early = await api.get(f"{DEFAULT}/pods/waiting/log")
        assert (early.status, early.body) == (200, b"")
        nowhere = await api.post(f"{DEFAULT}/pods/waiting/exec?command=true", None)
        assert nowhere.json["message"] == "pod waiting does not have a host assigned"


async def test_exec_is_relayed_byte_by_byte(served: Any) -> None:
    async with served() as api, pod_on_a_node(api) as node:
        headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v4")]
        path = f"{DEFAULT}/pods/p/exec?command=sh&command=-c&stdin=true&stdout=true&tty=false"
        answer, stream = await api.http.upgrade(path, headers, method="POST")
        assert answer.status == 101
        assert answer.headers.get("upgrade") == "SPDY/3.1"
        await stream.write(b"hello")
        assert await stream.read() == b"HELLO"
        stream.close()
        assert node.requests == [("POST", "/exec/default/p/c", "input=1&output=1&command=sh&command=-c")]


class RecordingTransport(asyncio.Transport):
    """One end of a connection, which records what is written to it."""

    def __init__(self, *, closing: bool = False) -> None:
        super().__init__()
        self.written, self.closing = b"", closing

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


async def test_the_last_output_of_a_disconnecting_node_reaches_a_client_that_still_writes() -> None:
    client, flow = RecordingTransport(), Flow()
    flow.pause()  # the client reads slowly
    near = web.Stream(client, flow, b"and another thing")
    far = web.Stream(RecordingTransport(closing=True), Flow(), OUTPUT)
    asyncio.get_running_loop().call_later(0.01, flow.resume)
    async with asyncio.timeout(60):
        await relay(near, far)
    assert client.written == OUTPUT
    assert client.closing


async def test_an_error_before_the_upgrade_becomes_a_status(served: Any) -> None:
    async with served() as api, pod_on_a_node(api):
        headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")]
        path = f"{DEFAULT}/pods/p/exec?command=refuse"
        answer, stream = await api.http.upgrade(path, headers, method="POST")
        assert (answer.status, stream) == (404, None)
        assert b'"message":"no such container"' in answer.body


async def test_a_node_that_does_not_listen_is_unavailable(served: Any) -> None:
    async with served() as api, pod_on_a_node(api):
        status = {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}
        await api.merge("/api/v1/nodes/n1/status", {"status": status})
        answer = await api.get(f"{DEFAULT}/pods/p/log")
        assert (answer.status, answer.json["reason"]) == (503, "ServiceUnavailable")


async def test_a_node_is_reached_through_its_proxy(served: Any) -> None:
    async with served() as api, pod_on_a_node(api) as node:
        got = await api.get("/api/v1/nodes/n1/proxy/containerLogs/default/p/c?tailLines=1")
        assert (got.status, got.body) == (200, b"one\ntwo\n")
        assert node.requests == [("GET", "/containerLogs/default/p/c", "tailLines=1")]
        assert (await api.get("/api/v1/nodes/nowhere/proxy/healthz")).status == 404


async def test_the_token_among_the_subprotocols_is_not_forwarded(served: Any) -> None:
    async with served() as api, pod_on_a_node(api) as node:
        token = base64.urlsafe_b64encode(api.server.admin_token.encode()).rstrip(b"=").decode()
        offered = f"base64url.bearer.authorization.k8s.io.{token}, v5.channel.k8s.io"
        headers = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Protocol", offered)]
        ca = str(api.server.authority.pair.cert_path)
        http = web.HttpClient(api.server.url, ssl=tls.client_context(ca))
        answer, stream = await http.upgrade(f"{DEFAULT}/pods/p/exec?command=sh", headers)
        assert answer.status == 101
        assert stream is not None
        stream.close()
        await http.close()
        assert node.protocols == ["v5.channel.k8s.io"]
