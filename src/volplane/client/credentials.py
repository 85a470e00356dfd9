"""Credentials that change while a client runs: a token in a file, or those of a plugin.

The transport asks for credentials before each request, and once more if the server rejects them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msgspec import Struct

from volplane.api.errors import Unauthorized
from volplane.base import clock

REREAD = 60.0  # seconds after which a token file is read again, as in client-go


class Credentials(Struct, frozen=True):
    token: str = ""
    pair: bytes = b""  # client certificate and key, as PEM


class CredentialSource(Protocol):
    async def get_credentials(self) -> Credentials:
        """The present credentials. Raises Unauthorized."""
        ...

    def reject(self, used: Credentials) -> None:
        """The server does not accept them: get others for the next request, if possible."""
        ...


class TokenFile:
    """A file whose token is renewed by others, such as the kubelet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token, self._read_at = "", float("-inf")

    async def get_credentials(self) -> Credentials:
        if clock.now() - self._read_at > REREAD:
            self._token, self._read_at = self._read(), clock.now()
        return Credentials(self._token)

    def reject(self, used: Credentials) -> None:
        self._read_at = float("-inf")

    def _read(self) -> str:
        try:
            token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            if self._token:
                return self._token  # it may be replaced at this moment
            raise Unauthorized(f"cannot read the token file {self._path}: {error}") from error
        if not token.isascii() or not token.isprintable() or not token:
            raise Unauthorized(f"{self._path} has no token")
        return token
