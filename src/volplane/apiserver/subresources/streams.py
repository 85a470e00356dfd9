"""Logs, exec, attach and port-forward: the server connects to the kubelet of the pod's node.

It uses HTTPS with the server's own client certificate. After an upgrade the bytes are relayed unchanged in
both directions, so WebSocket and SPDY need no code here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from urllib.parse import quote, urlencode

from volplane.api.core import Node, Pod
from volplane.api.errors import APIError, BadRequest, InternalError, NotFound, Unavailable, from_status
from volplane.apiserver import query_options
from volplane.apiserver.auth.authenticate import WEBSOCKET_TOKEN
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.base.tasks import cancel_and_wait
from volplane.web import HttpClient, Request, Response, Stream, Upgraded

STREAMS = frozenset({"log", "exec", "attach", "portforward"})
KUBELET_PORT = 10250
WAIT_TIMEOUT = 30.0  # seconds until the node's response starts
_ADDRESSES = ("InternalIP", "Hostname", "ExternalIP")
_KUBELET_OPTIONS: Mapping[str, str] = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
_LOG_OPTIONS = (
    "follow", "previous", "timestamps", "tailLines", "sinceSeconds", "sinceTime", "limitBytes", "stream",
)  # fmt: skip
_PROTOCOL = "sec-websocket-protocol"
_FORWARDED = (
    "connection",
    "upgrade",
    "sec-websocket-key",
    "sec-websocket-version",
    _PROTOCOL,
    "sec-websocket-extensions",
    "x-stream-protocol-version",
)
_TEXT = [("Content-Type", "text/plain"), ("Cache-Control", "no-cache, private")]


class NodeStreams:
    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self._nodes: dict[str, HttpClient] = {}

    async def serve(
        self, backend: Backend, entry: ServedResource, call: ApiCall, request: Request
    ) -> Response | Upgraded:
        if request.query.get("dryRun"):
            raise BadRequest("dryRun is not supported")
        pod = await backend.reader.get(Pod, call.name, call.namespace)
        if pod is None:
            raise NotFound.of(entry.kind, call.name)
        if call.subresource == "log":
            return await self._log(backend, pod, request)
        if not pod.spec.node_name:
            raise BadRequest(f"pod {pod.name} does not have a host assigned")
        client = await self._node(backend, pod.spec.node_name)
        return await self._connect(client, _path(call.subresource, pod, request), request)

    async def close(self) -> None:
        for client in self._nodes.values():
            await client.close()

    async def _node(self, backend: Backend, name: str) -> HttpClient:
        node = await backend.reader.get(Node, name)
        if node is None:
            raise NotFound(f'nodes "{name}" not found', details={"name": name, "kind": "nodes"})
        return self.client_of(node)

    def client_of(self, node: Node) -> HttpClient:
        """A client of the node's kubelet."""
        url = node_url(node)
        if url not in self._nodes:
            self._nodes[url] = HttpClient(url, ssl=self._context)
        return self._nodes[url]

    async def _log(self, backend: Backend, pod: Pod, request: Request) -> Response:
        container = _container(pod, request.query.get("container"))
        for name in ("follow", "previous", "timestamps"):
            query_options.boolean(request.query, name)
        if not pod.spec.node_name:
            return Response(status=200, headers=_TEXT, body=b"")
        client = await self._node(backend, pod.spec.node_name)
        chosen = {name: request.query.get(name) for name in _LOG_OPTIONS if request.query.get(name)}
        path = f"/containerLogs/{pod.namespace}/{pod.name}/{quote(container)}?{urlencode(chosen)}"
        stack = AsyncExitStack()
        try:
            answer, pieces = await stack.enter_async_context(client.stream("GET", path, timeout=WAIT_TIMEOUT))
            if answer.status != 200:
                async with stack:
                    raise _node_error(answer.status, b"".join([piece async for piece in pieces]))
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"node {pod.spec.node_name} does not answer: {error}") from error
        return Response(status=200, headers=_TEXT, body=StreamedBody(pieces, stack))

    async def _connect(self, client: HttpClient, path: str, request: Request) -> Response | Upgraded:
        try:
            answer, far = await client.upgrade(
                path, _handshake_headers(request), method=request.method, timeout=WAIT_TIMEOUT
            )
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"the node does not answer: {error}") from error
        if far is None:
            raise _node_error(answer.status, answer.body)
        near = await request.upgrade(list(answer.headers.items()))
        await relay(near, far)
        return Upgraded()


async def relay(near: Stream, far: Stream) -> None:
    """Relay bytes in both directions until one side is done."""

    async def pump(source: Stream, sink: Stream) -> None:
        while data := await source.read():
            await sink.write(data)

    there, back = asyncio.create_task(pump(near, far)), asyncio.create_task(pump(far, near))
    try:
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        if there.done() and there.exception() is not None:
            await asyncio.wait({back})  # the node closed the connection; forward what it sent before
    finally:
        await cancel_and_wait(there, back)
        near.close()
        far.close()


class StreamedBody:
    """The body of another server's response; releases the connection even if it is never read."""

    def __init__(self, pieces: AsyncIterator[bytes], stack: AsyncExitStack) -> None:
        self._pieces, self._stack = pieces, stack

    def __aiter__(self) -> StreamedBody:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        await self._stack.aclose()


def _handshake_headers(request: Request) -> list[tuple[str, str]]:
    """Return the handshake headers, without the token that browsers put among the subprotocols."""
    headers = [(name, value) for name in _FORWARDED for value in request.headers.all(name)]
    return [(name, _without_token(value) if name == _PROTOCOL else value) for name, value in headers]


def _without_token(protocols: str) -> str:
    offered = (word.strip() for word in protocols.split(","))
    return ", ".join(word for word in offered if not word.startswith(WEBSOCKET_TOKEN))


def node_url(node: Node) -> str:
    by_type = {address.type: address.address for address in node.status.addresses}
    host = next((by_type[kind] for kind in _ADDRESSES if kind in by_type), "")
    if not host:
        raise InternalError.because(f"no preferred addresses found; known addresses: {sorted(by_type)}")
    port = node.status.daemon_endpoints.kubelet_endpoint.port or KUBELET_PORT
    return f"https://{host}:{port}"


def _container(pod: Pod, name: str) -> str:
    """Return the named container, or the only one."""
    names = [c.name for c in pod.spec.containers]
    initial = [c.name for c in pod.spec.init_containers]
    ephemeral = [c.name for c in pod.spec.ephemeral_containers]
    if not name:
        if len(names) == 1 and not initial and not ephemeral:
            return names[0]
        message = f"a container name must be specified for pod {pod.name}, choose one of: [{' '.join(names)}]"
        if initial:
            message += f" or one of the init containers: [{' '.join(initial)}]"
        if ephemeral:
            message += f" or one of the ephemeral containers: [{' '.join(ephemeral)}]"
        raise BadRequest(message)
    if name not in (*names, *initial, *ephemeral):
        raise BadRequest(f"container {name} is not valid for pod {pod.name}")
    return name


def _path(verb: str, pod: Pod, request: Request) -> str:
    query = request.query
    if verb == "portforward":
        ports = [("port", port) for port in query.all("ports")]
        return f"/portForward/{pod.namespace}/{pod.name}?{urlencode(ports)}"
    container = _container(pod, query.get("container"))
    wanted = [
        (ours, "1") for theirs, ours in _KUBELET_OPTIONS.items() if query_options.boolean(query, theirs)
    ]
    wanted += [("command", word) for word in query.all("command")]
    return f"/{verb}/{pod.namespace}/{pod.name}/{quote(container)}?{urlencode(wanted)}"


def _node_error(status: int, body: bytes) -> APIError:
    """Convert a node's error response to an API error."""
    text = body.decode(errors="replace").strip()
    return from_status({"message": text or f"the node answered {status}", "code": status}, status)
