"""The scripted driver on a real Unix socket, behind a proxy that can break connections.

The proxy forwards bytes to the driver's own socket, so that a reply is lost by a broken connection, without
the driver noticing.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.scripted.driver import ScriptedDriver
from volplane import sdk


class Socket:
    """The proxy; callers connect to `path`."""

    def __init__(self, path: str, behind: str) -> None:
        self.path, self._behind = path, behind
        self._lines: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def up(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_unix_server(self._serve_connection, self.path)

    async def down(self) -> None:
        """Refuse connections until `up`."""
        if self._server is not None:
            self._server.close()
            with suppress(FileNotFoundError):  # from Python 3.13 on the server has removed it
                os.unlink(self.path)
            self._server = None
        await self.cut()

    async def cut(self) -> None:
        """Break every connection; accept new ones."""
        for line in list(self._lines):
            for end in line:
                end.transport.abort()
        await asyncio.sleep(0)

    async def close(self) -> None:
        await self.down()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_unix_connection(self._behind)
        except OSError:
            writer.transport.abort()
            return
        line = (writer, back)
        self._lines.add(line)
        both = [asyncio.ensure_future(_pump(reader, back)), asyncio.ensure_future(_pump(there, writer))]
        self._pumps.update(both)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._lines.discard(line)
            for end in line:
                end.transport.abort()
            for pump in both:
                pump.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self._pumps.difference_update(both)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def on_socket(driver: ScriptedDriver, path: str = "") -> AsyncIterator[Socket]:
    """Serve the driver until the end of the block, at `path` or in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="s-") as directory:
        behind = str(Path(directory) / "behind.sock")
        socket = Socket(path or str(Path(directory) / "csi.sock"), behind)
        async with sdk.DriverServer(driver, behind, grace=0.1):
            await socket.up()
            driver.cut = socket.cut
            try:
                yield socket
            finally:
                driver.cut = None
                await socket.close()
