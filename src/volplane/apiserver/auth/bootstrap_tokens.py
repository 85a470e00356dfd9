"""Bootstrap tokens: the credentials with which a new machine requests a node certificate.

Each is a Secret `bootstrap-token-<id>` in kube-system. It authenticates the user `system:bootstrap:<id>` in
the group `system:bootstrappers` until it expires. Nothing is cached: deleting the Secret revokes the token at
once.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping

from volplane.api.core import Secret
from volplane.apiserver.auth.authenticate import AUDIENCES, TokenResult
from volplane.apiserver.backend import Backend
from volplane.apiserver.strategy import RequestUser
from volplane.base import clock

NAMESPACE = "kube-system"
TYPE = "bootstrap.kubernetes.io/token"
GROUP = "system:bootstrappers"
_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_MORE = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")


class BootstrapTokens:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __call__(self, token: str, audiences: tuple[str, ...] = AUDIENCES) -> TokenResult | None:
        found = _TOKEN.fullmatch(token)
        ours = tuple(audience for audience in AUDIENCES if audience in audiences)
        if found is None or not ours:
            return None
        identity, secret = found.groups()
        data = self._data(identity)
        if data is None or not hmac.compare_digest(data.get("token-secret", ""), secret):
            return None
        if data.get("token-id") != identity or data.get("usage-bootstrap-authentication") != "true":
            return None
        if _is_expired(data):
            return None
        more = data.get("auth-extra-groups", "").split(",")
        groups = (GROUP, *(g.strip() for g in more if _MORE.fullmatch(g.strip())))
        return TokenResult(RequestUser(f"system:bootstrap:{identity}", groups), ours)

    def _data(self, identity: str) -> Mapping[str, str] | None:
        entry = self._backend.registry.of(Secret)
        record = self._backend.store.peek(entry.key(NAMESPACE, f"bootstrap-token-{identity}"))
        if record is None:
            return None
        secret: Secret = entry.watch_cache.object(record)
        if secret.type != TYPE or secret.is_deleting:
            return None
        return {key: value.decode(errors="replace") for key, value in secret.data.items()}


def _is_expired(data: Mapping[str, str]) -> bool:
    text = data.get("expiration", "")
    try:
        return bool(text) and clock.parse(text) <= clock.wall()
    except ValueError:
        return True
