"""Service account tokens: valid while the service account and the bound object exist.

The signature is verified once and cached. Expiry and the bound objects are checked on every request. A pod's
token also names the pod's node, but its validity depends on the pod only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from volplane.api.core import Node, Pod, Secret, ServiceAccount
from volplane.api.meta import Resource
from volplane.apiserver.auth.authenticate import AUDIENCES, EXTRA, TokenResult
from volplane.apiserver.auth.go_format import go_list
from volplane.apiserver.auth.issuer import ISSUER
from volplane.apiserver.auth.well_known_users import ACCOUNT_PREFIX, account_groups
from volplane.apiserver.backend import Backend
from volplane.apiserver.strategy import RequestUser
from volplane.base import clock

LEEWAY = timedelta(seconds=60)  # allowed clock difference
REMEMBERED = 1024
INVALIDATED = "service account token has been invalidated"


class _VerifiedToken(NamedTuple):
    claims: Mapping[str, Any]
    user: RequestUser


class ServiceAccountTokenCheck:
    """Authenticates service account tokens."""

    def __init__(self, backend: Backend) -> None:
        self._issuer = backend.issuer
        self._backend = backend
        self._verified: dict[bytes, _VerifiedToken] = {}

    def __call__(self, token: str, audiences: tuple[str, ...] = AUDIENCES) -> TokenResult | None:
        """Return None if the token is not one of this issuer."""
        digest = hashlib.sha256(token.encode()).digest()
        verified = self._verified.get(digest)
        if verified is None:
            read = self._issuer.parse(token)
            if read is None or read.claims.get("iss") != ISSUER:
                return None
            if read.error:
                return TokenResult(error=read.error)
            verified = self._remember(digest, read.claims)
        meant = verified.claims.get("aud") or AUDIENCES
        ours = tuple(audience for audience in meant if audience in audiences)
        if not ours:
            message = (
                f"token audiences {go_list(meant)} is invalid for the target audiences {go_list(audiences)}"
            )
            return TokenResult(error=message)
        error = self._validity_error(verified.claims)
        return TokenResult(error=error) if error else TokenResult(verified.user, ours)

    def _remember(self, digest: bytes, claims: Mapping[str, Any]) -> _VerifiedToken:
        if len(self._verified) >= REMEMBERED:
            del self._verified[next(iter(self._verified))]
        verified = self._verified[digest] = _VerifiedToken(claims, _user(claims))
        return verified

    def _validity_error(self, claims: Mapping[str, Any]) -> str:
        """Return why a correctly signed token is not valid now, or ""."""
        now = clock.wall()
        leeway, moment = LEEWAY.total_seconds(), now.timestamp()
        if moment > claims.get("exp", 0) + leeway:
            return "service account token has expired"
        if moment < claims.get("nbf", 0) - leeway:
            return "service account token is not valid yet"
        bound = claims.get("kubernetes.io", {})
        return self._account_error(bound, now) or self._bound_object_error(bound, now)

    def _account_error(self, bound: Mapping[str, Any], now: datetime) -> str:
        namespace, reference = bound.get("namespace", ""), bound.get("serviceaccount", {})
        name, uid = reference.get("name", ""), reference.get("uid", "")
        account = self._find(ServiceAccount, namespace, name)
        if account is None:
            return f'serviceaccounts "{name}" not found'
        if account.uid != uid:
            return f"service account UID ({account.uid}) does not match claim ({uid})"
        if _long_deleted(account, now):
            return f"service account {namespace}/{name} has been deleted"
        return ""

    def _bound_object_error(self, bound: Mapping[str, Any], now: datetime) -> str:
        namespace = bound.get("namespace", "")
        if "secret" in bound:
            return self._reference_error(Secret, namespace, bound["secret"], now)
        if "pod" in bound:
            return self._reference_error(Pod, namespace, bound["pod"], now)
        if "node" in bound:
            return self._reference_error(Node, "", bound["node"], now)
        return ""

    def _reference_error(
        self, type: type[Resource], namespace: str, reference: Mapping[str, str], now: datetime
    ) -> str:
        found, uid = self._find(type, namespace, reference.get("name", "")), reference.get("uid", "")
        if found is None or _long_deleted(found, now):
            return INVALIDATED
        if found.uid != uid:
            word = type.__name__.lower()
            return f"{word} UID ({found.uid}) does not match service account {word} ref claim ({uid})"
        return ""

    def _find(self, type: type[Resource], namespace: str, name: str) -> Resource | None:
        entry = self._backend.registry.of(type)
        record = self._backend.store.peek(entry.key(namespace, name))
        found: Resource | None = None if record is None else entry.watch_cache.object(record)
        return found


def _long_deleted(obj: Resource, now: datetime) -> bool:
    at = obj.metadata.deletion_timestamp
    return at is not None and clock.parse(at) < now - LEEWAY


def _user(claims: Mapping[str, Any]) -> RequestUser:
    bound = claims.get("kubernetes.io", {})
    namespace, account = bound.get("namespace", ""), bound.get("serviceaccount", {})
    extra = {f"{EXTRA}credential-id": (f"JTI={claims['jti']}",)} if claims.get("jti") else {}
    for word in ("pod", "node"):
        reference = bound.get(word, {})
        for part in ("name", "uid"):
            if reference.get(part):
                extra[f"{EXTRA}{word}-{part}"] = (reference[part],)
    name = f"{ACCOUNT_PREFIX}{namespace}:{account.get('name', '')}"
    return RequestUser(name, account_groups(namespace), account.get("uid", ""), extra)
