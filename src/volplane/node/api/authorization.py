"""Who may use which part of the kubelet's API.

A request counts as access to the Node of this kubelet: `/metrics` is `get nodes/metrics`, and all that has no
subresource of its own is `nodes/proxy`. The API server decides (SubjectAccessReview).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from volplane.api.authentication import UserInfo
from volplane.api.authorization import ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec
from volplane.api.errors import APIError
from volplane.client.client import Client
from volplane.node.api.errors import KubeletApiError
from volplane.node.api.expiring_cache import ExpiringCache
from volplane.node.options import ALWAYS_ALLOW, WEBHOOK

PROXY = "proxy"
VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# By the first part of the path. Those of the second table were served as `proxy` by older kubelets, so
# who may use that may use them, too.
SUBRESOURCES = {"stats": "stats", "metrics": "metrics", "logs": "log", "checkpoint": "checkpoint"}
FINE_SUBRESOURCES = {"healthz": "healthz", "configz": "configz", "pods": "pods", "runningpods": "pods"}


class AuthorizationOptions(Struct, frozen=True):
    mode: str = WEBHOOK
    trusted: frozenset[str] = frozenset()  # users that may do everything: the API server
    allowed_ttl: float = 300.0  # seconds for which a decision is not asked for again
    denied_ttl: float = 30.0


def list_attributes(method: str, first: str, node: str) -> list[ResourceAttributes]:
    """What a request accesses whose path has this first part; being allowed one of these is enough."""
    if first in SUBRESOURCES:
        names = [SUBRESOURCES[first]]
    elif first in FINE_SUBRESOURCES:
        names = [FINE_SUBRESOURCES[first], PROXY]
    else:
        names = [PROXY]
    verb = VERBS.get(method, method.lower())
    return [
        ResourceAttributes(verb=verb, version="v1", resource="nodes", subresource=name, name=node)
        for name in names
    ]


class KubeletAuthorizer:
    def __init__(self, client: Client, node: str, options: AuthorizationOptions) -> None:
        self._client, self._node, self._options = client, node, options
        self._decisions: ExpiringCache[tuple[bytes, str, str], bool] = ExpiringCache()

    async def authorize(self, user: UserInfo, method: str, first: str) -> None:
        """`first`: the first part of the path. Raises KubeletApiError."""
        if self._options.mode == ALWAYS_ALLOW or user.username in self._options.trusted:
            return
        attributes = list_attributes(method, first, self._node)
        for each in attributes:
            try:
                if await self._is_allowed(user, each):
                    return
            except (APIError, TimeoutError) as error:
                raise KubeletApiError(
                    500, f"Authorization error ({_describe(user, attributes)}): {error}"
                ) from error
        raise KubeletApiError(403, f"Forbidden ({_describe(user, attributes)})")

    async def _is_allowed(self, user: UserInfo, attributes: ResourceAttributes) -> bool:
        key = msgspec.json.encode(user), attributes.verb, attributes.subresource
        known = self._decisions.get(key)
        if known is None:
            spec = SubjectAccessReviewSpec(
                resource_attributes=attributes,
                user=user.username,
                groups=user.groups,
                extra=user.extra,
                uid=user.uid,
            )
            known = (await self._client.create(SubjectAccessReview(spec=spec))).status.allowed
            ttl = self._options.allowed_ttl if known else self._options.denied_ttl
            self._decisions.put(key, known, ttl)
        return known


def _describe(user: UserInfo, attributes: Sequence[ResourceAttributes]) -> str:
    names = " ".join(each.subresource for each in attributes)
    verb = attributes[0].verb
    return f"user={user.username}, verb={verb}, resource=nodes, subresource(s)=[{names}]"
