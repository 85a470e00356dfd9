"""How a user of a kubeconfig logs in: by certificate, token, password, plugin or provider."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from volplane.client.credentials import CredentialSource, TokenFile
from volplane.client.kubeconfig.files import KubeconfigEntry
from volplane.client.kubeconfig.plugin import ClusterInfo, CredentialPlugin, read_exec_config

REMOVED_PROVIDERS = {"gcp": "gke-gcloud-auth-plugin", "azure": "kubelogin"}  # and the plugins to use instead


class Login(Struct, frozen=True):
    headers: tuple[tuple[str, str], ...] = ()
    source: CredentialSource | None = None
    certificate: bytes | Path | None = None
    key: bytes | Path | None = None


def read_login(user: KubeconfigEntry, describe_cluster: Callable[[], ClusterInfo]) -> Login:
    """How to log in as this user. Raises BadKubeconfig.

    As in kubectl, a plugin is not asked if the user also has a token, a password or a certificate.
    """
    certificate, key = read_pem(user, "client-certificate"), read_pem(user, "client-key")
    if certificate is not None and key is None:
        raise user.error(f"user {user.name!r} has a client-certificate but no client-key")
    token, name, password = user.text("token"), user.text("username"), user.text("password")
    if token and (name or password):
        raise user.error(f"user {user.name!r} has a token and a password; only one is allowed")
    headers = list(_impersonation(user))
    source: CredentialSource | None = None
    if user.text("tokenFile"):
        source = TokenFile(user.path(user.text("tokenFile")))
    elif token:
        headers.append(("Authorization", f"Bearer {token}"))
    elif name or password:
        pair = base64.b64encode(f"{name}:{password}".encode()).decode()
        headers.append(("Authorization", f"Basic {pair}"))
    elif user.fields.get("exec") is not None and certificate is None:
        if user.fields.get("auth-provider") is not None:
            raise user.error(f"user {user.name!r} has both exec and auth-provider")
        source = CredentialPlugin(user, read_exec_config(user), describe_cluster())
    elif user.fields.get("auth-provider") is not None:
        headers.append(("Authorization", f"Bearer {_provider_token(user)}"))
    if wrong := next((header for header, value in headers if not value.isprintable()), ""):
        raise user.error(f"user {user.name!r} has a line break or such in what is sent as {wrong}")
    return Login(tuple(headers), source, certificate, key)


def read_pem(entry: KubeconfigEntry, key: str) -> bytes | Path | None:
    """A certificate or key: its text, or its file. Raises BadKubeconfig."""
    if data := entry.text(f"{key}-data"):
        if entry.text(key):
            raise entry.error(f"{entry.name!r} has both {key} and {key}-data")
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise entry.error(f"{key}-data is not base64") from error
    if not entry.text(key):
        return None
    path = entry.path(entry.text(key))
    if not path.is_file():
        raise entry.error(f"{key} {path} does not exist")
    return path


def _impersonation(user: KubeconfigEntry) -> list[tuple[str, str]]:
    name = user.text("as")
    groups: list[Any] = user.fields.get("as-groups") or []
    extra: dict[str, Any] = user.fields.get("as-user-extra") or {}
    if not name:
        if groups or extra:
            raise user.error(f"user {user.name!r} has as-groups or as-user-extra, but not as")
        return []
    headers = [("Impersonate-User", name)]
    if uid := user.text("as-uid"):
        headers.append(("Impersonate-Uid", uid))
    headers += [("Impersonate-Group", str(group)) for group in groups]
    headers += [
        (f"Impersonate-Extra-{quote(key)}", str(value)) for key, values in extra.items() for value in values
    ]
    return headers


def _provider_token(user: KubeconfigEntry) -> str:
    """The token of an `auth-provider`: only OIDC's, and only while it is valid. Raises BadKubeconfig."""
    provider = user.fields["auth-provider"]
    provider = provider if isinstance(provider, dict) else {}
    kind, config = str(provider.get("name") or ""), provider.get("config") or {}
    about = f"user {user.name!r} logs in with the auth-provider {kind or '(without a name)'!r}"
    if plugin := REMOVED_PROVIDERS.get(kind):
        raise user.error(
            f"{about}, which Kubernetes 1.26 has removed; use the credential plugin {plugin} (exec) instead"
        )
    if kind != "oidc":
        raise user.error(f"{about}, which is not known; use a credential plugin (exec)")
    token = str(config.get("id-token") or "")
    renew = "run a kubectl command, which renews it, or use a credential plugin such as kubelogin (exec)"
    if not token:
        raise user.error(f"{about}, but has no id-token: {renew}")
    if (expires := _expiry(token)) is not None and expires <= datetime.now(UTC):
        raise user.error(f"{about}; its id-token has expired on {expires:%Y-%m-%d %H:%M} UTC: {renew}")
    return token


def _expiry(token: str) -> datetime | None:
    """The end of a JSON Web Token; None if it does not say."""
    try:
        payload = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return datetime.fromtimestamp(claims["exp"], UTC)
    except (IndexError, KeyError, TypeError, ValueError):
        return None
