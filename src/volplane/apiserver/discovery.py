"""Discovery: the served groups, versions and resources, in the legacy and the aggregated form.

Both forms are rendered from the registry on the first request after it changed. Clients accept the aggregated
form only if the Content-Type has all three parameters, and `/api` and `/apis` must answer in the same form.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from volplane.api.errors import MethodNotAllowed, NotFound
from volplane.api.kinds import Kind, Subresource
from volplane.apiserver.registry import Registry
from volplane.apiserver.version_priority import version_sort_key
from volplane.web import Request, Response

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
JSON = "application/json"

# Groups in upstream's order of priority; others follow by name.
_PRIORITY = (
    "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io",
    "autoscaling", "batch", "certificates.k8s.io", "networking.k8s.io", "policy",
    "rbac.authorization.k8s.io", "storage.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io",
    "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io", "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
)  # fmt: skip

# Kinds with two forms, and the one that is stored.
_STORED_IN = {  # by upstream, where that is not the served version
    "customresourcedefinitions.apiextensions.k8s.io": ("apiextensions.k8s.io", "v1beta1"),
    "events.events.k8s.io": ("", "v1"),
    "horizontalpodautoscalers.autoscaling": ("autoscaling", "v2"),
    "volumeattributesclasses.storage.k8s.io": ("storage.k8s.io", "v1beta1"),
}

Groups = Mapping[str, Mapping[str, list[Kind]]]  # group → version → kinds


class DiscoveryDocument(Struct, frozen=True):
    """A rendered response."""

    body: bytes
    media: str = JSON
    etag: str = ""


class DiscoveryDocuments:
    """All discovery documents for one version of the registry."""

    def __init__(self, registry: Registry) -> None:
        self.version = registry.version
        groups = group_kinds(registry.kinds())
        self.legacy = {
            path: DiscoveryDocument(msgspec.json.encode(data) + b"\n") for path, data in _legacy(groups)
        }
        self.aggregated = {
            "/api": _aggregated_document({"": groups.get("", {})}),
            "/apis": _aggregated_document({name: versions for name, versions in groups.items() if name}),
        }


class Discovery:
    """Serves `/api`, `/apis` and the paths below."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._rendered: DiscoveryDocuments | None = None

    def handle(self, request: Request) -> Response:
        """Raise NotFound for unknown groups and versions."""
        path = request.path.rstrip("/")
        documents = self._rendered
        if documents is None or documents.version != self._registry.version:
            documents = self._rendered = DiscoveryDocuments(self._registry)
        if path in documents.aggregated and wants_aggregated(request.headers.get("accept")):
            return _conditional(documents.aggregated[path], request)
        page = documents.legacy.get(path)
        if page is None:
            raise NotFound.path()
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"{request.method.lower()} is not supported on discovery")
        headers = [("Content-Type", page.media), ("Vary", "Accept")]
        return Response(status=200, headers=headers, body=_with_server_address(page, request))


def _with_server_address(page: DiscoveryDocument, request: Request) -> bytes:
    """Fill the server address in `/api` with the host that the client used."""
    return page.body.replace(b"@server@", request.headers.get("host").encode() or b"127.0.0.1")


def wants_aggregated(accept: str) -> bool:
    """Return whether the client accepts the aggregated form (v2) and does not prefer plain JSON."""
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        named = dict(p.split("=", 1) for p in parameters if "=" in p)
        if media in (JSON, "application/*") and named.get("as") == "APIGroupDiscoveryList":
            if named.get("g") == "apidiscovery.k8s.io" and named.get("v") == "v2":
                return True
        elif media in (JSON, "*/*") and "as" not in named:
            return False  # plain JSON comes first
    return False


def _conditional(page: DiscoveryDocument, request: Request) -> Response:
    headers = [
        ("Content-Type", page.media),
        ("ETag", page.etag),
        ("Vary", "Accept"),
        ("Cache-Control", "public"),
    ]
    if page.etag in (tag.strip() for tag in request.headers.get("if-none-match").split(",")):
        return Response(status=304, headers=headers[1:], body=b"")
    return Response(status=200, headers=headers, body=page.body)


def group_kinds(kinds: Iterable[Kind]) -> Groups:
    """Group kinds by group and version, both sorted by priority."""
    found: dict[str, dict[str, list[Kind]]] = {}
    for kind in kinds:
        found.setdefault(kind.group, {}).setdefault(kind.version, []).append(kind)
    ordered = sorted(found, key=lambda name: (_rank(name), name))
    return {
        name: {
            v: sorted(found[name][v], key=lambda k: k.plural)
            for v in sorted(found[name], key=version_sort_key)
        }
        for name in ordered
    }


def _rank(group: str) -> int:
    if not group:
        return -1
    return _PRIORITY.index(group) if group in _PRIORITY else len(_PRIORITY)


# The legacy form: one document per group version


def _legacy(groups: Groups) -> Iterable[tuple[str, Any]]:
    yield (
        "/api",
        {
            "kind": "APIVersions",
            "versions": list(groups.get("", {})),
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "@server@"}],
        },
    )
    named = {name: versions for name, versions in groups.items() if name}
    listed = [_group(name, list(versions)) for name, versions in named.items()]
    yield "/apis", {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    for name, versions in groups.items():
        if name:
            yield f"/apis/{name}", {"kind": "APIGroup", "apiVersion": "v1", **_group(name, list(versions))}
        for version, kinds in versions.items():
            yield (f"/apis/{name}/{version}" if name else f"/api/{version}"), _resources(name, version, kinds)


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(group: str, version: str, kinds: list[Kind]) -> dict[str, Any]:
    head: dict[str, Any] = {"kind": "APIResourceList"}
    if group:
        head["apiVersion"] = "v1"
    listed = [entry for kind in kinds for entry in _entries(kind)]
    return {**head, "groupVersion": f"{group}/{version}" if group else version, "resources": listed}


def _entries(kind: Kind) -> Iterable[dict[str, Any]]:
    entry: dict[str, Any] = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if "create" in kind.verbs and "get" in kind.verbs:
        entry["storageVersionHash"] = _storage_version_hash(kind)
    yield entry
    for below in sorted(kind.subresources, key=lambda s: s.name):
        yield _subresource_entry(kind, below)


def _subresource_entry(kind: Kind, below: Subresource) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": f"{kind.plural}/{below.name}",
        "singularName": "",
        "namespaced": kind.namespaced,
    }
    if below.group:
        entry |= {"group": below.group, "version": below.version}
    return entry | {"kind": below.kind or kind.kind, "verbs": list(below.verbs)}


# The aggregated form: one document for all groups


def _aggregated_document(groups: Groups) -> DiscoveryDocument:
    items = [_group_discovery(name, versions) for name, versions in groups.items() if versions]
    body = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }
    encoded = msgspec.json.encode(body) + b"\n"
    return DiscoveryDocument(encoded, AGGREGATED, f'"{_hash(encoded)}"')


def _group_discovery(name: str, versions: Mapping[str, list[Kind]]) -> dict[str, Any]:
    return {
        "metadata": {"name": name} if name else {},
        "versions": [
            {"version": version, "freshness": "Current", "resources": [_resource_discovery(k) for k in kinds]}
            for version, kinds in versions.items()
        ],
    }


def _resource_discovery(kind: Kind) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.subresources:
        entry["subresources"] = [
            _subresource_discovery(kind, below) for below in sorted(kind.subresources, key=lambda s: s.name)
        ]
    return entry


def _subresource_discovery(kind: Kind, below: Subresource) -> dict[str, Any]:
    group, version = (below.group, below.version) if below.group else (kind.group, kind.version)
    response = {"group": group, "version": version, "kind": below.kind or kind.kind}
    return {"subresource": below.name, "responseKind": response, "verbs": list(below.verbs)}


def _storage_version_hash(kind: Kind) -> str:
    """Clients compare it to see whether two kinds are stored as the same objects."""
    group, version = _STORED_IN.get(kind.resource, (kind.group, kind.version))
    digest = hashlib.sha256(f"{group}/{version}/{kind.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def _hash(data: bytes) -> str:
    return hashlib.sha512(data).hexdigest()[:64].upper()
