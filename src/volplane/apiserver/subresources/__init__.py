"""What is done below an object: binding and evicting pods, finalizing namespaces, streams to the node.

/status is not here: it is an update of the object by another part (see `verbs.update.UpdatePart`).
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
    """A subresource that takes an object of another kind, and answers one or a bare Success."""

    type: type[Resource]
    act: Callable[[Backend, ServedResource, ApiCall, Any], Awaitable[Resource | None]]


POSTS: Mapping[tuple[str, str], PostSubresource] = {
    ("pods", "binding"): PostSubresource(Binding, bind),
    ("bindings", ""): PostSubresource(Binding, bind_named),
    ("pods", "eviction"): PostSubresource(Eviction, evict),
    ("serviceaccounts", "token"): PostSubresource(TokenRequest, request_token),
}
