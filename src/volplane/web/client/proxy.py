"""Connections through a proxy: HTTP CONNECT (also over TLS) and SOCKS5; and the proxy that the environment
asks for.

The rules for $HTTPS_PROXY, $HTTP_PROXY and $NO_PROXY are those of Go, so that kubectl and Volplane use the
same proxy. A proxy is asked to resolve the name of the server, which this machine may not be able to.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import ssl as tls
from collections.abc import Mapping
from contextlib import suppress
from typing import cast
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from volplane.web.client.connection import ClientConnection, HttpError

PORTS = {"http": 80, "https": 443, "socks5": 1080}
SOCKS_ERRORS = {
    1: "general failure",
    2: "not allowed by its rules",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "time to live expired",
    7: "command not supported",
    8: "address type not supported",
}


class Proxy(Struct, frozen=True):
    scheme: str  # http, https or socks5
    host: str
    port: int
    username: str = ""
    password: str = ""

    @classmethod
    def parse(cls, url: str) -> Proxy:
        """Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in PORTS:
            raise ValueError(f"{url!r}: unsupported scheme {parts.scheme!r}; use http, https or socks5")
        if not parts.hostname:
            raise ValueError(f"{url!r} has no host")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme], user, password)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers with which an HTTP proxy is asked."""
        if not self.username:
            return []
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        return [("Proxy-Authorization", f"Basic {pair}")]


def find_proxy(url: str, env: Mapping[str, str]) -> str:
    """The URL of the proxy that the environment names for a server; "" for none."""
    parts = urlsplit(url)
    name = f"{parts.scheme}_proxy"
    found = env.get(name.upper()) or env.get(name) or ""
    host = parts.hostname or ""
    port = parts.port or PORTS.get(parts.scheme, 0)
    if (
        not found
        or _is_loopback(host)
        or _is_excluded(host, port, env.get("NO_PROXY") or env.get("no_proxy"))
    ):
        return ""
    return found if "://" in found else f"http://{found}"


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _is_excluded(host: str, port: int, exceptions: str | None) -> bool:
    return any(_matches(entry.strip().lower(), host, port) for entry in (exceptions or "").split(","))


def _matches(entry: str, host: str, port: int) -> bool:
    """Whether an entry of $NO_PROXY is about a server."""
    if entry in ("", "*"):
        return entry == "*"
    address = _address(host)
    with suppress(ValueError):
        network = ipaddress.ip_network(entry, strict=False)  # an address or a range
        return address is not None and address in network
    name, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdigit():
        if int(wanted) != port:
            return False
        entry = name.strip("[]")
    if address is not None:
        return _address(entry) == address
    suffix = entry.removeprefix("*")
    return host.endswith(suffix) if suffix.startswith(".") else host == suffix or host.endswith(f".{suffix}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class _Handshake(asyncio.Protocol):
    """Exchanges messages with the proxy before the connection is handed on."""

    transport: asyncio.Transport

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._buffer = bytearray()
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def connect_http(self, host: str, port: int) -> None:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
        lines += [f"{name}: {value}" for name, value in self._proxy.headers]
        self.transport.write("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self._buffer:
            await self._wait()
        status = bytes(self._buffer.split(b"\r\n", 1)[0]).decode(errors="replace").split(" ", 1)[-1]
        if not status.startswith("200"):
            raise self._make_error(status)
        self._buffer.clear()  # a TLS server does not speak first

    async def connect_socks(self, host: str, port: int) -> None:
        user, password = self._proxy.username.encode(), self._proxy.password.encode()
        method = 2 if user else 0
        self.transport.write(bytes([5, 1, method]))
        if await self._read(2) != bytes([5, method]):
            raise self._make_error("it wants another way to log in")
        if user:
            self.transport.write(bytes([1, len(user), *user, len(password), *password]))
            if (await self._read(2))[1] != 0:
                raise self._make_error("it rejects the user name and password")
        name = host.encode("idna")
        self.transport.write(bytes([5, 1, 0, 3, len(name), *name, *port.to_bytes(2, "big")]))
        _, code, _, kind = await self._read(4)
        if code != 0:
            raise self._make_error(SOCKS_ERRORS.get(code, f"error {code}"))
        length = {1: 4, 4: 16}.get(kind) or (await self._read(1))[0]
        await self._read(length + 2)  # the address that the proxy connects from

    async def _read(self, length: int) -> bytes:
        while len(self._buffer) < length:
            await self._wait()
        data = bytes(self._buffer[:length])
        del self._buffer[:length]
        return data

    async def _wait(self) -> None:
        if self._ended:
            raise self._make_error("it closed the connection")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _make_error(self, reason: str) -> HttpError:
        return HttpError(f"the proxy {self._proxy} does not connect: {reason}")


async def open_connection(proxy: Proxy) -> ClientConnection:
    """A connection to the proxy itself, for requests without TLS."""
    loop = asyncio.get_running_loop()
    context = tls.create_default_context() if proxy.scheme == "https" else None
    _, connection = await loop.create_connection(ClientConnection, proxy.host, proxy.port, ssl=context)
    return connection


async def open_tunnel(
    proxy: Proxy, host: str, port: int, ssl: tls.SSLContext | None, server_name: str
) -> ClientConnection:
    """A connection through the proxy to a server. Raises HttpError, OSError."""
    loop = asyncio.get_running_loop()
    # As in Go, the proxy is trusted as the server is.
    outer = (ssl or tls.create_default_context()) if proxy.scheme == "https" else None
    try:
        transport, handshake = await loop.create_connection(
            lambda: _Handshake(proxy), proxy.host, proxy.port, ssl=outer
        )
    except OSError as error:
        raise HttpError(f"cannot connect to the proxy {proxy}: {error.strerror or error}") from error
    connection = ClientConnection()
    try:
        if proxy.scheme == "socks5":
            await handshake.connect_socks(host, port)
        else:
            await handshake.connect_http(host, port)
        inner: asyncio.Transport | None = transport
        if ssl is None:
            transport.set_protocol(connection)
        else:
            inner = await loop.start_tls(transport, connection, ssl, server_hostname=server_name)
        assert inner is not None
        connection.connection_made(inner)
    except BaseException:
        transport.abort()
        raise
    return connection
