"""Who sends a request to the kubelet's API: by client certificate, or by a token under review."""

from __future__ import annotations

import hashlib
import logging

from msgspec import Struct

from volplane.api.authentication import TokenReview, TokenReviewSpec, UserInfo
from volplane.api.errors import APIError
from volplane.client.client import Client
from volplane.node.api.errors import KubeletApiError
from volplane.node.api.expiring_cache import ExpiringCache
from volplane.web import Request

log = logging.getLogger(__name__)

ANONYMOUS = UserInfo(username="system:anonymous", groups=("system:unauthenticated",))
AUTHENTICATED = "system:authenticated"
BEARER = "bearer "


class AuthenticationOptions(Struct, frozen=True):
    anonymous: bool = False  # requests without credentials are those of system:anonymous
    webhook: bool = True  # the API server reviews tokens
    cache_ttl: float = 120.0  # seconds for which a valid token is not reviewed again


class KubeletAuthenticator:
    def __init__(self, client: Client, options: AuthenticationOptions) -> None:
        self._client, self._options = client, options
        self._tokens: ExpiringCache[bytes, UserInfo] = ExpiringCache()

    async def authenticate(self, request: Request) -> UserInfo:
        """Raises KubeletApiError."""
        if request.peer is not None:
            if not request.peer.is_valid:
                raise KubeletApiError(401, "Unauthorized")
            groups = (*request.peer.organizations, AUTHENTICATED)
            return UserInfo(username=request.peer.common_name, groups=groups)
        if token := _bearer_token(request):
            return await self._review(token)
        if self._options.anonymous:
            return ANONYMOUS
        raise KubeletApiError(401, "Unauthorized")

    async def _review(self, token: str) -> UserInfo:
        if not self._options.webhook:
            raise KubeletApiError(401, "Unauthorized")
        key = hashlib.sha256(token.encode()).digest()
        if (known := self._tokens.get(key)) is not None:
            return known
        try:
            review = await self._client.create(TokenReview(spec=TokenReviewSpec(token=token)))
        except (APIError, TimeoutError) as error:
            log.warning("kubelet API: the token of a request cannot be reviewed: %s", error)
            raise KubeletApiError(401, "Unauthorized") from error
        if not review.status.authenticated:
            raise KubeletApiError(401, "Unauthorized")
        self._tokens.put(key, review.status.user, self._options.cache_ttl)
        return review.status.user


def _bearer_token(request: Request) -> str:
    given = request.headers.get("authorization", "")
    return given[len(BEARER) :].strip() if given.lower().startswith(BEARER) else ""
