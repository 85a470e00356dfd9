"""Requests and responses. Headers, path and query are parsed when first accessed."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

if TYPE_CHECKING:
    from volplane.web.stream import Stream

HeaderItems: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})  # true for Go's ParseBool


class BodyTooLarge(Exception):
    """Raised by `Request.body`. The server does not read the body, and closes the connection after the
    response.
    """


class Headers:
    """Case-insensitive headers; several values of one name stay separate."""

    __slots__ = ("_by_name", "_raw")

    def __init__(self, raw: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._raw = raw
        self._by_name: dict[str, list[str]] | None = None

    @classmethod
    def of(cls, items: HeaderItems) -> Headers:
        return cls([(name.encode("latin-1"), value.encode("latin-1")) for name, value in header_pairs(items)])

    def get(self, name: str, default: str = "") -> str:
        values = self._index().get(name.lower())
        return values[0] if values else default

    def all(self, name: str) -> list[str]:
        return list(self._index().get(name.lower(), ()))

    def tokens(self, name: str) -> list[str]:
        """The comma-separated words of a header such as Connection, in lower case."""
        return [word.strip().lower() for value in self.all(name) for word in value.split(",")]

    def items(self) -> Iterator[tuple[str, str]]:
        return ((name.decode("latin-1"), value.decode("latin-1")) for name, value in self._raw)

    def names(self) -> Iterable[str]:
        """Each name once, in lower case."""
        return self._index().keys()

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._index()

    def __repr__(self) -> str:
        return f"Headers({[name for name, _ in self.items()]})"  # values may be secrets

    def _index(self) -> dict[str, list[str]]:
        if self._by_name is None:
            self._by_name = {}
            for name, value in self._raw:
                self._by_name.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        return self._by_name


class Query:
    __slots__ = ("_values", "raw")

    def __init__(self, raw: str = "") -> None:
        self.raw = raw
        self._values: dict[str, list[str]] | None = None

    def get(self, name: str, default: str = "") -> str:
        values = self._index().get(name)
        return values[0] if values else default

    def all(self, name: str) -> list[str]:
        return list(self._index().get(name, ()))

    def flag(self, name: str) -> bool:
        return self.get(name) in _TRUE

    def names(self) -> Iterable[str]:
        return self._index().keys()

    def __contains__(self, name: str) -> bool:
        return name in self._index()

    def _index(self) -> dict[str, list[str]]:
        if self._values is None:
            self._values = {}
            for name, value in parse_qsl(self.raw, keep_blank_values=True) if self.raw else ():
                self._values.setdefault(name, []).append(value)
        return self._values


class Peer(Struct, frozen=True):
    """The subject of the verified client certificate."""

    common_name: str
    organizations: tuple[str, ...] = ()
    fingerprint: str = ""  # SHA-256 of the certificate, in hex
    not_before: float = 0.0  # seconds since the epoch
    not_after: float = math.inf

    @property
    def is_valid(self) -> bool:
        """Whether the certificate is valid now, by the real clock, as TLS would check it."""
        return self.not_before <= time.time() <= self.not_after


Hijack: TypeAlias = Callable[["Request", HeaderItems], "Stream"]


class Request:
    __slots__ = (
        "_body",
        "_hijack",
        "_path",
        "headers",
        "keep_alive",
        "method",
        "peer",
        "query",
        "raw_path",
        "remote",
        "secure",
        "user",
        "version",
    )

    def __init__(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | None = b"",
        *,
        peer: Peer | None = None,
        remote: str = "",
        secure: bool = False,
        version: str = "1.1",
        keep_alive: bool = True,
        hijack: Hijack | None = None,
    ) -> None:
        self.method = method
        self.raw_path, _, query = target.partition("?")
        self.query = Query(query)
        self.headers = headers
        self.peer = peer
        self.remote = remote
        self.secure = secure
        self.version = version
        self.keep_alive = keep_alive
        self.user = ""  # set by the handler; unauthenticated connections are closed first
        self._body = body
        self._hijack = hijack

    @property
    def path(self) -> str:
        return unquote(self.raw_path) if "%" in self.raw_path else self.raw_path

    @property
    def body(self) -> bytes:
        if self._body is None:
            raise BodyTooLarge
        return self._body

    async def upgrade(self, status_headers: HeaderItems) -> Stream:
        """Respond 101 with these headers (`Upgrade` among them) and take over the connection.

        The handler then returns `Upgraded()`; the connection is closed after that.
        """
        if self._hijack is None:
            raise RuntimeError("this request has no connection to take over")
        return self._hijack(self, status_headers)

    def __repr__(self) -> str:
        return f"Request({self.method} {self.raw_path})"


class DirectWriter(Protocol):
    """Writes to a stream past its iterator, for data that can be sent at once.

    The stream itself must ensure that nothing overtakes what its iterator still has to send.
    """

    @property
    def is_full(self) -> bool:
        """Whether the client is too slow or gone: further data must go through the iterator."""
        ...

    def write(self, piece: bytes) -> None: ...


class Response(Struct):
    status: int = 200
    headers: HeaderItems = ()
    body: bytes | AsyncIterator[bytes] = b""
    patience: float | None = None  # of a stream: seconds that the client may leave it unread
    direct: Callable[[DirectWriter], None] | None = None  # of a stream: receives its DirectWriter


class Upgraded(Struct, frozen=True):
    """The handler took over the connection with `upgrade`, and has finished."""


Handler: TypeAlias = Callable[[Request], Awaitable[Response | Upgraded]]


def header_pairs(items: HeaderItems) -> Iterable[tuple[str, str]]:
    return items.items() if isinstance(items, Mapping) else items


def format_head(first_line: str, headers: HeaderItems, *more: tuple[str, str]) -> bytes:
    """The head of a message, blank line included. Raises ValueError for a line break inside a header."""
    lines = [first_line, *(f"{name}: {value}" for name, value in header_pairs(headers))]
    lines += [f"{name}: {value}" for name, value in more]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("line break in a header")
    return f"{text}\r\n\r\n".encode("latin-1")
