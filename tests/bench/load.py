"""A load generator: keep-alive connections with TLS, one request at a time on each, without pauses.

It uses less CPU time than the product's client, which would take it from the server on the same machine.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import yaml
from msgspec import Struct

PATIENCE = 60.0


class Target(Struct):
    """A server, and the credentials for it."""

    host: str
    port: int
    context: Any
    pids: tuple[int, ...] = ()  # its processes, if they are on this machine

    @classmethod
    def of(cls, kubeconfig: Path, *pids: int) -> Target:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority").decode())
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(_pem(user, "client-certificate") + b"\n" + _pem(user, "client-key"))
            pair.flush()
            context.load_cert_chain(pair.name)
        address = urlsplit(cluster["server"])
        assert address.hostname is not None
        return cls(address.hostname, address.port or 443, context, pids)

    def cpu(self) -> float:
        """Milliseconds of CPU time that its processes have used."""
        ticks = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks * 1000 / os.sysconf("SC_CLK_TCK")


def _pem(held: dict[str, str], name: str) -> bytes:
    if data := held.get(f"{name}-data"):
        return base64.b64decode(data)
    return Path(held[name]).read_bytes()


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, target: Target) -> Connection:
        return cls(
            *await asyncio.open_connection(target.host, target.port, ssl=target.context, limit=1 << 24)
        )

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, type: str = "application/json", expect: int = 200
    ) -> bytes:
        self.writer.write(_message(method, path, body, type))
        head = await self.reader.readuntil(b"\r\n\r\n")
        answer = await self._body(head)
        status = int(head[9:12])
        if status != expect and not (expect == 200 and status == 201):
            raise RuntimeError(f"{method} {path}: {status} {answer[:500]!r}")
        return answer

    async def _body(self, head: bytes) -> bytes:
        lower = head.lower()
        at = lower.find(b"content-length:")
        if at >= 0:
            return await self.reader.readexactly(int(lower[at + 15 : lower.index(b"\r\n", at)]))
        assert b"transfer-encoding: chunked" in lower, head
        pieces = []
        while piece := await self._chunk():
            pieces.append(piece)
        return b"".join(pieces)

    async def _chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def follow(self, path: str) -> AsyncIterator[bytes]:
        """Start a watch and return its lines."""
        self.writer.write(_message("GET", path, b"", ""))
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head[9:12] == b"200", head
        return self._lines()

    async def _lines(self) -> AsyncIterator[bytes]:
        rest = b""
        while piece := await self._chunk():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return


def _message(method: str, path: str, body: bytes, type: str) -> bytes:
    kind = f"Content-Type: {type}\r\nContent-Length: {len(body)}\r\n" if body else ""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAccept: application/json\r\n{kind}\r\n".encode() + body
    )


class Load:
    """`async with Load(target, 16) as load:` so many connections, all open."""

    connections: list[Connection]

    def __init__(self, target: Target, count: int) -> None:
        self.target, self.count = target, count
        self.total = 0  # requests of the last measurement, including warm-up

    async def __aenter__(self) -> Self:
        self.connections = [await Connection.open(self.target) for _ in range(self.count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(connection.close() for connection in self.connections))

    async def rate(self, act: Callable[[Connection, int, int], Awaitable[None]], seconds: float) -> float:
        """Requests per second of all connections together, after a warm-up."""
        done = self.total = 0
        counting = time.perf_counter() + seconds / 5
        end = counting + seconds

        async def one(worker: int, connection: Connection) -> None:
            nonlocal done
            n = worker
            while (now := time.perf_counter()) < end:
                await act(connection, worker, n)
                done += now >= counting
                self.total += 1
                n += self.count

        async with asyncio.timeout(seconds + PATIENCE):
            await asyncio.gather(*(one(w, c) for w, c in enumerate(self.connections)))
        return done / seconds
