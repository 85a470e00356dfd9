"""The interface between a client and an API server: the typed verbs.

There are two transports: `client.https.HttpsTransport` (any Kubernetes API server) and the API server's own
in-process one. A transport has one user. It sends and returns objects as they are, without retries or caches.
Errors are `api.errors`, also for a lost connection (`Unavailable`). Objects and patches that are passed in
are shared, and never changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from volplane.api.meta import DeleteOptions, Resource

T = TypeVar("T", bound=Resource)


class PatchStyle(StrEnum):
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class ChangeType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class ObjectChange(NamedTuple, Generic[T]):
    """A watch event. DELETED has the last state with the revision of the delete, BOOKMARK no object."""

    type: ChangeType
    object: T | None
    revision: int


class ListPage(NamedTuple, Generic[T]):
    items: Sequence[T]
    revision: int
    token: str = ""  # `continue` of the next page, "" at the end


PatchBody = Mapping[str, Any] | Sequence[Mapping[str, Any]]
WatchContext = AbstractAsyncContextManager[AsyncIterator[Sequence[ObjectChange[T]]]]


class Transport(Protocol):
    async def get(self, type: type[T], name: str, namespace: str = "") -> T: ...

    async def list(
        self,
        type: type[T],
        namespace: str = "",  # "" is all namespaces
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        token: str = "",
        revision: str = "",  # resourceVersion of the request: "" newest, "0" any, "N" not older than
    ) -> ListPage[T]: ...

    async def create(
        self,
        obj: T,
        namespace: str = "",  # "" takes the object's own
        *,
        name: str = "",
        subresource: str = "",  # with `of` and `name`: POST to <of>/<name>/<subresource>
        of: type[Resource] | None = None,
    ) -> T:
        """The stored object; where the server answers with a Status (binding, eviction), the object sent."""
        ...

    async def update(self, obj: T, *, subresource: str = "") -> T:
        """PUT; a resourceVersion in the object's metadata is a precondition."""
        ...

    async def patch(
        self,
        type: type[T],
        name: str,
        namespace: str,
        patch: PatchBody,
        style: PatchStyle,
        *,
        subresource: str = "",
        manager: str = "",  # fieldManager; required with APPLY
        force: bool = False,
    ) -> T: ...

    async def delete(
        self, type: type[T], name: str, namespace: str = "", options: DeleteOptions | None = None
    ) -> T | None:
        """The object if it still exists (finalizers, grace period), or None."""
        ...

    def watch(
        self,
        type: type[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        revision: int = 0,  # events after it; 0: ADDED for what exists, then live
        seconds: int = 0,  # timeoutSeconds; 0: the server's choice
    ) -> WatchContext[T]:
        """`async with watch(…) as batches: async for batch in batches`: in revision order, with bookmarks.

        All events that are ready come as one batch, never empty. The iteration ends when the server ends the
        watch. A compacted revision raises `Expired` (on entering or while iterating), a lost connection
        `Unavailable`.
        """
        ...

    async def close(self) -> None: ...
