"""Proxies: requests to a node, a pod or a Service are sent on, and their responses are streamed back.

`nodes/NAME`, `pods/NAME` and `services/NAME` may be written with a port, and with a scheme:
`https:NAME:8443`. Without a port, a node means its kubelet and a pod its first port. Connections to pods and
Services do not check certificates, as upstream's.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from volplane.api.core import Endpoints, Node, Pod, Service
from volplane.api.errors import BadRequest, NotFound, Unavailable
from volplane.apiserver.backend import Backend
from volplane.apiserver.paths import RequestTarget
from volplane.apiserver.strategy import R
from volplane.apiserver.subresources.streams import WAIT_TIMEOUT, NodeStreams, StreamedBody, node_url, relay
from volplane.web import HttpClient, Request, Response, Upgraded, tls
from volplane.web.client.connection import ClientResponse

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"}
    | {"trailer", "transfer-encoding", "upgrade"}
)
_NOT_SENT = frozenset({"authorization", "content-length", "host"})
_UPGRADE = frozenset({"connection", "upgrade"})
_SCHEMES = ("", "http", "https")


class ProxyName(NamedTuple):
    """`scheme:name:port`, as the name in the path is written."""

    scheme: str
    name: str
    port: str


class ResourceProxy:
    def __init__(self, streams: NodeStreams) -> None:
        self._streams = streams

    async def serve(self, backend: Backend, target: RequestTarget, request: Request) -> Response | Upgraded:
        path = f"/{quote(target.below)}"
        if target.below and request.path.endswith("/"):
            path += "/"
        if not target.below and not request.path.endswith("/") and request.method in ("GET", "HEAD"):
            query = f"?{request.query.raw}" if request.query.raw else ""
            return Response(status=301, headers=[("Location", f"{request.path}/{query}")], body=b"")
        if request.query.raw:
            path += f"?{request.query.raw}"
        async with AsyncExitStack() as stack:
            client = await self._client(backend, target, stack)
            if request.headers.get("upgrade"):
                return await _upgrade(client, path, request)
            return await _forward(client, path, request, _prefix(target), stack)

    async def _client(self, backend: Backend, target: RequestTarget, stack: AsyncExitStack) -> HttpClient:
        name = _split_name(target)
        match target.plural:
            case "nodes":
                node = await _require(backend, Node, name.name)
                if name.port in ("", str(urlsplit(node_url(node)).port)):
                    return self._streams.client_of(node)
                host, port = urlsplit(node_url(node)).hostname or "", name.port
            case "pods":
                pod = await _require(backend, Pod, name.name, target.namespace)
                host, port = pod.status.pod_ip, name.port or _first_port(pod)
            case _:
                host, port = await _find_endpoint(backend, target, name)
        client = HttpClient(
            _url(name.scheme, host, port),
            ssl=tls.client_context(verify=False) if name.scheme == "https" else None,
        )
        stack.push_async_callback(client.close)
        return client


def _split_name(target: RequestTarget) -> ProxyName:
    parts = target.name.split(":")
    match parts:
        case [name]:
            found = ProxyName("", name, "")
        case [name, port]:
            found = ProxyName("", name, port)
        case [scheme, name, port]:
            found = ProxyName(scheme, name, port)
        case _:
            found = ProxyName("", "", "")
    if not found.name or found.scheme not in _SCHEMES:
        raise BadRequest(f'invalid {target.plural.removesuffix("s")} request "{target.name}"')
    return found


async def _require(backend: Backend, type: type[R], name: str, namespace: str = "") -> R:
    found = await backend.reader.get(type, name, namespace)
    if found is None:
        raise NotFound.of(backend.registry.of(type).kind, name)
    return found


def _first_port(pod: Pod) -> str:
    ports = (port.container_port for container in pod.spec.containers for port in container.ports)
    return str(next(ports, ""))


def _url(scheme: str, host: str, port: str) -> str:
    """The address, if it is one that may be reached: not of this machine alone, not a group of machines."""
    try:
        address = ipaddress.ip_address(host)
        address = getattr(address, "ipv4_mapped", None) or address  # ::ffff:127.0.0.1 is 127.0.0.1
        number = int(port or 0)
    except ValueError:
        raise BadRequest("address not allowed") from None
    if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
        raise BadRequest("address not allowed")
    if not 0 <= number < 1 << 16:
        raise BadRequest(f"invalid port {port}")
    shown = f"[{address}]" if address.version == 6 else str(address)
    return f"{scheme or 'http'}://{shown}{f':{port}' if port else ''}"


# Services


async def _find_endpoint(backend: Backend, target: RequestTarget, name: ProxyName) -> tuple[str, str]:
    """The address and port of a pod behind a Service, at random."""
    port = name.port
    if port.isdigit():
        service = await _require(backend, Service, name.name, target.namespace)
        chosen = next((p for p in service.spec.ports if p.port == int(port)), None)
        if chosen is None:
            raise Unavailable(f'no service port {port} found for service "{name.name}"')
        port = chosen.name
    endpoints = await _require(backend, Endpoints, name.name, target.namespace)
    if not endpoints.subsets:
        raise Unavailable(f'no endpoints available for service "{name.name}"')
    found = list(_matching_endpoints(endpoints, port))
    random.shuffle(found)
    for pod_name, address, number in found:
        pod = await backend.reader.get(Pod, pod_name, target.namespace)
        if pod is not None and any(ip.ip == address for ip in pod.status.pod_ips):
            return address, str(number)
    raise Unavailable(f'no endpoints available for service "{target.name}"')


def _matching_endpoints(endpoints: Endpoints, port: str) -> Iterator[tuple[str, str, int]]:
    """Pod, address and port of each ready endpoint that is a pod."""
    for subset in endpoints.subsets:
        numbers = [p.port for p in subset.ports if p.name == port]
        for address in subset.addresses if numbers else ():
            of = address.target_ref
            if of is not None and of.namespace == endpoints.namespace:
                yield of.name, address.ip, numbers[0]


# Requests and responses


def _prefix(target: RequestTarget) -> str:
    """The path of the proxy itself."""
    space = f"/namespaces/{target.namespace}" if target.namespace else ""
    return f"/api/{target.version}{space}/{target.plural}/{target.name}/proxy"


def _request_headers(request: Request, *, kept: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    dropped = (_HOP_BY_HOP - kept) | _NOT_SENT | set(request.headers.tokens("connection")) - kept
    sent = [
        (name, value)
        for name, value in request.headers.items()
        if name.lower() not in dropped and not name.lower().startswith("impersonate-")
    ]
    return [*sent, ("X-Forwarded-Uri", request.path), ("X-Forwarded-Host", request.headers.get("host"))]


async def _forward(
    client: HttpClient, path: str, request: Request, prefix: str, stack: AsyncExitStack
) -> Response:
    asked = client.stream(
        request.method, path, headers=_request_headers(request), body=request.body, timeout=WAIT_TIMEOUT
    )
    try:
        answer, pieces = await stack.enter_async_context(asked)
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"error trying to reach service: {error}") from error
    headers = _response_headers(answer)
    if location := answer.headers.get("location"):
        headers.append(("Location", _rewrite_location(location, prefix)))
    # Streamed: a followed log has no end and need not fit into memory.
    body = StreamedBody(pieces, stack.pop_all())
    return Response(status=answer.status, headers=headers, body=body)


def _response_headers(answer: ClientResponse) -> list[tuple[str, str]]:
    dropped = _HOP_BY_HOP | {"content-length", "location"}
    return [(name, value) for name, value in answer.headers.items() if name.lower() not in dropped]


def _rewrite_location(location: str, prefix: str) -> str:
    """A redirection inside of the target goes through the proxy again."""
    inside = location.startswith("/") and not location.startswith("//")
    return f"{prefix}{location}" if inside and not location.startswith(prefix) else location


async def _upgrade(client: HttpClient, path: str, request: Request) -> Response | Upgraded:
    headers = _request_headers(request, kept=_UPGRADE)
    try:
        answer, far = await client.upgrade(path, headers, method=request.method, timeout=WAIT_TIMEOUT)
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"error trying to reach service: {error}") from error
    if far is None:
        kept = [
            (n, v) for n, v in answer.headers.items() if n.lower() not in _HOP_BY_HOP | {"content-length"}
        ]
        return Response(status=answer.status, headers=kept, body=answer.body)
    near = await request.upgrade(list(answer.headers.items()))
    await relay(near, far)
    return Upgraded()
