"""The HTTP client: one server, keep-alive connections, streams and upgrades.

The server may close an idle connection at any moment. So an idempotent request that fails on a reused
connection before the first byte of a response is sent again on a new one. Streams and upgrades use
connections of their own, so that a hundred watches do not block other requests.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from weakref import WeakSet

from volplane.web.client.connection import ClientConnection, ClientResponse, HttpError, ServerDisconnected
from volplane.web.client.proxy import Proxy, open_connection, open_tunnel
from volplane.web.message import HeaderItems, format_head, header_pairs
from volplane.web.stream import Stream
from volplane.web.tls import load_pair

__all__ = ["ClientResponse", "HttpClient", "HttpError", "ServerDisconnected"]

TIMEOUT = 30.0
MAX_CONNECTIONS = 64
MAX_IDLE = MAX_CONNECTIONS  # connections kept for the next requests, as many as a burst of them uses
CLOSE_TIMEOUT = 1.0  # seconds for the server to close its side
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class HttpClient:
    def __init__(
        self,
        base_url: str,
        *,
        ssl: tls.SSLContext | None = None,
        headers: HeaderItems = (),
        max_connections: int = MAX_CONNECTIONS,
        proxy: str = "",
        server_name: str = "",
    ) -> None:
        """`proxy`: URL of a proxy. `server_name`: name in the server's certificate, if not the host's."""
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"not an HTTP address: {base_url!r}")
        self._secure = url.scheme == "https"
        self._ssl = (ssl or tls.create_default_context()) if self._secure else None
        self._host, self._port = url.hostname, url.port or (443 if self._secure else 80)
        self._server_name = server_name or self._host
        self._prefix = url.path.rstrip("/")
        self._headers = [("Host", url.netloc.rpartition("@")[2]), *header_pairs(headers)]
        self._proxy = Proxy.parse(proxy) if proxy else None
        self._forwarded = not self._secure and self._proxy is not None and self._proxy.scheme != "socks5"
        if self._proxy is not None and self._forwarded:  # without TLS, a proxy gets the whole address
            self._prefix = f"http://{self._headers[0][1]}{self._prefix}"
            self._headers += self._proxy.headers
        self._idle: deque[ClientConnection] = deque()
        self._open: set[ClientConnection] = set()
        self._outdated: WeakSet[ClientConnection] = WeakSet()  # opened with an earlier certificate
        self._free = asyncio.Semaphore(max_connections)
        self._closed = False
        self._name = f"{url.scheme}://{self._host}:{self._port}"

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: HeaderItems = (),
        body: bytes = b"",
        timeout: float | None = TIMEOUT,
    ) -> ClientResponse:
        """Send a request and read the response. Raises HttpError, OSError, TimeoutError."""
        message = self._message(method, path, headers, body)
        async with asyncio.timeout(timeout), self._free:
            connection = self._take_idle()
            if connection is not None:
                try:
                    return await self._exchange(connection, method, message)
                except ServerDisconnected as gone:
                    if gone.answered or method not in _REPEATABLE:
                        raise
            return await self._exchange(await self._connect(), method, message)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        headers: HeaderItems = (),
        body: bytes = b"",
        timeout: float | None = TIMEOUT,
    ) -> AsyncIterator[tuple[ClientResponse, AsyncIterator[bytes]]]:
        """Yield the head of the response, for which the timeout applies, and its body piece by piece."""
        message = self._message(method, path, headers, body)
        async with asyncio.timeout(timeout):
            connection = await self._connect()
        pieces = connection.iterate_body()
        try:
            async with asyncio.timeout(timeout):
                answer = await connection.send_request(method, message)
            yield answer, pieces
        finally:
            await pieces.aclose()
            self._return_connection(connection)

    async def upgrade(
        self,
        path: str,
        headers: HeaderItems,
        *,
        method: str = "GET",
        body: bytes = b"",
        timeout: float | None = TIMEOUT,
    ) -> tuple[ClientResponse, Stream | None]:
        """Return the response and, after a 101, the raw connection; a rejection has a body and no stream."""
        message = self._message(method, path, headers, body)
        async with asyncio.timeout(timeout):
            connection = await self._connect()
            try:
                answer = await connection.send_request(method, message)
                if answer.status == 101:
                    self._open.discard(connection)
                    return answer, connection.take_over()
                answer.body = await connection.read_body()
                return answer, None
            finally:
                if connection.upgraded is None:
                    self._drop(connection)

    def use_certificate(self, pair: bytes) -> None:
        """Use another certificate, with its key, for new connections."""
        if self._ssl is not None:
            load_pair(self._ssl, pair, pair)
            self._outdated.update(self._open)

    async def close(self) -> None:
        self._closed = True
        self._idle.clear()
        for connection in self._open:
            self._drop(connection)
        await self._wait_closed()
        for connection in self._open:
            connection.abort()
        await self._wait_closed()

    async def _wait_closed(self) -> None:
        if self._open:
            await asyncio.wait([connection.gone for connection in self._open], timeout=CLOSE_TIMEOUT)

    def __repr__(self) -> str:
        return self._name

    def _message(self, method: str, path: str, headers: HeaderItems, body: bytes) -> bytes:
        if not path.startswith("/") or " " in path:
            raise ValueError(f"not a request path: {path!r}")
        more = [("Content-Length", str(len(body)))] if body or method in ("POST", "PUT", "PATCH") else []
        top = format_head(
            f"{method} {self._prefix}{path} HTTP/1.1", [*self._headers, *header_pairs(headers)], *more
        )
        return top + body

    async def _exchange(self, connection: ClientConnection, method: str, message: bytes) -> ClientResponse:
        try:
            answer = await connection.send_request(method, message)
            answer.body = await connection.read_body()
            return answer
        finally:
            self._return_connection(connection)

    def _take_idle(self) -> ClientConnection | None:
        while self._idle:
            connection = self._idle.pop()  # the most recently used one is the least likely to be closed
            if self._is_reusable(connection):
                return connection
            self._drop(connection)
        return None

    async def _connect(self) -> ClientConnection:
        if self._closed:
            raise HttpError("the client is closed")
        try:
            connection = await self._open_connection()
        except tls.SSLCertVerificationError as error:
            raise HttpError(f"{self._name}: {error.reason}: {error.verify_message}") from error
        except tls.SSLError as error:
            raise HttpError(f"{self._name}: {error.reason or error}") from error
        except HttpError:
            raise
        except OSError as error:
            raise HttpError(f"cannot connect to {self._name}: {error.strerror or error}") from error
        self._open.add(connection)
        # Not earlier: a closed connection may still have data to send.
        connection.gone.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    async def _open_connection(self) -> ClientConnection:
        if self._proxy is not None and self._forwarded:
            return await open_connection(self._proxy)
        if self._proxy is not None:
            return await open_tunnel(self._proxy, self._host, self._port, self._ssl, self._server_name)
        name = self._server_name if self._secure else None
        _, connection = await asyncio.get_running_loop().create_connection(
            ClientConnection, self._host, self._port, ssl=self._ssl, server_hostname=name
        )
        return connection

    def _return_connection(self, connection: ClientConnection) -> None:
        """Keep the connection for the next request if this one is complete."""
        if self._is_reusable(connection) and not self._closed:
            self._idle.append(connection)
            if len(self._idle) > MAX_IDLE:  # streams open as many as they need, and return them here
                self._drop(self._idle.popleft())
        else:
            self._drop(connection)

    def _is_reusable(self, connection: ClientConnection) -> bool:
        return connection.is_reusable() and connection not in self._outdated

    def _drop(self, connection: ClientConnection) -> None:
        connection.close()
