"""kubectl's exec and port-forward over WebSocket and SPDY."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from volplane.web import HttpClient, Request, Response, Upgraded, serve, spdy, tls, websocket
from volplane.web.stream import ByteStream
from volplane.web.websocket import MessageStream, WebSocket

pytestmark = pytest.mark.peer("kubectl")

POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {"name": "p", "namespace": "default", "uid": "1"},
    "spec": {"containers": [{"name": "c", "image": "x", "ports": [{"containerPort": 80}]}]},
    "status": {"phase": "Running"},
}
FAILURE = {
    "metadata": {},
    "status": "Failure",
    "message": "command terminated with non-zero exit code",
    "reason": "NonZeroExitCode",
    "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
}
PODS = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]}
KNOWN = {
    "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [PODS]},
    "/api/v1/namespaces/default/pods/p": POD,
}
ways: list[str] = []  # how the client came, one word per upgrade
CHANNELS = {"stdin": 0, "stdout": 1, "stderr": 2, "error": 3}


class Authority(Protocol):
    pem: str

    def issue(self, name: str, organizations: tuple[str, ...] = ()) -> tuple[str, str]: ...


async def api(request: Request) -> Response | Upgraded:
    """The parts of an API server that exec and port-forward need."""
    ways.extend(request.headers.tokens("upgrade"))
    if request.path.endswith("/exec"):
        return await run_exec(request)
    if request.path.endswith("/portforward"):
        return await forward(request)
    body = json.dumps(KNOWN.get(request.path, {})).encode()
    return Response(200 if request.path in KNOWN else 404, {"Content-Type": "application/json"}, body)


async def run_exec(request: Request) -> Upgraded:
    """`cat`, with the exit code 7."""
    if websocket.is_websocket_request(request):
        await exec_by_websocket(await websocket.server_accept(request, ["v5.channel.k8s.io"]))
    else:
        headers = {"Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}
        async with spdy.server(await request.upgrade(headers)) as session:
            await exec_by_spdy(session)
    return Upgraded()


async def exec_by_websocket(socket: WebSocket) -> None:
    await socket.send(b"\1")
    while message := await socket.receive():
        assert isinstance(message, bytes)
        if message == b"\xff\0":  # stdin has ended
            break
        await socket.send(b"\1" + message[1:].upper())
    await socket.send(b"\3" + json.dumps(FAILURE).encode())
    await socket.close(1000)


async def exec_by_spdy(session: spdy.SpdySession) -> None:
    channels: dict[str, spdy.SpdyChannel] = {}
    while len(channels) < 4:
        channel = await anext(session)
        channels[channel.headers.get("streamtype")] = channel
    assert channels.keys() == CHANNELS.keys()
    while piece := await channels["stdin"].read():
        await channels["stdout"].write(piece.upper())
    await channels["error"].write(json.dumps(FAILURE).encode())
    for channel in channels.values():
        await channel.close()
    async for _ in session:
        pass


async def forward(request: Request) -> Upgraded:
    below: ByteStream
    if websocket.is_websocket_request(request):
        below = MessageStream(await websocket.server_accept(request, ["SPDY/3.1+portforward.k8s.io"]))
    else:
        below = await request.upgrade(
            {"Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "portforward.k8s.io"}
        )
    async with spdy.server(below) as session, asyncio.TaskGroup() as group:
        async for channel in session:
            if channel.headers.get("streamtype") == "data":
                assert channel.headers.get("port") == "80"
                group.create_task(answer(channel))
            else:
                await channel.close()
    return Upgraded()


async def answer(channel: spdy.SpdyChannel) -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        request += await channel.read()
    path = request.split()[1]
    await channel.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\n" + path.ljust(6))
    await channel.close()


@pytest.fixture(autouse=True)
def forget() -> None:
    ways.clear()


@pytest.fixture
def kubeconfig(tmp_path: Path, authority: Authority) -> Path:
    ca = tmp_path / "ca.crt"
    ca.write_text(authority.pem)
    return tmp_path


@asynccontextmanager
async def running(where: Path, authority: Authority) -> AsyncIterator[list[str]]:
    """The command line up to the verb."""
    server = await serve(api, ssl=tls.server_context(*authority.issue("server")))
    options = [
        "--server",
        f"https://127.0.0.1:{server.port}",
        "--certificate-authority",
        str(where / "ca.crt"),
    ]
    try:
        async with asyncio.timeout(60):
            yield ["kubectl", *options, "--token=t", f"--cache-dir={where}/cache"]
    finally:
        await server.close(0.5)


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": "/nonexistent/config"} | more


@pytest.mark.parametrize("websockets", ["true", "false"])
async def test_exec_carries_input_output_and_exit_code(
    kubeconfig: Path, authority: Authority, websockets: str
) -> None:
    async with running(kubeconfig, authority) as kubectl:
        process = await asyncio.create_subprocess_exec(
            *kubectl,
            *("exec", "-i", "p", "--", "cat"),
            env=environment(KUBECTL_REMOTE_COMMAND_WEBSOCKETS=websockets),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(b"hello " * 20_000)
    assert process.returncode == 7, err
    assert out == b"HELLO " * 20_000
    assert set(ways) == {"websocket" if websockets == "true" else "spdy/3.1"}


@pytest.mark.parametrize("websockets", ["true", "false"])
async def test_port_forward_carries_several_connections(
    kubeconfig: Path, authority: Authority, websockets: str
) -> None:
    async with running(kubeconfig, authority) as kubectl:
        process = await asyncio.create_subprocess_exec(
            *kubectl,
            *("port-forward", "pod/p", ":80", "--address=127.0.0.1"),
            env=environment(KUBECTL_PORT_FORWARD_WEBSOCKETS=websockets),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()  # Forwarding from 127.0.0.1:PORT -> 80
        http = HttpClient(f"http://{line.split()[2]}")
        answers = await asyncio.gather(*(http.request("GET", f"/{n}") for n in range(5)))
        assert [a.body.strip() for a in answers] == [b"/%d" % n for n in range(5)]
        await http.close()
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert set(ways) == {"websocket" if websockets == "true" else "spdy/3.1"}
