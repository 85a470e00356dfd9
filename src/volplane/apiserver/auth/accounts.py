"""Service-account tokens: believed only while their account, and the pod they are bound to, exist.

A token's signature is checked once and remembered; that it has not expired, and that the objects it is
bound to are still the same ones, is checked every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from volplane.api.core import Node, Pod, Secret, ServiceAccount
from volplane.api.meta import Resource
from volplane.apiserver.auth.issuer import ISSUER
from volplane.apiserver.backend import Backend
from volplane.apiserver.strategy import User
from volplane.base import clock

LEEWAY = 60.0  # seconds that clocks may differ
REMEMBERED = 1024
_BOUND: Mapping[str, type[Resource]] = {"pod": Pod, "node": Node, "secret": Secret}


class AccountTokens:
    """Tells the user of a service-account token."""

    def __init__(self, backend: Backend) -> None:
        self._issuer = backend.issuer
        self._backend = backend
        self._verified: dict[bytes, dict[str, Any]] = {}

    def __call__(self, token: str) -> User | None:
        return self.user(token, (ISSUER,))

    def user(self, token: str, audiences: tuple[str, ...]) -> User | None:
        claims = self._claims(token)
        if claims is None or claims.get("iss") != ISSUER or not set(audiences) & set(claims.get("aud", ())):
            return None
        now = clock.wall().timestamp()
        if not claims.get("nbf", 0) - LEEWAY <= now <= claims.get("exp", 0) + LEEWAY:
            return None
        bound = claims.get("kubernetes.io", {})
        return _user(claims, bound) if self._all_there(bound) else None

    def _claims(self, token: str) -> dict[str, Any] | None:
        digest = hashlib.sha256(token.encode()).digest()
        if digest in self._verified:
            return self._verified[digest]
        claims = self._issuer.claims(token)
        if claims is not None:
            self._verified[digest] = claims
            if len(self._verified) > REMEMBERED:
                del self._verified[next(iter(self._verified))]
        return claims

    def _all_there(self, bound: Mapping[str, Any]) -> bool:
        namespace = bound.get("namespace", "")
        account = bound.get("serviceaccount", {})
        return self._is_there(ServiceAccount, namespace, account) and all(
            self._is_there(type, namespace, bound[word]) for word, type in _BOUND.items() if word in bound
        )

    def _is_there(self, type: type[Resource], namespace: str, reference: Mapping[str, str]) -> bool:
        entry = self._backend.registry.of(type)
        record = self._backend.store.peek(entry.key(namespace, reference.get("name", "")))
        return record is not None and entry.feed.object(record).uid == reference.get("uid")


def _user(claims: Mapping[str, Any], bound: Mapping[str, Any]) -> User:
    namespace, account = bound["namespace"], bound["serviceaccount"]
    extra = {"authentication.kubernetes.io/credential-id": (f"JTI={claims.get('jti', '')}",)}
    for word in ("pod", "node"):
        if word in bound:
            extra[f"authentication.kubernetes.io/{word}-name"] = (bound[word]["name"],)
            extra[f"authentication.kubernetes.io/{word}-uid"] = (bound[word]["uid"],)
    return User(
        f"system:serviceaccount:{namespace}:{account['name']}",
        ("system:serviceaccounts", f"system:serviceaccounts:{namespace}"),
        account["uid"],
        extra,
    )
