"""Server address and credentials from a kubeconfig, or from a pod's service account.

Supported: contexts, CA and client certificates (inline or as file), tokens (inline or as file). Credential
plugins (`exec`) are rejected. File names are relative to the kubeconfig.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from volplane.client.https import HttpsTransport
from volplane.web import tls
from volplane.web.client import HttpClient

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BadKubeconfig(ValueError):
    """The file does not say how to reach a server."""


def load(path: str | Path, *, context: str = "", agent: str = "volplane", server: str = "") -> HttpsTransport:
    """The transport for a context, by default the current one. `server` overrides the address."""
    path = Path(path)
    return _File(path, _read(path)).transport(context, agent, server)


def in_cluster(
    directory: Path = SERVICE_ACCOUNT,
    *,
    agent: str = "volplane",
    env: Mapping[str, str] = os.environ,
    server: str = "",
) -> HttpsTransport:
    """The transport of a pod, from its service account and environment."""
    token, authority = (directory / "token").read_bytes(), (directory / "ca.crt").read_bytes()
    return from_service_account(token, authority, agent=agent, env=env, server=server)


def from_service_account(
    token: bytes, authority: bytes, *, agent: str, env: Mapping[str, str], server: str = ""
) -> HttpsTransport:
    """The transport of a service account, from the contents of its token volume."""
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host and not server:
        raise BadKubeconfig("not in a cluster: KUBERNETES_SERVICE_HOST is not set")
    if b"-----BEGIN" not in authority:
        raise BadKubeconfig("ca.crt of the service account has no certificate")
    if not (word := token.strip()).isascii() or not word.decode().isprintable():
        raise BadKubeconfig("token of the service account is not a token")
    shown = f"[{host}]" if host and ":" in host else host
    headers = {"User-Agent": agent, "Authorization": f"Bearer {word.decode()}"}
    context = tls.client_context(authority)
    return HttpsTransport(HttpClient(server or f"https://{shown}:{port}", ssl=context, headers=headers))


def namespace(path: str | Path, *, context: str = "") -> str:
    """The namespace of a context, by default the current one; "" if it names none."""
    path = Path(path)
    return _File(path, _read(path)).namespace(context)


def for_user(path: str | Path, name: str, user: Mapping[str, str]) -> dict[str, Any]:
    """A kubeconfig for the same server with another user."""
    path = Path(path)
    return _File(path, _read(path)).for_user(name, user)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = yaml.load(path.read_text(), Loader=_Loader)
    except OSError as error:
        raise BadKubeconfig(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadKubeconfig(f"{path}: not YAML: {error}") from error
    if not isinstance(config, dict):
        raise BadKubeconfig(f"{path}: not a kubeconfig")
    return config


class _File:
    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self._path, self._config = path, config

    def for_user(self, name: str, user: Mapping[str, str]) -> dict[str, Any]:
        chosen = self._find("contexts", "context", str(self._config.get("current-context") or ""))
        cluster = dict(self._find("clusters", "cluster", str(chosen.get("cluster", ""))))
        authority = self._pem(cluster, "certificate-authority")
        if authority is not None:  # inline, since the file may be moved
            text = authority if isinstance(authority, bytes) else authority.read_bytes()
            cluster.pop("certificate-authority", None)
            cluster["certificate-authority-data"] = base64.b64encode(text).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "default", "cluster": cluster}],
            "users": [{"name": name, "user": dict(user)}],
            "contexts": [{"name": "default", "context": {"cluster": "default", "user": name}}],
            "current-context": "default",
        }

    def namespace(self, context: str) -> str:
        name = context or str(self._config.get("current-context") or "")
        return str(self._find("contexts", "context", name).get("namespace") or "")

    def transport(self, context: str, agent: str, elsewhere: str = "") -> HttpsTransport:
        name = context or str(self._config.get("current-context") or "")
        if not name:
            raise BadKubeconfig(f"{self._path}: no current-context")
        chosen = self._find("contexts", "context", name)
        cluster = self._find("clusters", "cluster", str(chosen.get("cluster", "")))
        user = self._find("users", "user", str(chosen.get("user", ""))) if chosen.get("user") else {}
        server = elsewhere or str(cluster.get("server", ""))
        if not server:
            raise BadKubeconfig(f"{self._path}: cluster of context {name!r} has no server")
        ssl = None
        if server.startswith("https:"):
            ssl = tls.client_context(
                self._pem(cluster, "certificate-authority"),
                self._pem(user, "client-certificate"),
                self._pem(user, "client-key"),
                verify=not cluster.get("insecure-skip-tls-verify", False),
            )
        headers = {"User-Agent": agent, **self._login(user)}
        return HttpsTransport(HttpClient(server, ssl=ssl, headers=headers))

    def _find(self, section: str, what: str, name: str) -> Mapping[str, Any]:
        entries: Sequence[Any] = self._config.get(section) or ()
        for entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name:
                found = entry.get(what)
                return found if isinstance(found, dict) else {}
        raise BadKubeconfig(f"{self._path}: no {what} {name!r}")

    def _pem(self, section: Mapping[str, Any], key: str) -> bytes | Path | None:
        if data := section.get(f"{key}-data"):
            try:
                return base64.b64decode(data, validate=True)
            except (binascii.Error, TypeError) as error:
                raise BadKubeconfig(f"{self._path}: {key}-data is not base64") from error
        return self._path.parent / str(section[key]) if section.get(key) else None

    def _login(self, user: Mapping[str, Any]) -> dict[str, str]:
        if "exec" in user or "auth-provider" in user:
            raise BadKubeconfig(f"{self._path}: users with exec or auth-provider are not supported")
        token = str(user.get("token") or "")
        if not token and user.get("tokenFile"):
            token = (self._path.parent / str(user["tokenFile"])).read_text().strip()
        if token:
            return {"Authorization": f"Bearer {token}"}
        if user.get("username"):
            pair = f"{user['username']}:{user.get('password', '')}".encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        return {}
