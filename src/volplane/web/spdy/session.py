"""Many channels over one connection.

The session's task reads frames and hands them to their channels; writers of a channel write to the connection
directly. A channel is removed when both sides have finished it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from volplane.base.tasks import cancel_and_wait
from volplane.web.message import HeaderItems, Headers
from volplane.web.spdy import frames
from volplane.web.spdy.frames import (
    Data,
    Decoder,
    Encoder,
    Frame,
    GoAway,
    Ping,
    RstStream,
    SpdyError,
    SynReply,
    SynStream,
)
from volplane.web.stream import ByteStream

log = logging.getLogger(__name__)

PIECE = 32 * 1024  # bytes in a data frame
READ_AHEAD = 4 << 20  # bytes that channels may hold unread before the session stops reading
MAX_CHANNELS = 1024


class SpdyChannel:
    """One SPDY stream. `close` ends only the sending direction."""

    def __init__(self, session: SpdySession, id: int, headers: Headers) -> None:
        self.id = id
        self.headers = headers
        self.was_reset = False  # it ended before the peer had finished
        self._session = session
        self._pieces: deque[bytes] = deque()
        self._ended = False  # the peer sends no more
        self._finished = False  # this side sends no more
        self._news = asyncio.Event()
        self._replied = asyncio.get_running_loop().create_future()

    async def read(self) -> bytes:
        """The next piece as received; `b""` when the peer has finished or is gone."""
        while not self._pieces and not self._ended:
            self._news.clear()
            await self._news.wait()
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        self._session._count_read(len(piece))
        return piece

    async def write(self, content: bytes) -> None:
        for at in range(0, len(content), PIECE):
            if self._finished:
                raise ConnectionResetError("the channel is closed")
            await self._session._send(frames.data(self.id, content[at : at + PIECE]))

    async def close(self) -> None:
        if not self._finished:
            self._finished = True
            self._session._forget_if_done(self)
            with suppress(ConnectionError):
                await self._session._send(frames.data(self.id, b"", fin=True))

    async def reset(self, status: int = frames.CANCEL) -> None:
        if not self._is_done():
            self._drop()
            self._session._count_read(sum(map(len, self._pieces)))
            self._pieces.clear()
            with suppress(ConnectionError):
                await self._session._send(frames.reset(self.id, status))

    # For the session

    def _feed(self, piece: bytes) -> int:
        """Take a piece. Returns the number of bytes kept."""
        if self._ended or not piece:
            return 0
        self._pieces.append(piece)
        self._news.set()
        return len(piece)

    def _end(self) -> None:
        self._ended = True
        self._news.set()
        self._session._forget_if_done(self)

    def _drop(self) -> None:
        """End both directions; received data can still be read."""
        self.was_reset = not self._ended
        self._finished = True
        self._take_reply()
        self._end()

    def _take_reply(self) -> None:
        if not self._replied.done():
            self._replied.set_result(None)

    def _is_done(self) -> bool:
        return self._ended and self._finished


class SpdySession:
    """Made by `server()` or `client()`; iterate over it for the channels that the peer opens."""

    def __init__(self, below: ByteStream, *, first_id: int) -> None:
        self._below = below
        self._next_id = first_id
        self._last_peer_id = 0
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._channels: dict[int, SpdyChannel] = {}
        self._incoming: asyncio.Queue[SpdyChannel | None] = asyncio.Queue()
        self._unread = 0
        self._room = asyncio.Event()
        self._room.set()
        self._over = asyncio.Event()

    def __aiter__(self) -> SpdySession:
        return self

    async def __anext__(self) -> SpdyChannel:
        channel = await self._incoming.get()
        if channel is None:
            self._incoming.put_nowait(None)  # for the next call
            raise StopAsyncIteration
        return channel

    async def open(self, headers: HeaderItems) -> SpdyChannel:
        """Open a channel and wait for the peer's reply. Raises ConnectionError."""
        id, self._next_id = self._next_id, self._next_id + 2
        channel = self._channels[id] = SpdyChannel(self, id, Headers.of(headers))
        await self._send(self._encoder.open(id, headers))
        await channel._replied
        if channel.was_reset:
            raise ConnectionResetError("the peer refused the channel")
        return channel

    async def _run(self) -> None:
        try:
            while received := await self._below.read():
                for frame in self._decoder.feed(received):
                    await self._handle(frame)
                await self._room.wait()
        except SpdyError as broken:
            log.info("SPDY session ended: %s", broken)
        except ConnectionError:
            pass  # the peer is gone, and its channels end
        finally:
            self._finish()

    async def wait_closed(self) -> None:
        """Wait until the peer has disconnected."""
        await self._over.wait()

    def _finish(self) -> None:
        self._over.set()
        for channel in list(self._channels.values()):
            channel._drop()
        self._incoming.put_nowait(None)

    async def _handle(self, frame: Frame) -> None:
        match frame:
            case SynStream():
                await self._handle_syn_stream(frame)
            case Data(id, content, fin):
                await self._handle_data(id, content, fin)
            case SynReply(id, _, fin):
                self._handle_syn_reply(id, fin)
            case RstStream(id):
                if (channel := self._channels.get(id)) is not None:
                    channel._drop()
            case Ping(id):
                if id % 2 != self._next_id % 2:  # not the answer to a ping of ours
                    await self._send(frames.ping(id))
            case GoAway():
                self._incoming.put_nowait(None)

    async def _handle_syn_stream(self, frame: SynStream) -> None:
        if frame.stream <= self._last_peer_id or frame.stream % 2 == self._next_id % 2:
            raise SpdyError(f"stream {frame.stream} out of order")
        self._last_peer_id = frame.stream
        # Channels that were reset before being accepted count, too; else a peer could open and reset without
        # end.
        if len(self._channels) >= MAX_CHANNELS or self._incoming.qsize() >= MAX_CHANNELS:
            await self._send(frames.reset(frame.stream, frames.REFUSED_STREAM))
            return
        channel = self._channels[frame.stream] = SpdyChannel(self, frame.stream, frame.headers)
        channel._finished = frame.one_way
        if frame.fin:
            channel._end()
        if not frame.one_way:
            await self._send(self._encoder.reply(frame.stream))
        self._incoming.put_nowait(channel)

    async def _handle_data(self, id: int, content: bytes, fin: bool) -> None:
        channel = self._channels.get(id)
        if channel is None:
            # A channel that was just closed here may still receive data that was on its way.
            if id > self._last_peer_id and id % 2 != self._next_id % 2:
                await self._send(frames.reset(id, frames.INVALID_STREAM))
            return
        self._count_read(-channel._feed(content))
        if fin:
            channel._end()

    def _handle_syn_reply(self, id: int, fin: bool) -> None:
        channel = self._channels.get(id)
        if channel is not None:
            channel._take_reply()
            if fin:
                channel._end()

    # For the channels

    async def _send(self, frame: bytes) -> None:
        if self._over.is_set():
            raise ConnectionResetError("the session is over")
        await self._below.write(frame)

    def _count_read(self, size: int) -> None:
        self._unread -= size
        if self._unread > READ_AHEAD:
            self._room.clear()
        else:
            self._room.set()

    def _forget_if_done(self, channel: SpdyChannel) -> None:
        if channel._is_done():
            self._channels.pop(channel.id, None)

    async def _send_goaway(self) -> None:
        with suppress(ConnectionError):
            await self._send(frames.goaway(self._last_peer_id))


@asynccontextmanager
async def _run_session(session: SpdySession, below: ByteStream) -> AsyncIterator[SpdySession]:
    reading = asyncio.get_running_loop().create_task(session._run())
    try:
        yield session
        await session._send_goaway()
    finally:
        await cancel_and_wait(reading)
        below.close()


def server(below: ByteStream) -> AbstractAsyncContextManager[SpdySession]:
    return _run_session(SpdySession(below, first_id=2), below)


def client(below: ByteStream) -> AbstractAsyncContextManager[SpdySession]:
    return _run_session(SpdySession(below, first_id=1), below)
