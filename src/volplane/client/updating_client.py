"""A client that updates where it may not patch, as most of upstream's controllers may.

The roles of upstream's controllers allow `update` where its controllers send whole objects. A patch of such a
kind is applied here, to the object as the server sends it, so that no field is lost that has no type here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from msgspec import json

from volplane.api import codec, kinds, merge_patch
from volplane.api.authorization import (
    ResourceAttributes,
    SelfSubjectAccessReview,
    SelfSubjectAccessReviewSpec,
)
from volplane.api.errors import Conflict, Forbidden, NotFound
from volplane.api.kinds import Kind
from volplane.api.meta import Resource
from volplane.client.cache import Caches
from volplane.client.client import Client
from volplane.client.https import HttpsTransport
from volplane.client.patches import PatchOptions
from volplane.client.transport import PatchBody, PatchStyle

T = TypeVar("T", bound=Resource)

MOST_TRIES = 5  # of an update, while others change the object


class UpdatingClient(Client):
    def __init__(
        self, transport: HttpsTransport, reader: HttpsTransport, *, caches: Caches, component: str
    ) -> None:
        """`reader`: of a user who may list all objects, but maybe not get them. The client's own user may not
        read every kind that it may update.
        """
        super().__init__(transport, caches=caches, component=component)
        self._https = transport
        self._reads = self._reader = reader
        self._may_patch: dict[tuple[str, str], bool] = {}  # by resource and subresource

    async def get(self, type: type[T], name: str, namespace: str = "") -> T:
        if (found := await self.find(type, name, namespace)) is None:
            raise NotFound.of(kinds.of(type), name)
        return found

    async def find(self, type: type[T], name: str, namespace: str = "") -> T | None:
        page = await self._reads.list(type, namespace, fields=f"metadata.name={name}")
        return next(iter(page.items), None)

    async def _send_patch(
        self,
        type: type[T],
        name: str,
        namespace: str,
        body: PatchBody,
        style: PatchStyle,
        options: PatchOptions,
    ) -> T:
        kind, subresource = kinds.of(type), options.get("subresource", "")
        # A patch of another style is sent as it is: the server then says what is not allowed.
        if style is not PatchStyle.MERGE or not isinstance(body, Mapping):
            return await super()._send_patch(type, name, namespace, body, style, options)
        is_patch_allowed = await self._is_patch_allowed(kind, subresource)
        try:
            if is_patch_allowed:
                return await super()._send_patch(type, name, namespace, body, style, options)
            return await self._update_with(type, name, namespace, body, subresource)
        except Forbidden:
            # The roles may have changed since the server was asked: ask again next time.
            self._may_patch.pop((kind.resource, subresource), None)
            raise

    async def _is_patch_allowed(self, kind: Kind, subresource: str) -> bool:
        key = kind.resource, subresource
        if key not in self._may_patch:
            attributes = ResourceAttributes(
                verb="patch",
                group=kind.group,
                version=kind.version,
                resource=kind.plural,
                subresource=subresource,
            )
            spec = SelfSubjectAccessReviewSpec(resource_attributes=attributes)
            answer = await self._https.create(SelfSubjectAccessReview(spec=spec))
            self._may_patch[key] = answer.status.allowed
        return self._may_patch[key]

    async def _update_with(
        self, type: type[T], name: str, namespace: str, patch: Mapping[str, Any], subresource: str
    ) -> T:
        kind = kinds.of(type)
        metadata = patch.get("metadata") or {}
        tries = 1 if metadata.get("resourceVersion") else MOST_TRIES
        while True:
            obj = await self._read(kind, name, namespace)
            uid = obj["metadata"].get("uid")
            if metadata.get("uid", uid) != uid:
                raise Conflict(f"{kind.plural} {name!r} is another object by now: its UID is {uid}")
            tries -= 1
            self.require_write()  # the Lease may have expired while the object was read
            try:
                changed = json.encode(merge_patch.merge(obj, dict(patch)))
                answer = await self._https.put_raw(
                    kind, name, namespace, changed, subresource=subresource, manager=self.component
                )
                return codec.decode(type, answer)
            except Conflict:
                if not tries:
                    raise

    async def _read(self, kind: Kind, name: str, namespace: str) -> dict[str, Any]:
        """The object with all its fields."""
        query = urlencode({"fieldSelector": f"metadata.name={name}"})
        found = json.decode(await self._reader.raw("GET", f"{kind.path(namespace)}?{query}"))["items"] or ()
        if not found:
            raise NotFound.of(kind, name)
        # The items of a list do not repeat its kind.
        return {**found[0], "kind": kind.kind, "apiVersion": kind.api_version}
