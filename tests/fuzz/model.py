"""The acknowledged state of the server, compared with later reads.

Only the server itself writes during a sequence (the status of definitions), so the next read must return
exactly what a write has returned.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, unquote

from tests.fuzz.requests import FuzzRequest
from volplane import web

Json = Any
KEPT_BY_SERVER = frozenset({"CustomResourceDefinition"})
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
REASONS = frozenset(
    {"Unauthorized", "Forbidden", "NotFound", "AlreadyExists", "Conflict", "Gone", "Invalid", "Timeout"}
    | {"TooManyRequests", "BadRequest", "MethodNotAllowed", "NotAcceptable", "RequestEntityTooLarge"}
    | {"UnsupportedMediaType", "Expired", "ServiceUnavailable", "", "Unknown"}
)
# Upstream answers these client errors with a 500, and so does this server.
AS_UPSTREAM = (
    "resourceVersion should not be set on objects to be created",
    "Internal error occurred: no preferred addresses found",  # proxy to a node without addresses
    "no endpoints available for service",  # proxy to a Service without ready pods
    "Internal error occurred: the spec replicas field",  # /scale of a custom object without replicas
)
PATIENCE = 60.0
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINED = ("/apis/fuzz.example.com/", "/apis/shop.example.com/")
EVENT_FACES = ("/api/v1/", "/apis/events.k8s.io/v1/")


class Model:
    def __init__(self, http: web.HttpClient) -> None:
        self.http = http
        self.objects: dict[str, Json] = {}  # by the path of the object
        self.revisions: set[int] = set()
        self.acknowledged = 0
        self.log: list[str] = []  # all requests, for failure messages

    # --- requests

    async def send(self, request: FuzzRequest) -> None:
        """Send a request, check its response, and read back what it acknowledged."""
        status, body = await self._exchange(request)
        self.log.append(f"{status} {request}")
        if status >= 400:
            judge(status, body, request)
        elif request.method in WRITES and not self._is_dry(request):
            self.acknowledged += 1
            if b"dryRun" in request.body:  # of a delete or eviction: may have happened
                await self._refresh_all()
            else:
                await self._note(request, body)
                await self._other_face(request.path)
                self._forget_custom_objects(request.path)

    async def _exchange(self, request: FuzzRequest) -> tuple[int, bytes]:
        asked: dict[str, Any] = {"headers": request.headers, "body": request.body, "timeout": PATIENCE}
        if any(name in ("watch", "follow") for name, _ in request.query) and request.method == "GET":
            async with self.http.stream(request.method, request.target, **asked) as (answer, pieces):
                if answer.status == 200:
                    return 200, b""
                return answer.status, b"".join([piece async for piece in pieces])
        got = await self.http.request(request.method, request.target, **asked)
        if got.status >= 400 and request.method == "HEAD":
            assert got.status < 500, f"{got.status} to {request}"
            return 200, b""
        return got.status, got.body

    def _is_dry(self, request: FuzzRequest) -> bool:
        if request.method == "DELETE" and request.body:
            return False  # with a body, the query is ignored (as upstream)
        return any(name == "dryRun" and value == "All" for name, value in request.query)

    async def read(self, path: str) -> Json | None:
        got = await self.http.request("GET", path, timeout=PATIENCE)
        assert got.status in (200, 404), (got.status, path, got.body)
        return json.loads(got.body) if got.status == 200 else None

    # --- recording

    async def _note(self, request: FuzzRequest, body: bytes) -> None:
        if not request.operation.keeps:
            return
        place = self._place(request, body)
        if place is None:  # a collection was deleted, or the object is not stored
            await self._refresh_below(request.path)
            return
        answer = _object(body)
        held = await self.read(place)
        if request.method == "DELETE" or request.operation.path.endswith("/eviction"):
            assert held is None or held["metadata"].get("deletionTimestamp"), f"deleted, but there: {request}"
        elif not _is_removed(answer):
            assert held is not None, f"acknowledged, but not there: {request} -> {body!r}"
        same_kind = answer is not None and held is not None and answer.get("kind") == held.get("kind")
        if same_kind and request.operation.kind not in KEPT_BY_SERVER:
            assert held == answer, f"read otherwise than acknowledged: {request}\n{answer}\n{held}"
        if held is None:
            self.objects.pop(place, None)
            return
        self._note_revision(place, held, request)
        self.objects[place] = held

    def _note_revision(self, place: str, held: Json, request: FuzzRequest) -> None:
        before = self.objects.get(place, {}).get("metadata", {}).get("resourceVersion")
        revision = held["metadata"]["resourceVersion"]
        if revision == before:
            assert held == self.objects[place], f"changed without a new revision: {request}"
        else:
            assert int(revision) not in self.revisions, f"revision {revision} twice: {request}"
            self.revisions.add(int(revision))

    def _place(self, request: FuzzRequest, body: bytes) -> str | None:
        """Return the path of the written object."""
        template = request.operation.path
        if "{name}" in template and not request.path.endswith("/"):
            # Subresources change their object.
            depth = template.partition("{name}")[0].count("/") + 1
            return "/".join(request.path.split("/")[:depth])
        if request.method != "POST":
            return None
        answer = _object(body)
        name = (answer or {}).get("metadata", {}).get("name", "")
        return f"{request.path}/{quote(name, safe='')}" if name else None

    async def _refresh_all(self) -> None:
        for place in list(self.objects):
            held = await self.read(place)
            if held is None:
                del self.objects[place]
            else:
                self.objects[place] = held

    async def _other_face(self, path: str) -> None:
        """Refresh Events of the other API group, because both groups serve the same objects."""
        for face, other in (EVENT_FACES, EVENT_FACES[::-1]):
            if path.startswith(face) and "/events" in path:
                for place in [p for p in self.objects if p.startswith(other) and "/events/" in p]:
                    held = await self.read(place)
                    if held is None:
                        del self.objects[place]
                    else:
                        self.objects[place] = held

    def _forget_custom_objects(self, path: str) -> None:
        """Forget custom objects: a changed definition may delete them asynchronously."""
        if path.startswith(DEFINITIONS):
            for place in [p for p in self.objects if p.startswith(DEFINED)]:
                del self.objects[place]

    async def _refresh_below(self, collection: str) -> None:
        for place in [p for p in self.objects if p.rpartition("/")[0] == collection.rstrip("/")]:
            held = await self.read(place)
            if held is None:
                del self.objects[place]
            elif held != self.objects[place]:
                assert held["metadata"].get("deletionTimestamp"), f"{place} was changed by {collection}"
                self.objects[place] = held

    # --- final check

    async def check(self) -> None:
        """Check that every acknowledged object is unchanged, read alone and in its list."""
        lists: dict[str, dict[str, Json]] = {}
        for place, expected in self.objects.items():
            held = await self.read(place)
            assert held is not None, f"lost: {place}"
            if expected["kind"] in KEPT_BY_SERVER:
                continue
            assert held == expected, f"{place} is not what was acknowledged:\n{expected}\n{held}"
            collection, _, name = place.rpartition("/")
            if collection not in lists:
                found = await self.read(collection)
                assert found is not None
                lists[collection] = {item["metadata"]["name"]: item for item in found["items"]}
            listed = lists[collection][unquote(name)]
            assert {**listed, "kind": held["kind"], "apiVersion": held["apiVersion"]} == held, place


def _object(body: bytes) -> Json | None:
    """Return the object in a response; None for a Status, a table, metadata only, or YAML."""
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    if not isinstance(answer, dict) or answer.get("kind") in ("Status", "Table", "PartialObjectMetadata"):
        return None
    return answer


def _is_removed(answer: Json | None) -> bool:
    """Return whether the write removed the last finalizer of a deleted object, and thereby the object."""
    metadata = (answer or {}).get("metadata", {})
    return "deletionTimestamp" in metadata and not metadata.get("finalizers")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body).get("message"))
    except ValueError:
        return ""


def judge(status: int, body: bytes, request: FuzzRequest) -> None:
    """Check that an error is a well-formed Status and, with few exceptions, a 4xx."""
    if status >= 500:
        assert _message(body).startswith(AS_UPSTREAM), f"{status} {body!r} to {request}"
        return
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise AssertionError(f"{status} without a Status: {body!r} to {request}") from error
    context = f"{answer} to {request}"
    assert answer["kind"] == "Status", context
    assert answer["apiVersion"] == "v1", context
    assert answer["status"] == "Failure", context
    assert answer["code"] == status, context
    assert answer["message"], context
    assert answer.get("reason", "") in REASONS, context
    assert isinstance(answer["metadata"], dict), context
    details = answer.get("details", {})
    assert isinstance(details, dict), context
    for cause in details.get("causes", ()):
        assert set(cause) <= {"reason", "message", "field"}, context
