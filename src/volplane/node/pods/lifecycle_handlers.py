"""Handlers of probes and lifecycle hooks: exec, httpGet, tcpSocket, grpc, sleep.

Messages are those of the kubelet. A handler that cannot be run at all raises `HandlerError`; one that runs
and fails returns an outcome that is not ok.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Mapping

from msgspec import Struct

from volplane.api.core import Container, HTTPGetAction, LifecycleHandler, Probe
from volplane.csi.health import GrpcHealthStatus, HealthCheckError, check
from volplane.node.containers.base import ContainerError
from volplane.node.pods.runtimes import LONGEST_OUTPUT, Runtimes
from volplane.web.client import HttpClient, HttpError

HEADERS = (("User-Agent", "kube-probe/1.35"), ("Accept", "*/*"), ("Connection", "close"))
CONNECTION_REFUSED = "connect: connection refused"


class HandlerError(Exception):
    """The handler could not be run."""


class HandlerOutcome(Struct, frozen=True):
    ok: bool
    text: str = ""


class Handlers:
    def __init__(self, runtimes: Runtimes) -> None:
        self.runtimes = runtimes

    async def run(
        self,
        action: Probe | LifecycleHandler,
        container: Container,
        id: str,
        address: str,
        timeout: float | None,
    ) -> HandlerOutcome:
        """Run a handler. `address`: of the container. No limit without `timeout`. Raises HandlerError."""
        if action.exec is not None:
            return await self._exec(id, action.exec.command, timeout)
        if action.http_get is not None:
            hook = isinstance(action, LifecycleHandler)  # any response counts as success of a hook
            port = self.runtimes.port(id, port_of(action.http_get.port, container))
            return await _http(action.http_get, port, address, timeout, any_answer=hook)
        if action.tcp_socket is not None:
            host = action.tcp_socket.host or address
            port = self.runtimes.port(id, port_of(action.tcp_socket.port, container))
            return await _connect(host, port, timeout)
        if isinstance(action, LifecycleHandler) and action.sleep is not None:
            await asyncio.sleep(action.sleep.seconds)
            return HandlerOutcome(True)
        if isinstance(action, Probe) and action.grpc is not None:
            probe = action.grpc
            return await _health(f"{address}:{probe.port}", probe.service or "", timeout or 1)
        raise HandlerError("unknown handler: this node supports exec, httpGet, tcpSocket, grpc and sleep")

    async def _exec(self, id: str, command: tuple[str, ...], timeout: float | None) -> HandlerOutcome:
        try:
            output, code = await self.runtimes.exec_sync(id, command, timeout)
        except TimeoutError:
            line = " ".join(command)
            return HandlerOutcome(False, f'command timed out: "{line}" timed out after {int(timeout or 0)}s')
        except ContainerError as error:
            raise HandlerError(str(error)) from error
        return HandlerOutcome(code == 0, output[:LONGEST_OUTPUT].decode(errors="replace"))


async def _http(
    get: HTTPGetAction, port: int, pod: str, timeout: float | None, *, any_answer: bool
) -> HandlerOutcome:
    host = get.host or pod
    scheme = (get.scheme or "HTTP").lower()
    path = get.path if get.path.startswith("/") else f"/{get.path}"
    address = f"{scheme}://{host}:{port}"
    own = {header.name: header.value for header in get.http_headers}
    headers = [(k, v) for k, v in HEADERS if k.lower() not in {name.lower() for name in own}]
    http = HttpClient(address, ssl=_make_unverified_context() if scheme == "https" else None)
    try:
        answer = await http.request("GET", path, headers=[*headers, *own.items()], timeout=timeout)
    except TimeoutError:
        words = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        return HandlerOutcome(False, f'Get "{address}{path}": {words}')
    except (HttpError, OSError) as error:
        return HandlerOutcome(False, f'Get "{address}{path}": {_describe_error(error, host, port)}')
    finally:
        await http.close()
    if any_answer or 200 <= answer.status < 400:
        return HandlerOutcome(True, answer.body[:LONGEST_OUTPUT].decode(errors="replace"))
    return HandlerOutcome(False, f"HTTP probe failed with statuscode: {answer.status}")


async def _health(address: str, service: str, timeout: float) -> HandlerOutcome:
    try:
        health = await check(address, service, timeout)
    except HealthCheckError as error:
        return HandlerOutcome(False, str(error))
    if health is GrpcHealthStatus.SERVING:
        return HandlerOutcome(True, "service healthy")
    return HandlerOutcome(False, f'service unhealthy (responded with "{health}")')


async def _connect(host: str, port: int, timeout: float | None) -> HandlerOutcome:
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return HandlerOutcome(False, f"dial tcp {host}:{port}: i/o timeout")
    except OSError as error:
        return HandlerOutcome(False, _describe_error(error, host, port))
    writer.close()
    return HandlerOutcome(True)


def _describe_error(error: BaseException, host: str, port: int) -> str:
    cause = error if isinstance(error, OSError) and error.errno else error.__cause__
    if isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED:
        return f"dial tcp {host}:{port}: {CONNECTION_REFUSED}"
    return f"dial tcp {host}:{port}: {error}" if isinstance(cause, OSError) else str(error)


def port_of(port: int | str, container: Container) -> int:
    """A number, or the name of one of the container's ports."""
    if isinstance(port, int):
        return port
    named: Mapping[str, int] = {p.name: p.container_port for p in container.ports if p.name}
    if port in named:
        return named[port]
    if port.isdecimal():
        return int(port)
    raise HandlerError(f"couldn't find port: {port!r} in container {container.name}")


def _make_unverified_context() -> ssl.SSLContext:
    """A TLS context that accepts any certificate, as the kubelet's probes do."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
