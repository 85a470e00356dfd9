"""From bytes to requests: httptools' callbacks, and the limits on what a client may send."""

from __future__ import annotations

from typing import Any, Protocol

import httptools

MAX_HEAD = 64 * 1024
_METHODS = {
    name.encode(): name for name in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT")
}


class Malformed(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Sink(Protocol):
    """The connection that the requests arrive on."""

    def begun(self) -> None: ...
    def wants_body(self) -> None: ...
    def arrived(self, reader: Reader, body: bytes | None) -> None:
        """A whole request; or, without a body, one whose body is over the limit and not read."""


class Reader:
    def __init__(self, sink: Sink, max_body: int) -> None:
        self.in_request = False
        self.raw: list[tuple[bytes, bytes]] = []
        self._sink = sink
        self._max_body = max_body
        self._url = b""
        self._body: list[bytes] | None = []
        self._size = 0  # of the head while it comes in, then of the body
        self._in_head = False
        self._announced = 0  # Content-Length
        self._expects = False  # the client waits for a 100 before it sends the body
        self._parser: Any = httptools.HttpRequestParser(self)

    @property
    def method(self) -> str:
        name: bytes = self._parser.get_method()
        return _METHODS.get(name) or name.decode("ascii")

    @property
    def version(self) -> str:
        version: str = self._parser.get_http_version()
        return version

    @property
    def keep_alive(self) -> bool:
        return bool(self._parser.should_keep_alive())

    @property
    def target(self) -> str:
        text = self._url.decode("latin-1")
        if not text.startswith("/") and "://" in text:  # absolute form, as to a proxy
            text = "/" + text.split("://", 1)[1].partition("/")[2]
        return text

    def feed(self, data: bytes) -> bytes | None:
        """Parse on. After a request to upgrade, what no longer belongs to HTTP. Malformed."""
        if self._in_head:
            self._size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return data[upgrade.args[0] :]
        except httptools.HttpParserError:
            raise Malformed(400) from None
        if self._in_head and max(self._size, len(data)) > MAX_HEAD:
            raise Malformed(431)
        return None

    def end(self) -> None:
        """Nothing comes any more. The parser knows us, and we the connection: a circle with all of it."""
        del self._parser, self._sink

    def on_message_begin(self) -> None:
        self._url = b""
        self.raw = []
        self._body = []
        self._size = self._announced = 0
        self._expects = False
        self._in_head = self.in_request = True
        self._sink.begun()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.raw.append((name, value))
        length = len(name)  # cheaper than comparing every name
        if length == 14 and name.lower() == b"content-length":
            self._announced = int(value) if value.isdigit() else 0
        elif length == 6 and name.lower() == b"expect":
            self._expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._size = 0
        if self._announced > self._max_body:
            self._too_large()
        elif self._expects:
            self._sink.wants_body()

    def on_body(self, body: bytes) -> None:
        if self._body is None:
            return
        self._size += len(body)
        if self._size > self._max_body:
            self._too_large()
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self.in_request = False
        if self._body is not None:
            self._sink.arrived(self, b"".join(self._body))

    def _too_large(self) -> None:
        self._body = None
        self._sink.arrived(self, None)
