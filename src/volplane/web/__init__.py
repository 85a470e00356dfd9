"""HTTP/1.1 as every room here speaks it: server, client, TLS, streams, WebSocket, SPDY.

A handler takes a `Request` and gives a `Response`; a body that is an async iterator streams, each piece on
the wire at once. A handler that wants the raw connection calls `request.upgrade` and answers `Upgraded`.
`web.websocket` and `web.spdy` are imported by those who need them.
"""

from volplane.web.client import ClientResponse, HttpClient, HttpError
from volplane.web.message import (
    BodyTooLarge,
    DirectWriter,
    Handler,
    HeaderItems,
    Headers,
    Peer,
    Query,
    Request,
    Response,
    Upgraded,
)
from volplane.web.server import BadAddress, HttpServer, PortInUse, ServerLimits, serve
from volplane.web.stream import Stream

__all__ = [
    "BadAddress",
    "BodyTooLarge",
    "ClientResponse",
    "DirectWriter",
    "Handler",
    "HeaderItems",
    "Headers",
    "HttpClient",
    "HttpError",
    "HttpServer",
    "Peer",
    "PortInUse",
    "Query",
    "Request",
    "Response",
    "ServerLimits",
    "Stream",
    "Upgraded",
    "serve",
]
