"""HTTP/1.1 as every room here speaks it: server, client, TLS, streams, WebSocket, SPDY.

A handler takes a `Request` and gives a `Response`; a body that is an async iterator streams, each piece on
the wire at once. A handler that wants the raw connection calls `request.upgrade` and answers `Upgraded`.
`web.websocket` and `web.spdy` are imported by those who need them.
"""

from volplane.web.client import Answer, Http, HttpError
from volplane.web.message import (
    BodyTooLarge,
    Handler,
    HeaderItems,
    Headers,
    Peer,
    Query,
    Request,
    Response,
    Sink,
    Upgraded,
)
from volplane.web.server import BadAddress, Limits, PortInUse, Server, serve
from volplane.web.stream import Stream

__all__ = [
    "Answer",
    "BadAddress",
    "BodyTooLarge",
    "Handler",
    "HeaderItems",
    "Headers",
    "Http",
    "HttpError",
    "Limits",
    "Peer",
    "PortInUse",
    "Query",
    "Request",
    "Response",
    "Server",
    "Sink",
    "Stream",
    "Upgraded",
    "serve",
]
