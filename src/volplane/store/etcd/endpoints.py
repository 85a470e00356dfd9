"""Addresses of the members of an etcd cluster, and TLS credentials for them."""

from __future__ import annotations

from urllib.parse import urlsplit

import grpc
from msgspec import Struct

from volplane.store.contract import StoreFailed

DEFAULT_PORT = 2379


class EtcdTls(Struct, frozen=True):
    """Paths of PEM files. Without a CA, the machine's CAs are trusted."""

    ca: str = ""
    cert: str = ""
    key: str = ""


class EtcdEndpoint(Struct, frozen=True):
    url: str
    target: str  # as gRPC expects it
    secure: bool


def parse_endpoint(url: str) -> EtcdEndpoint:
    """Parse `http://host:port` or `https://host:port`; the default scheme is http. Raises StoreFailed."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError as error:
        raise StoreFailed(f"{url!r} is not an address of an etcd server: {error}") from error
    if parts.scheme not in ("http", "https") or not host or parts.path not in ("", "/"):
        raise StoreFailed(
            f"{url!r} is not an address of an etcd server; expected https://host:{DEFAULT_PORT}"
        )
    shown = f"[{host}]" if ":" in host else host
    return EtcdEndpoint(f"{parts.scheme}://{shown}:{port}", f"{shown}:{port}", parts.scheme == "https")


def credentials(tls: EtcdTls) -> grpc.ChannelCredentials:
    """Read the files. Raises StoreFailed."""
    if bool(tls.cert) != bool(tls.key):
        raise StoreFailed("a client certificate for etcd needs a key, and a key a certificate")
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca), private_key=_read(tls.key), certificate_chain=_read(tls.cert)
    )


def _read(path: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise StoreFailed(f"cannot read {path}: {error.strerror}") from error
