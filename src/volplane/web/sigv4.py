"""AWS Signature Version 4, for the client and the server.

Only signatures in headers are supported; EC2 calls are never presigned.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from urllib.parse import parse_qsl, quote

from msgspec import Struct

ALGORITHM = "AWS4-HMAC-SHA256"
END = "aws4_request"
_PLAIN = "-_.~"


class NoAwsKeys(Exception):
    """There are no keys to sign with; the message says what to do."""


class AwsKeys(Struct, frozen=True):
    access: str
    secret: str
    token: str = ""  # of temporary credentials


class SignedRequest(Struct, frozen=True):
    """The parts of a request that are signed."""

    method: str
    path: str  # as sent, still percent-encoded
    query: str
    header: Callable[[str], str]
    body: bytes


class Signer:
    """Signs POST requests to one address."""

    def __init__(self, host: str, path: str, *, region: str, service: str) -> None:
        """`host`: as in the Host header."""
        self._host, self._path = host, path
        self._place = (region, service, END)

    def headers(self, body: bytes, type: str, keys: AwsKeys, now: datetime) -> list[tuple[str, str]]:
        """The headers of a signed request, except Host."""
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        shown = {"content-type": type, "host": self._host, "x-amz-date": stamp}
        if keys.token:
            shown["x-amz-security-token"] = keys.token
        scope, names = (stamp[:8], *self._place), tuple(shown)  # in alphabetical order, as they are signed
        request = SignedRequest("POST", self._path, "", shown.__getitem__, body)
        signed = signature(request, names, stamp, scope, keys.secret)
        del shown["host"]
        credential = f"Credential={keys.access}/{'/'.join(scope)}"
        text = f"{ALGORITHM} {credential}, SignedHeaders={';'.join(names)}, Signature={signed}"
        return [*shown.items(), ("authorization", text)]


def signature(
    request: SignedRequest, names: Sequence[str], stamp: str, scope: Sequence[str], secret: str
) -> str:
    """The signature of method, path, query, named headers and body; `scope`: day, region, service."""
    text = "\n".join([ALGORITHM, stamp, "/".join(scope), _digest(_canonical(request, names).encode())])
    return hmac.new(_key(secret, tuple(scope)), text.encode(), hashlib.sha256).hexdigest()


def _canonical(request: SignedRequest, names: Sequence[str]) -> str:
    headers = "".join([f"{name}:{' '.join(request.header(name).split())}\n" for name in names])
    path = _canonical_path(request.path)
    query = _canonical_query(request.query) if request.query else ""
    return "\n".join([request.method, path, query, headers, ";".join(names), _digest(request.body)])


@lru_cache(maxsize=16)  # requests go to one path
def _canonical_path(path: str) -> str:
    return quote(path or "/", safe=f"/{_PLAIN}%")


def _canonical_query(query: str) -> str:
    pairs = sorted(
        (quote(name, safe=_PLAIN), quote(value, safe=_PLAIN))
        for name, value in parse_qsl(query, keep_blank_values=True)
    )
    return "&".join(f"{name}={value}" for name, value in pairs)


@lru_cache(maxsize=16)  # the key is the same all day
def _key(secret: str, scope: tuple[str, ...]) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
