"""Subresources: binding and evicting pods, service account tokens, /scale, streams to the node.

/status is not here: it is an update of the object (see `verbs.update.UpdatePart`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from volplane.api.authentication import TokenRequest
from volplane.api.core import Binding
from volplane.api.meta import Resource
from volplane.api.policy import Eviction
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.subresources.binding import bind, bind_named
from volplane.apiserver.subresources.eviction import evict
from volplane.apiserver.subresources.token import request_token


class PostSubresource(NamedTuple):
    """A subresource that takes an object of another kind and returns one, or None for a Success status."""

    type: type[Resource]
    act: Callable[[Backend, ServedResource, ApiCall, Any], Awaitable[Resource | None]]


POSTS: Mapping[tuple[str, str], PostSubresource] = {
    ("pods", "binding"): PostSubresource(Binding, bind),
    ("bindings", ""): PostSubresource(Binding, bind_named),
    ("pods", "eviction"): PostSubresource(Eviction, evict),
    ("serviceaccounts", "token"): PostSubresource(TokenRequest, request_token),
}
