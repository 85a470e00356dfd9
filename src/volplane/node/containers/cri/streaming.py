"""exec, attach and port-forward through the runtime's streaming server, over SPDY.

A CRI call prepares the stream and returns a URL; who connects to it gets the streams.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from urllib.parse import urlsplit

from volplane.base.tasks import TaskSet, cancel_and_wait
from volplane.node.containers.base import AttachRefused, CannotExec, ContainerError
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.client import CHECK_TIMEOUT, CriClient
from volplane.node.network.interface import StreamPair
from volplane.web import spdy
from volplane.web.client import HttpClient, HttpError
from volplane.web.spdy import SpdyChannel, SpdySession

log = logging.getLogger(__name__)

REMOTE_COMMAND = "v4.channel.k8s.io"
PORT_FORWARD = "portforward.k8s.io"
CONNECT_TIMEOUT = 30.0
_MISSING_PROGRAM = re.compile("no such file or directory|executable file not found")


class StreamFailed(ContainerError):
    """The runtime's streaming server did not give the streams."""


class Streams:
    """The connection of one exec, attach or port-forward."""

    def __init__(self, stack: AsyncExitStack, session: SpdySession) -> None:
        self._stack, self._session = stack, session

    @classmethod
    async def connect(cls, url: str, protocol: str) -> Streams:
        """Raises StreamFailed."""
        parts = urlsplit(url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        stack = AsyncExitStack()
        try:
            http = HttpClient(f"{parts.scheme}://{parts.netloc}")
            stack.push_async_callback(http.close)
            headers = [
                ("Connection", "Upgrade"),
                ("Upgrade", "SPDY/3.1"),
                ("X-Stream-Protocol-Version", protocol),
            ]
            answer, stream = await http.upgrade(path, headers, method="POST", timeout=CONNECT_TIMEOUT)
            if stream is None:
                text = answer.body.decode(errors="replace").strip()
                raise StreamFailed(f"unable to upgrade connection: {text or answer.status}")
            session = await stack.enter_async_context(spdy.client(stream))
        except (HttpError, OSError, TimeoutError, ValueError) as error:
            await stack.aclose()
            raise StreamFailed(f"unable to connect to the runtime's streaming server: {error}") from error
        except BaseException:
            await stack.aclose()
            raise
        return cls(stack, session)

    async def open(self, kind: str, **headers: str) -> SpdyChannel:
        given = [("streamtype", kind), *headers.items()]
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await self._session.open(given)
        except (ConnectionError, TimeoutError) as error:
            raise StreamFailed(f"the runtime's streaming server refused stream {kind}: {error}") from error

    async def close(self) -> None:
        await self._stack.aclose()


async def _read_all(channel: SpdyChannel) -> bytes:
    data = bytearray()
    while piece := await channel.read():
        data += piece
    return bytes(data)


class _ChannelReader:
    def __init__(self, channel: SpdyChannel) -> None:
        self._channel = channel

    async def read(self, limit: int = 65536) -> bytes:
        return await self._channel.read()


class _ChannelWriter:
    def __init__(self, channel: SpdyChannel, tasks: TaskSet) -> None:
        self._channel, self._tasks = channel, tasks

    async def write(self, data: bytes) -> None:
        with suppress(ConnectionError):  # the command has exited, or has closed its input
            await self._channel.write(data)

    def close(self) -> None:
        self._tasks.start(self._channel.close(), "end of input")


class CriExec:
    """A command that runs in a container. The runtime goes on running it when the client disconnects."""

    def __init__(self, streams: Streams, channels: dict[str, SpdyChannel]) -> None:
        self._streams, self._channels = streams, channels
        self._tasks = TaskSet()
        self.stdin = _ChannelWriter(channels["stdin"], self._tasks) if "stdin" in channels else None
        self.stdout = _ChannelReader(channels["stdout"])
        self.stderr = _ChannelReader(channels["stderr"]) if "stderr" in channels else None

    def resize(self, width: int, height: int) -> None:
        if (channel := self._channels.get("resize")) is not None:
            self._tasks.start(channel.write(_encode_size(width, height)), "terminal size")

    async def wait(self) -> int:
        """The exit code. Raises CannotExec."""
        return parse_exit_status(await _read_all(self._channels["error"]))

    async def close(self) -> None:
        await self._tasks.close()
        await self._streams.close()


async def open_exec(cri: CriClient, id: str, command: tuple[str, ...], *, tty: bool, stdin: bool) -> CriExec:
    """Raises CriError, StreamFailed."""
    request = v1.ExecRequest(container_id=id, cmd=command, tty=tty, stdin=stdin, stdout=True, stderr=not tty)
    reply: v1.ExecResponse = await cri.call("Exec", request, CHECK_TIMEOUT)
    streams = await Streams.connect(reply.url, REMOTE_COMMAND)
    try:
        return CriExec(streams, await _open_channels(streams, tty=tty, stdin=stdin))
    except BaseException:
        await streams.close()
        raise


async def _open_channels(streams: Streams, *, tty: bool, stdin: bool) -> dict[str, SpdyChannel]:
    names = ["error", *(["stdin"] if stdin else []), "stdout", *(["resize"] if tty else ["stderr"])]
    return {name: await streams.open(name) for name in names}


def _encode_size(width: int, height: int) -> bytes:
    return json.dumps({"Width": width, "Height": height}).encode()


def parse_exit_status(data: bytes) -> int:
    """The exit code in the Status of an ended command. Raises CannotExec."""
    if not data:
        raise CannotExec("the connection to the runtime was lost", 126)
    try:
        status = json.loads(data)
        if status.get("status") == "Success":
            return 0
        causes = (status.get("details") or {}).get("causes") or ()
        codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
        if codes:
            return int(codes[0])
        message = str(status.get("message", ""))
    except (ValueError, AttributeError, KeyError, TypeError):
        message = data.decode(errors="replace")
    raise CannotExec(message, 127 if _MISSING_PROGRAM.search(message) else 126)


class CriAttach:
    """An attached client of a container's own streams."""

    def __init__(self, streams: Streams, channels: dict[str, SpdyChannel]) -> None:
        self._streams, self._channels = streams, channels
        self._tasks = TaskSet()

    async def read_output(self) -> AsyncIterator[tuple[str, bytes]]:
        queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(maxsize=16)

        async def read(name: str) -> None:
            while data := await self._channels[name].read():
                await queue.put((name, data))
            await queue.put((name, b""))

        names = [name for name in ("stdout", "stderr") if name in self._channels]
        readers = [asyncio.create_task(read(name)) for name in names]
        open_streams = len(names)
        try:
            while open_streams:
                name, data = await queue.get()
                if data:
                    yield name, data
                else:
                    open_streams -= 1
        finally:
            await cancel_and_wait(*readers)

    async def write(self, data: bytes) -> None:
        if (channel := self._channels.get("stdin")) is not None:
            await channel.write(data)

    async def end_input(self) -> None:
        if (channel := self._channels.get("stdin")) is not None:
            await channel.close()

    async def resize(self, width: int, height: int) -> None:
        if (channel := self._channels.get("resize")) is not None:
            await channel.write(_encode_size(width, height))

    def close(self) -> None:
        self._tasks.start(self._streams.close(), "end of attach")


async def open_attach(cri: CriClient, id: str, *, tty: bool, stdin: bool) -> CriAttach:
    """Raises AttachRefused, CriError."""
    request = v1.AttachRequest(container_id=id, tty=tty, stdin=stdin, stdout=True, stderr=not tty)
    reply: v1.AttachResponse = await cri.call("Attach", request, CHECK_TIMEOUT)
    try:
        streams = await Streams.connect(reply.url, REMOTE_COMMAND)
        try:
            return CriAttach(streams, await _open_channels(streams, tty=tty, stdin=stdin))
        except BaseException:
            await streams.close()
            raise
    except StreamFailed as error:
        raise AttachRefused(str(error)) from error


async def forward_port(cri: CriClient, sandbox: str, port: int, tasks: TaskSet) -> StreamPair:
    """Connect to a port of a sandbox; `tasks` owns the copying. Raises CriError, StreamFailed, OSError."""
    request = v1.PortForwardRequest(pod_sandbox_id=sandbox, port=[port])
    reply: v1.PortForwardResponse = await cri.call("PortForward", request, CHECK_TIMEOUT)
    streams = await Streams.connect(reply.url, PORT_FORWARD)
    try:
        error = await streams.open("error", port=str(port), requestid="0")
        await error.close()  # nothing is sent on it
        data = await streams.open("data", port=str(port), requestid="0")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        inner = await asyncio.open_connection(sock=theirs)
        outer = await asyncio.open_connection(sock=ours)
    except BaseException:
        await streams.close()
        raise
    tasks.start(_copy_port(streams, data, error, inner), f"port {port} of sandbox {sandbox}")
    return outer


async def _copy_port(streams: Streams, data: SpdyChannel, error: SpdyChannel, inner: StreamPair) -> None:
    reader, writer = inner

    async def send() -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(32768):
                await data.write(piece)
            await data.close()

    sending = asyncio.create_task(send())
    try:
        with suppress(ConnectionError):
            while piece := await data.read():
                writer.write(piece)
                await writer.drain()
        if data.was_reset and (problem := await _read_all(error)):
            log.info("port-forward: %s", problem.decode(errors="replace"))
    finally:
        writer.close()
        await cancel_and_wait(sending)
        await streams.close()
