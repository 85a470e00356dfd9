"""Who may look: one-time tokens, the sessions they are exchanged for, and what every request must show.

Every user of this machine can connect to a port on loopback, and a web site can make its visitors' browsers
send requests to it. So a request needs a session; the Host header must be that of loopback, or a foreign name
that resolves to 127.0.0.1 could read the page; and only GET and HEAD are answered.

Cookies do not tell ports apart: a browser would send them to any server on 127.0.0.1. So the cookie is bound
to a path that begins with a secret, which other servers do not know.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections import OrderedDict
from enum import StrEnum

from msgspec import Struct

from volplane.web import Request, Response

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
TOKEN = "token"  # the parameter of the printed address
MAX_TOKENS, MAX_SESSIONS = 8, 64  # the oldest is forgotten
SECRET_BYTES = 24

SECURITY_HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)


class Refusal(StrEnum):
    """Why a request is not answered."""

    METHOD = "this page only reads: use GET"
    HOST = "the Host header must name this machine: 127.0.0.1 or localhost"
    CROSS_SITE = "another site has made this request"
    SESSION = "no session: open the address that `volplane up` has printed, or get a new one with volplane ui"
    TOKEN = "this address is not valid, or was used before: get a new one with volplane ui"


STATUS = {
    Refusal.METHOD: 405,
    Refusal.HOST: 421,
    Refusal.CROSS_SITE: 403,
    Refusal.SESSION: 403,
    Refusal.TOKEN: 403,
}


class Admitted(Struct, frozen=True):
    """A request with a session. `path`: without the secret prefix."""

    path: str


class Gate:
    """Admits requests to one page. Tokens and sessions are in memory only, and end with it."""

    def __init__(self) -> None:
        self.port = 0  # set when the server listens
        self.prefix = f"/{secrets.token_hex(8)}"
        self._tokens: OrderedDict[str, None] = OrderedDict()
        self._sessions: OrderedDict[str, None] = OrderedDict()

    @property
    def cookie(self) -> str:
        return f"volplane-{self.port}"

    def issue_link(self) -> str:
        """An address that opens the page once."""
        token = secrets.token_urlsafe(SECRET_BYTES)
        self._tokens[token] = None
        _limit(self._tokens, MAX_TOKENS)
        return f"http://127.0.0.1:{self.port}/?{TOKEN}={token}"

    def check(self, request: Request) -> Refusal | None:
        """What every request must fulfil, also those without a session."""
        if request.method not in ("GET", "HEAD"):
            return Refusal.METHOD
        hosts = [re.sub(r":\d*$", "", host) for host in request.headers.all("Host")]
        if len(hosts) != 1 or hosts[0] not in LOOPBACK_NAMES:  # any port: it may be forwarded
            return Refusal.HOST
        is_navigation = request.headers.get("Sec-Fetch-Mode") == "navigate"
        if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and not is_navigation:
            return Refusal.CROSS_SITE
        return None

    def admit(self, request: Request) -> Admitted | Refusal:
        """Admit a request with the cookie of a session, below the prefix."""
        path = request.path
        has_prefix = hmac.compare_digest(path[: len(self.prefix)].encode(), self.prefix.encode())
        session = _read_cookie(request, self.cookie)
        known = _find(self._sessions, session)
        if not has_prefix or not known:
            return Refusal.SESSION
        return Admitted(path[len(self.prefix) :] or "/")

    def exchange(self, token: str) -> Response | Refusal:
        """A session for a one-time token, which is not valid any more after that."""
        known = _find(self._tokens, token)
        if known is None:
            return Refusal.TOKEN
        del self._tokens[known]
        session = secrets.token_urlsafe(SECRET_BYTES)
        self._sessions[session] = None
        _limit(self._sessions, MAX_SESSIONS)
        cookie = f"{self.cookie}={session}; Path={self.prefix}/; HttpOnly; SameSite=Strict"
        headers = [("Location", f"{self.prefix}/cluster"), ("Set-Cookie", cookie), *SECURITY_HEADERS]
        return Response(303, [*headers, ("Cache-Control", "no-store")])


def _find(known: OrderedDict[str, None], given: str) -> str | None:
    """The secret that equals the given text. Takes as long for a wrong one as for a right one."""
    found = None
    for secret in known:
        if hmac.compare_digest(secret.encode(), given.encode()):
            found = secret
    return found


def _limit(secrets: OrderedDict[str, None], most: int) -> None:
    while len(secrets) > most:
        secrets.popitem(last=False)


def _read_cookie(request: Request, name: str) -> str:
    for header in request.headers.all("Cookie"):
        for pair in header.split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                return value
    return ""
