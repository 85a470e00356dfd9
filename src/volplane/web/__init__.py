"""HTTP/1.1 server and client, TLS, streams, WebSocket, SPDY.

A handler takes a `Request` and returns a `Response`. A body that is an async iterator is streamed, each piece
sent at once. A handler that needs the raw connection calls `request.upgrade` and returns `Upgraded`. Import
`web.websocket` and `web.spdy` where they are needed.
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
