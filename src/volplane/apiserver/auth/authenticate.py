"""Who asks: a verified client certificate, else a bearer token, else nobody in particular.

A token that is presented but not known is refused: it never makes its bearer anonymous. Further kinds of
tokens (service accounts') join as one more function in the list of the authenticator.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence

from msgspec import structs

from volplane.api.errors import Unauthorized
from volplane.apiserver.auth.users import ANONYMOUS, AUTHENTICATED
from volplane.apiserver.strategy import User
from volplane.web import Request

WEBSOCKET_TOKEN = "base64url.bearer.authorization.k8s.io."

TokenCheck = Callable[[str], User | None]


class Tokens:
    """Fixed tokens. They are kept hashed: looking one up tells nothing by its timing."""

    def __init__(self) -> None:
        self._users: dict[bytes, User] = {}

    def add(self, token: str, user: User) -> None:
        self._users[_digest(token)] = user

    def __call__(self, token: str) -> User | None:
        return self._users.get(_digest(token))


class Authenticator:
    def __init__(self, checks: Sequence[TokenCheck]) -> None:
        self.checks = list(checks)

    def __call__(self, request: Request) -> User:
        if request.peer is not None:
            return known(User(request.peer.common_name, tuple(request.peer.organizations)))
        token = bearer(request)
        if token is None:
            return ANONYMOUS
        user = self.by_token(token)
        if user is None:
            raise Unauthorized()
        return user

    def by_token(self, token: str) -> User | None:
        found = (check(token) for check in self.checks)
        return next((known(user) for user in found if user is not None), None)


def known(user: User) -> User:
    """Everybody who is somebody is in the group of the authenticated."""
    if AUTHENTICATED in user.groups:
        return user
    return structs.replace(user, groups=(*user.groups, AUTHENTICATED))


def bearer(request: Request) -> str | None:
    """The token of a request: in the header, or for browsers' WebSockets among the subprotocols."""
    kind, _, token = request.headers.get("authorization").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    for protocol in request.headers.get("sec-websocket-protocol").split(","):
        if protocol.strip().startswith(WEBSOCKET_TOKEN):
            return _decoded(protocol.strip().removeprefix(WEBSOCKET_TOKEN))
    return None


def _decoded(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
