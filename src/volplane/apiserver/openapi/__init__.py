"""OpenAPI documents, from which kubectl and other clients validate, explain and patch objects.

Documents are rendered on first request, and again after the registry has changed. The URL of a v3 document
contains the hash of its bytes: with the current hash it may be cached for a year, an old one is redirected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from email.utils import format_datetime
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from volplane.api.errors import MethodNotAllowed, NotFound
from volplane.api.kinds import Kind
from volplane.api.meta import ObjectMeta
from volplane.apiserver import cpu_offload
from volplane.apiserver.crd.custom.publish import published_model
from volplane.apiserver.discovery import group_kinds
from volplane.apiserver.openapi import gnostic, v2, v3
from volplane.apiserver.openapi.descriptions import describe_field
from volplane.apiserver.openapi.schemas import Custom, name_of
from volplane.apiserver.registry import Registry
from volplane.base import clock
from volplane.web import Request, Response

JSON = "application/json"
PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_PROTOBUF_NAMES = (PROTOBUF, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
YEAR = timedelta(days=365)
_TEXT = {"type": "string"}


class OpenApiDocument(Struct, frozen=True):
    body: bytes
    hash: str
    media: str = JSON


class OpenApiDocuments:
    """The documents for one state of the registry, rendered when they are first needed."""

    def __init__(self, registry: Registry, before: OpenApiDocuments | None = None) -> None:
        self.version = registry.version
        self._registry = registry
        self._kinds = registry.kinds()  # a copy: documents are rendered in a thread while kinds come and go
        self.group_versions = _group_versions(registry)
        self._made: dict[str, OpenApiDocument] = {}
        if before is not None:
            # Documents of unchanged kinds stay valid.
            kept = (gv for gv, kinds in self.group_versions.items() if before.group_versions.get(gv) == kinds)
            self._made = {gv: before._made[gv] for gv in kept if gv in before._made}

    def get(self, name: str, make: Callable[[], bytes], media: str = JSON) -> OpenApiDocument:
        if name not in self._made:
            body = make()
            self._made[name] = OpenApiDocument(body, hashlib.sha512(body).hexdigest().upper(), media)
        return self._made[name]

    async def render_in_thread(self, name: str, make: Callable[[], OpenApiDocument]) -> OpenApiDocument:
        """Render in a thread: large custom resource definitions take long."""
        made = self._made.get(name)
        return made if made is not None else await cpu_offload.run(cpu_offload.LARGE + 1, [], make)

    def v3(self, group_version: str) -> OpenApiDocument:
        kinds = self.group_versions.get(group_version)
        if kinds is None:
            raise NotFound.path()
        return self.get(
            group_version, lambda: msgspec.json.encode(v3.document(kinds, self._custom(v2=False)))
        )

    def root(self) -> OpenApiDocument:
        return self.get("root", self._root)

    def _root(self) -> bytes:
        paths = {gv: {"serverRelativeURL": address(gv, self.v3(gv))} for gv in self.group_versions}
        return msgspec.json.encode({"paths": paths})

    def v2(self, *, protobuf: bool) -> OpenApiDocument:
        if protobuf:
            return self.get("v2.pb", lambda: gnostic.encode(self._v2()), PROTOBUF)
        return self.get("v2", lambda: msgspec.json.encode(self._v2()))

    def _v2(self) -> dict[str, Any]:
        return v2.document(self._kinds, self._custom(v2=True))

    def _custom(self, *, v2: bool) -> Custom:
        """The published schema of custom kinds, from their definitions."""
        shapes = {"apiVersion": _TEXT, "kind": _TEXT, "metadata": {"$ref": name_of(ObjectMeta)}}
        common = {n: {"description": describe_field("any", n), **shape} for n, shape in shapes.items()}

        def custom_schema(kind: Kind) -> Mapping[str, Any]:
            entry = self._registry.find(kind.group, kind.version, kind.plural)
            return published_model(entry.strategy.schema if entry is not None else None, common, v2=v2)

        return custom_schema


def documents_of(registry: Registry) -> OpenApiDocuments:
    found: OpenApiDocuments | None = registry.rendered.get("openapi")
    if found is None or found.version != registry.version:
        found = registry.rendered["openapi"] = OpenApiDocuments(registry, found)
    return found


def _group_versions(registry: Registry) -> dict[str, list[Kind]]:
    """`api/v1`, `apis/apps/v1`, … with their kinds."""
    return {
        (f"apis/{group}/{version}" if group else f"api/{version}"): kinds
        for group, versions in group_kinds(registry.kinds()).items()
        for version, kinds in versions.items()
    }


def address(group_version: str, document: OpenApiDocument) -> str:
    return f"/openapi/v3/{group_version}?hash={document.hash}"


async def handle(registry: Registry, request: Request) -> Response:
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed(f"{request.method.lower()} is not supported on schemas")
    known = documents_of(registry)
    match request.path.rstrip("/"):
        case "/openapi/v2":
            protobuf = _wants_protobuf(request.headers.get("accept"))
            name = "v2.pb" if protobuf else "v2"
            return _answer(await known.render_in_thread(name, partial(known.v2, protobuf=protobuf)), request)
        case "/openapi/v3":
            return _answer(await known.render_in_thread("root", known.root), request)
        case path if path.startswith("/openapi/v3/"):
            name = path.removeprefix("/openapi/v3/")
            return _group_version(name, await known.render_in_thread(name, partial(known.v3, name)), request)
    raise NotFound.path()


def _wants_protobuf(accept: str) -> bool:
    for clause in accept.split(","):
        media = clause.partition(";")[0].strip()
        if media in _PROTOBUF_NAMES:
            return True
        if media in (JSON, "*/*"):
            return False
    return False


def _group_version(group_version: str, document: OpenApiDocument, request: Request) -> Response:
    given = request.query.get("hash")
    if not given:
        return _answer(document, request)
    if given != document.hash:
        return Response(status=301, headers=[("Location", address(group_version, document))], body=b"")
    expires = format_datetime(clock.wall() + YEAR, usegmt=True)
    return _answer(document, request, [("Cache-Control", "public, immutable"), ("Expires", expires)])


def _answer(
    document: OpenApiDocument, request: Request, extra: list[tuple[str, str]] | None = None
) -> Response:
    tag = f'"{document.hash}"'
    headers = [("ETag", tag), ("Vary", "Accept"), *(extra or ())]
    if tag in (t.strip() for t in request.headers.get("if-none-match").split(",")):
        return Response(status=304, headers=headers, body=b"")
    return Response(status=200, headers=[("Content-Type", document.media), *headers], body=document.body)
