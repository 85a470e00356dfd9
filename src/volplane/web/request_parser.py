"""Parse bytes into requests with httptools, and enforce limits on what a client may send.

httptools rejects conflicting lengths itself. Requests that it would accept, but that two servers in a row
could parse differently, are rejected here.
"""

from __future__ import annotations

from typing import Any, Protocol

import httptools

MAX_HEAD = 64 * 1024
MAX_HEADERS = 256
LARGE = 64 * 1024  # bytes from which a body counts as large
PIECES = 64  # parts of a body kept separately; further ones are joined, since small parts waste memory
_METHODS = {
    name.encode(): name for name in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT")
}


class MalformedRequest(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class RequestConsumer(Protocol):
    """The connection that the requests arrive on."""

    def handle_request_start(self) -> None: ...
    def send_continue(self) -> None: ...
    def handle_large_body(self) -> None:
        """A large body is being received."""

    def handle_request(self, reader: RequestParser, body: bytes | None) -> None:
        """A complete request. Body None: it exceeds the limit, and is not read."""


class RequestParser:
    def __init__(self, sink: RequestConsumer, max_body: int) -> None:
        self.in_request = False
        self.raw: list[tuple[bytes, bytes]] = []
        self._sink = sink
        self._max_body = max_body
        self._url = b""
        self._body: list[bytes | bytearray] | None = []
        self.size = 0  # bytes of the body so far
        self._silent = 0  # bytes since the last progress of the parser
        self._fed = 0  # bytes being parsed
        self._continued = False  # they continue a head
        self._first = False  # they begin with a new request
        self._in_head = False
        self._refused = 0  # status of a rejection by a callback, which cannot raise through the parser
        self._announced = 0  # Content-Length
        self._expects = False  # the client waits for 100 Continue
        self._parser: Any = httptools.HttpRequestParser(self)

    @property
    def in_body(self) -> bool:
        return self.in_request and not self._in_head

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
        if not text.startswith("/") and "://" in text:  # absolute form, as sent to a proxy
            text = "/" + text.split("://", 1)[1].partition("/")[2]
        return text

    def feed(self, data: bytes) -> bytes | None:
        """Parse more bytes. Returns the bytes after a request to upgrade. Raises MalformedRequest."""
        self._fed = len(data)
        self._silent += self._fed
        self._continued = self._in_head
        self._first = not self.in_request
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._refused:
                return data[upgrade.args[0] :]
        except httptools.HttpParserError:
            raise MalformedRequest(self._refused or 400) from None
        if self._refused:
            raise MalformedRequest(self._refused)
        # A head, chunk size or trailers that do not end: the parser would buffer all of it.
        if self.in_request and self._silent > MAX_HEAD:
            raise MalformedRequest(431)
        return None

    def close(self) -> None:
        """Break the reference cycle between parser and connection."""
        del self._parser, self._sink

    def on_message_begin(self) -> None:
        self._url = b""
        self.raw = []
        self._body = []
        self.size = self._announced = 0
        self._silent = self._fed if self._first else 0
        self._first = False
        self._expects = False
        self._in_head = self.in_request = True
        self._sink.handle_request_start()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: proxies in front have checked the headers, but not these
        self.raw.append((name, value))
        length = len(name)  # cheaper than comparing every name
        if length == 14 and name.lower() == b"content-length":
            self._announced = int(value) if value.isdigit() else 0
        elif length == 6 and name.lower() == b"expect":
            self._expects = value.lower() == b"100-continue"
        elif length == 17 and name.lower() == b"transfer-encoding":
            self._check_encoding(value)

    def _check_encoding(self, value: bytes) -> None:
        """Allow only chunked, and only in HTTP/1.1: handlers cannot decode other encodings."""
        if value.strip().lower() != b"chunked":
            self._refused = 501
        elif self.version != "1.1":
            self._refused = 400

    def on_headers_complete(self) -> None:
        self._in_head = False
        # A head that arrived in one small piece is small; any other has to be measured.
        in_parts = self._continued or self._fed > MAX_HEAD
        if len(self.raw) > MAX_HEADERS or (in_parts and self._head_size() > MAX_HEAD):
            self._refused = 431
        self._silent = 0
        if self._refused:
            self._body = None
        elif self._announced > self._max_body:
            self._reject_large_body()
        else:
            if self._announced > LARGE:
                self._sink.handle_large_body()
            if self._expects:
                self._sink.send_continue()

    def _head_size(self) -> int:
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in self.raw)

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        if self._body is None:
            return
        before, self.size = self.size, self.size + len(body)
        if self.size > self._max_body:
            self._reject_large_body()
            return
        if before <= LARGE < self.size and self._announced <= LARGE:
            self._sink.handle_large_body()
        if len(self._body) < PIECES:
            self._body.append(body)
        elif isinstance(last := self._body[-1], bytearray):
            last += body
        else:
            self._body.append(bytearray(body))

    def on_message_complete(self) -> None:
        self.in_request = False
        if self._body is not None and not self._refused:
            self._sink.handle_request(self, b"".join(self._body))

    def _reject_large_body(self) -> None:
        self._body = None
        self._sink.handle_request(self, None)
