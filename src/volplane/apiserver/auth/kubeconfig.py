"""Write kubeconfig files for kubectl and for the roles of this project."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec

from volplane.apiserver.auth.certificates import CertificateFiles, write_private


def write(
    path: Path, *, server: str, ca: bytes, user: str, pair: CertificateFiles | None = None, token: str = ""
) -> None:
    """Write a kubeconfig with one cluster, user and context, as JSON (which is also YAML)."""
    login: dict[str, str] = {}
    if pair is not None:
        login = {"client-certificate-data": _text(pair.cert), "client-key-data": _text(pair.key)}
    if token:
        login["token"] = token
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "volplane", "cluster": {"server": server, "certificate-authority-data": _text(ca)}}
        ],
        "users": [{"name": user, "user": login}],
        "contexts": [{"name": "volplane", "context": {"cluster": "volplane", "user": user}}],
        "current-context": "volplane",
    }
    write_private(path, msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
