"""The kubelet's API as the API server uses it: over TLS, on real containers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NODE, NodeEnv, node_env
from volplane.api.core import Node
from volplane.apiserver.auth.certificates import CertificateAuthority
from volplane.base import log
from volplane.node.containers.process_exec import PipeReader
from volplane.node.containers.task import TaskContext
from volplane.web import HttpClient, spdy, websocket
from volplane.web.tls import client_context

pytestmark = pytest.mark.root

SHELL = "echo first; echo second >&2; echo third; exec sleep 1000"


@asynccontextmanager
async def serving(here: NodeEnv, name: str = "kube-apiserver-kubelet-client") -> AsyncIterator[HttpClient]:
    authority = CertificateAuthority(Path(here.directory) / "pki")
    serving = authority.server("kubelet", ("127.0.0.1",))
    await here.start(
        tls_cert_file=str(serving.cert_path),
        tls_private_key_file=str(serving.key_path),
        client_ca_file=str(authority.pair.cert_path),
    )
    node = await here.client.get(Node, NODE)
    port = node.status.daemon_endpoints.kubelet_endpoint.port
    pair = authority.client("client", name)
    context = client_context(str(authority.pair.cert_path), str(pair.cert_path), str(pair.key_path))
    http = HttpClient(f"https://127.0.0.1:{port}", ssl=context)
    try:
        yield http
    finally:
        await http.close()


async def shell_pod(here: NodeEnv, script: str = SHELL, **more: Any) -> None:
    await here.pod(container={"image": "busybox", "command": ["/bin/sh", "-c", script]}, **more)
    await here.wait_until_ready()


async def test_only_the_api_server_is_let_in() -> None:
    async with node_env() as here, serving(here, "somebody") as http:
        answer = await http.request("GET", "/healthz")
        assert answer.status == 403
        assert b"somebody" in answer.body


async def test_health_pods_and_metrics() -> None:
    async with node_env() as here, serving(here) as http:
        assert (await http.request("GET", "/healthz")).body == b"ok"
        await here.pod()
        await here.wait_until_ready()
        listed = json.loads((await http.request("GET", "/pods")).body)
        assert [p["metadata"]["name"] for p in listed["items"]] == ["app"]
        assert listed["items"][0]["kind"] == "Pod"
        assert (await http.request("GET", "/metrics")).status == 200
        assert (await http.request("GET", "/nothing")).status == 404


async def logs(http: HttpClient, query: str = "") -> str:
    answer = await http.request("GET", f"/containerLogs/default/app/main{query}")
    assert answer.status == 200, answer.body
    return answer.body.decode()


async def test_logs_of_a_process() -> None:
    async with node_env() as here, serving(here) as http:
        await shell_pod(here)

        async def complete() -> bool:
            return (await logs(http)).count("\n") == 3

        await until(complete)
        assert sorted((await logs(http)).split()) == ["first", "second", "third"]
        assert len((await logs(http, "?tailLines=1")).split()) == 1
        assert await logs(http, "?tailLines=0") == ""
        assert await logs(http, "?stream=Stderr") == "second\n"
        assert await logs(http, "?limitBytes=3") == (await logs(http))[:3]
        stamped = await logs(http, "?timestamps=true&stream=Stderr")
        assert stamped.endswith("Z second\n")
        assert await logs(http, "?sinceTime=2100-01-01T00:00:00Z") == ""
        assert len((await logs(http, "?sinceSeconds=1000")).split()) == 3


async def test_a_followed_log_ends_with_its_container() -> None:
    async with node_env() as here, serving(here) as http:
        go_on = asyncio.Event()

        async def talk(context: TaskContext) -> None:
            say = log.sink.get()
            assert say is not None
            say("one")
            await go_on.wait()
            say("two")

        here.images["talk"] = talk
        await here.pod(container={"image": "talk"}, restartPolicy="Never")
        await here.wait_until_ready()
        seen = b""
        async with http.stream("GET", "/containerLogs/default/app/main?follow=true") as (_, pieces):
            async for piece in pieces:
                seen += piece
                go_on.set()
        assert seen.count(b"\n") == 2
        assert b"one" in seen
        assert b"two" in seen


async def test_logs_of_containers_that_are_not_there() -> None:
    async with node_env() as here, serving(here) as http:
        await here.pod(
            volumes=[{"name": "x", "configMap": {"name": "missing"}}],
            mounts=[{"name": "x", "mountPath": "/x"}],
        )
        await here.wait_for_event("missing")
        answer = await http.request("GET", "/containerLogs/default/app/main")
        assert answer.status == 400
        assert answer.body == b'container "main" in pod "app" is waiting to start: ContainerCreating\n'
        answer = await http.request("GET", "/containerLogs/default/app/main?previous=true")
        assert answer.body == b'previous terminated container "main" in pod "app" not found\n'
        assert (await http.request("GET", "/containerLogs/default/app/other")).status == 404
        assert (await http.request("GET", "/containerLogs/default/none/main")).status == 404


async def test_the_log_of_the_attempt_before() -> None:
    async with node_env() as here, serving(here) as http:
        command = ["/bin/sh", "-c", "echo gone; exit 2"]
        await here.pod(container={"image": "busybox", "command": command})

        async def restarted() -> bool:
            answer = await http.request("GET", "/containerLogs/default/app/main?previous=true")
            return answer.body == b"gone\n"

        await until(restarted)


# --- exec


async def converse(
    http: HttpClient, query: str, *, given: bytes = b"", protocol: str = "v5.channel.k8s.io"
) -> tuple[dict[int, bytes], dict[str, Any]]:
    """What came on each channel, and the last word."""
    path = f"/exec/default/app/main?{query}"
    socket = await websocket.connect_websocket(http, path, protocols=[protocol])
    if given:
        await socket.send(b"\x00" + given)
        await socket.send(b"\xff\x00")
    found: dict[int, bytes] = {}
    while (message := await socket.receive()) is not None:
        assert isinstance(message, bytes)
        found[message[0]] = found.get(message[0], b"") + message[1:]
    assert socket.close_code == 1000
    return found, json.loads(found.pop(3))


async def test_exec_over_a_websocket() -> None:
    async with node_env() as here, serving(here) as http:
        await shell_pod(here)
        query = "output=1&error=1&command=sh&command=-c&command=echo+out;echo+err+>%262"
        channels, status = await converse(http, query)
        assert channels == {1: b"out\n", 2: b"err\n"}
        assert status["status"] == "Success"


async def test_the_exit_code_of_an_exec() -> None:
    async with node_env() as here, serving(here) as http:
        await shell_pod(here)
        _, status = await converse(http, "output=1&error=1&command=sh&command=-c&command=exit+7")
        assert status["reason"] == "NonZeroExitCode"
        assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]


async def test_input_reaches_the_command_and_ends() -> None:
    async with node_env() as here, serving(here) as http:
        await shell_pod(here)
        async with asyncio.timeout(10):
            channels, status = await converse(http, "input=1&output=1&error=1&command=cat", given=b"hello")
        assert channels[1] == b"hello"
        assert status["status"] == "Success"


async def test_a_command_that_does_not_exist() -> None:
    async with node_env() as here, serving(here) as http:
        await shell_pod(here)
        _, status = await converse(http, "output=1&error=1&command=/no/such/thing")
        assert status["status"] == "Failure"
        assert status["details"]["causes"][0]["reason"] == "ExitCode"


async def test_exec_into_a_task_is_refused_with_the_reason() -> None:
    async with node_env() as here, serving(here) as http:
        await here.pod()
        await here.wait_until_ready()
        with pytest.raises(websocket.WebSocketRefused) as refused:
            await converse(http, "output=1&command=ls")
        assert refused.value.answer.status == 400
        assert b"built into the node" in refused.value.answer.body


async def test_exec_over_spdy() -> None:
    async with node_env() as here, serving(here) as http:
        await shell_pod(here)
        headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "SPDY/3.1"),
            ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
        ]
        path = "/exec/default/app/main?input=1&output=1&error=1&command=cat"
        answer, stream = await http.upgrade(path, headers, method="POST")
        assert answer.headers.get("x-stream-protocol-version") == "v4.channel.k8s.io"
        assert stream is not None
        async with asyncio.timeout(10), spdy.client(stream) as session:
            channels = {
                name: await session.open([("streamtype", name)])
                for name in ("error", "stdin", "stdout", "stderr")
            }
            await channels["stdin"].write(b"over spdy")
            await channels["stdin"].close()
            assert await channels["stdout"].read() == b"over spdy"
            assert await channels["stdout"].read() == b""
            assert json.loads(await channels["error"].read())["status"] == "Success"


# --- port-forward


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """Its port; left only when its one client has been seen to the door."""
    left = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1024):
            writer.write(data)
        writer.close()
        await writer.wait_closed()
        left.set()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await left.wait()


async def test_port_forward_through_a_tunnel() -> None:
    async with node_env() as here, serving(here) as http, echo_server() as port:
        await here.pod()
        await here.wait_until_ready()
        socket = await websocket.connect_websocket(
            http, "/portForward/default/app", protocols=["SPDY/3.1+portforward.k8s.io"]
        )
        async with asyncio.timeout(10), spdy.client(websocket.MessageStream(socket)) as session:
            common = [("port", str(port)), ("requestID", "0")]
            await session.open([("streamtype", "error"), *common])
            data = await session.open([("streamtype", "data"), *common])
            await data.write(b"there and back")
            assert await data.read() == b"there and back"


async def test_port_forward_of_a_closed_port_tells_so() -> None:
    async with node_env() as here, serving(here) as http:
        await here.pod()
        await here.wait_until_ready()
        socket = await websocket.connect_websocket(
            http, "/portForward/default/app?port=1", protocols=["v4.channel.k8s.io"]
        )
        assert await socket.receive() == b"\x00\x01\x00"
        assert await socket.receive() == b"\x01\x01\x00"
        told = await socket.receive()
        assert isinstance(told, bytes)
        assert told[:1] == b"\x01"
        assert b"an error occurred forwarding port 1" in told
        await socket.close()


async def test_a_command_whose_output_is_lost_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: PipeReader, limit: int = 65536) -> bytes:
        raise OSError(9, "Bad file descriptor")

    async with node_env() as here, serving(here) as http:
        await here.pod(container={"image": "x", "command": ["sleep", "1000"]})
        await here.wait_until_ready()
        monkeypatch.setattr(PipeReader, "read", broken)
        path = "/exec/default/app/main?command=true&output=1&error=1"
        socket = await websocket.connect_websocket(http, path, protocols=["v4.channel.k8s.io"])
        last = b""
        async with asyncio.timeout(60):
            while message := await socket.receive():
                last = message if isinstance(message, bytes) else message.encode()
        assert last[0] == 3
        assert json.loads(last[1:])["status"] == "Failure"
        await socket.close()
