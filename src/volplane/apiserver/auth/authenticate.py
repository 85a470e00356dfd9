"""Authenticate a request: by client certificate, else by bearer token, else as anonymous.

An invalid token is refused; it never makes the request anonymous. Each kind of token has one check: it
returns None for tokens of another kind, and an error for a bad token of its own kind.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import structs

from volplane.api.errors import Unauthorized
from volplane.apiserver.auth.go_format import aggregate_errors
from volplane.apiserver.auth.issuer import ISSUER
from volplane.apiserver.auth.well_known_users import ANONYMOUS, AUTHENTICATED
from volplane.apiserver.strategy import RequestUser
from volplane.web import Peer, Request

EXTRA = "authentication.kubernetes.io/"
WEBSOCKET_TOKEN = "base64url.bearer.authorization.k8s.io."
AUDIENCES = (ISSUER,)  # the audiences of this API server


class TokenResult(NamedTuple):
    """The result of a token check: a user and the accepted audiences, or an error."""

    user: RequestUser | None = None
    audiences: tuple[str, ...] = ()
    error: str = ""


TokenCheck = Callable[[str, tuple[str, ...]], TokenResult | None]


class StaticTokens:
    """Static tokens, stored as hashes so that lookup time reveals nothing about them."""

    def __init__(self) -> None:
        self._users: dict[bytes, RequestUser] = {}

    def add(self, token: str, user: RequestUser) -> None:
        self._users[_digest(token)] = user

    def __call__(self, token: str, audiences: tuple[str, ...]) -> TokenResult | None:
        user = self._users.get(_digest(token))
        ours = tuple(audience for audience in AUDIENCES if audience in audiences)
        return TokenResult(user, ours) if user is not None and ours else None


class Authenticator:
    def __init__(self, checks: Sequence[TokenCheck]) -> None:
        self.checks = list(checks)

    def __call__(self, request: Request) -> RequestUser:
        peer = request.peer
        if peer is not None and not peer.is_valid:
            raise Unauthorized()  # checked with each request: a connection may outlive its certificate
        if peer is not None and peer.common_name:
            return _certificate_user(peer)
        token = bearer_token(request)
        if token is None:
            return ANONYMOUS
        user = self.check(token).user
        if user is None:
            raise Unauthorized()
        return user

    def check(self, token: str, audiences: tuple[str, ...] = AUDIENCES) -> TokenResult:
        errors = ["invalid bearer token"]
        for check in self.checks:
            checked = check(token, audiences)
            if checked is None:
                continue
            if checked.user is not None:
                return checked._replace(user=with_authenticated_group(checked.user))
            errors.append(checked.error)
        return TokenResult(error=aggregate_errors(errors))


@lru_cache(maxsize=1024)  # one per certificate: a client opens many connections
def _certificate_user(peer: Peer) -> RequestUser:
    extra = {f"{EXTRA}credential-id": (f"X509SHA256={peer.fingerprint}",)} if peer.fingerprint else {}
    return with_authenticated_group(RequestUser(peer.common_name, tuple(peer.organizations), extra=extra))


def with_authenticated_group(user: RequestUser) -> RequestUser:
    """Add the group system:authenticated."""
    if AUTHENTICATED in user.groups:
        return user
    return structs.replace(user, groups=(*user.groups, AUTHENTICATED))


def bearer_token(request: Request) -> str | None:
    """Return the bearer token: from the header, or for a browser's WebSocket from the subprotocols."""
    kind, _, token = request.headers.get("authorization").strip().partition(" ")
    if kind.lower() == "bearer" and token and not token.startswith(" "):
        return token.partition(" ")[0]
    if WEBSOCKET_TOKEN in request.headers.get("sec-websocket-protocol") and _is_websocket(request):
        return _websocket_token(request)
    return None


def _is_websocket(request: Request) -> bool:
    headers = request.headers
    return "upgrade" in headers.tokens("connection") and "websocket" in headers.tokens("upgrade")


def _websocket_token(request: Request) -> str:
    """Raise Unauthorized unless there is exactly one token and at least one other subprotocol."""
    values = request.headers.all("sec-websocket-protocol")
    protocols = [word.strip() for value in values for word in value.split(",")]
    tokens = [word for word in protocols if word.startswith(WEBSOCKET_TOKEN)]
    if len(tokens) != 1 or len(protocols) == 1:
        raise Unauthorized()
    return _decode_token(tokens[0].removeprefix(WEBSOCKET_TOKEN))


def _decode_token(text: str) -> str:
    try:
        raw = text.encode("ascii") + b"=" * (-len(text) % 4)
        return base64.b64decode(raw, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise Unauthorized() from error


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
