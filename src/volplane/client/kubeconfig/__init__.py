"""Server address and credentials from kubeconfig files, or from a pod's service account.

Files are read as kubectl reads them: several are merged; a context, or parts of one, can be chosen; servers
are reached through `proxy-url` or the environment's proxy; users log in with certificates, tokens, passwords
and credential plugins.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from volplane.client.credentials import CredentialSource, TokenFile
from volplane.client.https import HttpsTransport
from volplane.client.kubeconfig.errors import BadKubeconfig
from volplane.client.kubeconfig.files import KubeconfigEntry, MergedKubeconfig, merge_files
from volplane.client.kubeconfig.files import list_files as list_files
from volplane.client.kubeconfig.login import Login, read_login, read_pem
from volplane.client.kubeconfig.plugin import EXTENSION, ClusterInfo
from volplane.web import tls
from volplane.web.client import HttpClient
from volplane.web.client.proxy import Proxy, find_proxy

__all__ = ["BadKubeconfig", "ContextChoice", "in_cluster", "is_in_cluster", "list_files", "load", "namespace"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
Files = str | Path | Sequence[str | Path]


class ContextChoice(Struct, frozen=True):
    """What to use instead of the current context and its parts, as with kubectl's flags."""

    context: str = ""
    cluster: str = ""
    user: str = ""


CURRENT = ContextChoice()


def load(
    files: Files,
    choice: ContextChoice = CURRENT,
    *,
    agent: str = "volplane",
    server: str = "",
    source: CredentialSource | None = None,
) -> HttpsTransport:
    """The transport for a context, by default the current one. `server` overrides the address, `source` the
    user's credentials.

    Raises BadKubeconfig.
    """
    chosen = _choose(files, choice)
    url = server or chosen.server
    login = Login(source=source) if source is not None else chosen.read_login()
    context = chosen.tls_context(login) if url.startswith("https:") else None
    headers = [("User-Agent", agent), *login.headers]
    try:
        http = HttpClient(
            url,
            ssl=context,
            headers=headers,
            proxy=chosen.proxy_url or find_proxy(url, os.environ),
            server_name="" if server else chosen.cluster.text("tls-server-name"),
        )
    except ValueError as error:
        raise chosen.cluster.error(f"cluster {chosen.cluster.name!r}: {error}") from error
    return HttpsTransport(http, login.source)


def is_in_cluster(directory: Path = SERVICE_ACCOUNT, env: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a pod with a service account."""
    return bool(env.get("KUBERNETES_SERVICE_HOST")) and (directory / "token").exists()


def in_cluster(
    directory: Path = SERVICE_ACCOUNT,
    *,
    agent: str = "volplane",
    env: Mapping[str, str] = os.environ,
    server: str = "",
    source: CredentialSource | None = None,
) -> HttpsTransport:
    """The transport of a pod, from its service account and environment. A renewed token is used.

    `source`: credentials instead of the account's.
    """
    url = server or _find_server(env)
    authority = (directory / "ca.crt").read_bytes()
    http = _open_client(url, authority, {"User-Agent": agent}, find_proxy(url, env))
    return HttpsTransport(http, source or TokenFile(directory / "token"))


def from_service_account(
    token: bytes, authority: bytes, *, agent: str, env: Mapping[str, str], server: str = ""
) -> HttpsTransport:
    """The transport of a service account, from the contents of its token volume."""
    url = server or _find_server(env)
    if not (word := token.strip()).isascii() or not word.decode().isprintable():
        raise BadKubeconfig("token of the service account is not a token")
    headers = {"User-Agent": agent, "Authorization": f"Bearer {word.decode()}"}
    return HttpsTransport(_open_client(url, authority, headers))


def _find_server(env: Mapping[str, str]) -> str:
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise BadKubeconfig("not in a cluster: KUBERNETES_SERVICE_HOST is not set")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _open_client(url: str, authority: bytes, headers: Mapping[str, str], proxy: str = "") -> HttpClient:
    if b"-----BEGIN" not in authority:
        raise BadKubeconfig("ca.crt of the service account has no certificate")
    return HttpClient(url, ssl=tls.client_context(authority), headers=headers, proxy=proxy)


def namespace(files: Files, choice: ContextChoice = CURRENT) -> str:
    """The namespace of a context, by default the current one; "" if it names none."""
    merged = merge_files(_as_list(files))
    name = choice.context or merged.current_context
    return merged.find("contexts", name).text("namespace") if name else ""


def for_user(path: str | Path, name: str, user: Mapping[str, str]) -> dict[str, Any]:
    """A kubeconfig for the same server with another user."""
    found = _choose(path, CURRENT).cluster
    cluster = dict(found.fields)
    authority = read_pem(found, "certificate-authority")
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


def _as_list(files: Files) -> Sequence[str | Path]:
    return [files] if isinstance(files, str | Path) else files


def _choose(files: Files, choice: ContextChoice) -> _Chosen:
    merged = merge_files(_as_list(files))
    name = choice.context or merged.current_context
    if not name and not choice.cluster:
        raise merged.error("no current-context; choose one with --context")
    context = merged.find("contexts", name) if name else None
    cluster = choice.cluster or (context.text("cluster") if context else "")
    user = choice.user or (context.text("user") if context else "")
    return _Chosen(
        merged,
        merged.find("clusters", cluster),
        merged.find("users", user) if user else KubeconfigEntry("", merged.files[0], {}),
    )


class _Chosen(Struct, frozen=True):
    merged: MergedKubeconfig
    cluster: KubeconfigEntry
    user: KubeconfigEntry

    @property
    def server(self) -> str:
        found = self.cluster.text("server")
        if not found:
            raise self.cluster.error(f"cluster {self.cluster.name!r} has no server")
        if "://" in found:
            return found
        secure = self._skips_verification or read_pem(self.cluster, "certificate-authority") is not None
        return f"{'https' if secure else 'http'}://{found}"

    @property
    def proxy_url(self) -> str:
        url = self.cluster.text("proxy-url")
        try:
            if url:
                Proxy.parse(url)
        except ValueError as error:
            raise self.cluster.error(f"proxy-url of cluster {self.cluster.name!r}: {error}") from error
        return url

    @property
    def _skips_verification(self) -> bool:
        return bool(self.cluster.fields.get("insecure-skip-tls-verify"))

    def read_login(self) -> Login:
        return read_login(self.user, self._describe_cluster)

    def tls_context(self, login: Login) -> ssl.SSLContext:
        authority = read_pem(self.cluster, "certificate-authority")
        if authority is not None and self._skips_verification:
            raise self.cluster.error(
                f"cluster {self.cluster.name!r} has certificate-authority and insecure-skip-tls-verify:"
                " only one is allowed"
            )
        try:
            return tls.client_context(
                authority, login.certificate, login.key, verify=not self._skips_verification
            )
        except (ssl.SSLError, OSError, ValueError) as error:
            raise self.merged.error(
                f"a certificate or key of cluster {self.cluster.name!r} or user {self.user.name!r} cannot be"
                f" used: {error}"
            ) from error

    def _describe_cluster(self) -> ClusterInfo:
        """What a credential plugin learns about the cluster."""
        authority = read_pem(self.cluster, "certificate-authority")
        text = authority.read_bytes() if isinstance(authority, Path) else authority
        extensions = self.cluster.fields.get("extensions") or ()
        config = next((e.get("extension") for e in extensions if e.get("name") == EXTENSION), None)
        return ClusterInfo(
            server=self.server,
            tls_server_name=self.cluster.text("tls-server-name"),
            insecure_skip_tls_verify=self._skips_verification,
            certificate_authority_data=text or b"",
            proxy_url=self.proxy_url,
            config=config,
        )
