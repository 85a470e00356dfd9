"""Discovery and OpenAPI as clients read them, from the registry of the running server."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from volplane.api import kinds
from volplane.api.core import Pod
from volplane.api.errors import MethodNotAllowed, NotFound
from volplane.apiserver import openapi, strategies
from volplane.apiserver.discovery import Discovery
from volplane.apiserver.openapi import gnostic
from volplane.apiserver.registry import Registry
from volplane.web import Headers, Request, Response
from volplane.web.message import header_pairs

V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
V2BETA = V2.replace("v=v2", "v=v2beta1")
PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(kinds.ALL, strategies.of)


def ask(path: str, method: str = "GET", **headers: str) -> Request:
    named = {"host": "h:1", **headers}
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    return Request(method, path, Headers(sent))


def header(answer: Response, name: str) -> str:
    return next((value for key, value in header_pairs(answer.headers) if key.lower() == name), "")


def body(answer: Response) -> Any:
    assert isinstance(answer.body, bytes)
    return msgspec.json.decode(answer.body)


async def test_the_versions_of_the_core(registry: Registry) -> None:
    answer = Discovery(registry).handle(ask("/api"))
    assert header(answer, "content-type") == "application/json"
    assert body(answer) == {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "h:1"}],
    }


async def test_the_groups(registry: Registry) -> None:
    listed = body(Discovery(registry).handle(ask("/apis")))
    assert (listed["kind"], listed["apiVersion"]) == ("APIGroupList", "v1")
    names = [group["name"] for group in listed["groups"]]
    assert names[:2] == ["apiregistration.k8s.io", "apps"]
    assert "" not in names
    assert names.index("rbac.authorization.k8s.io") < names.index("storage.k8s.io")
    one = body(Discovery(registry).handle(ask("/apis/storage.k8s.io")))
    assert one == {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": "storage.k8s.io",
        "versions": [{"groupVersion": "storage.k8s.io/v1", "version": "v1"}],
        "preferredVersion": {"groupVersion": "storage.k8s.io/v1", "version": "v1"},
    }


async def test_the_resources_of_a_group_version(registry: Registry) -> None:
    core = body(Discovery(registry).handle(ask("/api/v1")))
    assert core["groupVersion"] == "v1"
    assert "apiVersion" not in core
    entries = {entry["name"]: entry for entry in core["resources"]}
    claims = entries["persistentvolumeclaims"]
    assert (claims["kind"], claims["namespaced"], claims["shortNames"]) == (
        "PersistentVolumeClaim",
        True,
        ["pvc"],
    )
    assert claims["singularName"] == "persistentvolumeclaim"
    assert entries["pods"]["categories"] == ["all"]
    assert entries["pods/eviction"] == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "group": "policy",
        "version": "v1",
        "kind": "Eviction",
        "verbs": ["create"],
    }
    assert "deletecollection" not in entries["namespaces"]["verbs"]
    storage = body(Discovery(registry).handle(ask("/apis/storage.k8s.io/v1")))
    assert storage["apiVersion"] == "v1"
    assert "volumeattributesclasses" in {entry["name"] for entry in storage["resources"]}


@pytest.mark.parametrize("path", ["/apis/nope", "/apis/apps/v2", "/api/v2", "/apis/nope/v1"])
async def test_what_is_not_served_is_not_found(registry: Registry, path: str) -> None:
    with pytest.raises(NotFound):
        Discovery(registry).handle(ask(path))


async def test_discovery_is_only_read(registry: Registry) -> None:
    with pytest.raises(MethodNotAllowed):
        Discovery(registry).handle(ask("/api", "POST"))


async def test_aggregated_discovery(registry: Registry) -> None:
    answer = Discovery(registry).handle(ask("/apis", accept=f"{V2},{V2BETA},application/json"))
    assert header(answer, "content-type") == V2
    assert header(answer, "vary") == "Accept"
    listed = body(answer)
    assert (listed["kind"], listed["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    assert all(v["freshness"] == "Current" for item in listed["items"] for v in item["versions"])
    tag = header(answer, "etag")
    again = Discovery(registry).handle(ask("/apis", accept=V2, if_none_match=tag))
    assert (again.status, again.body) == (304, b"")
    [core] = body(Discovery(registry).handle(ask("/api", accept=V2)))["items"]
    assert core["metadata"] == {}
    pods = next(r for r in core["versions"][0]["resources"] if r["resource"] == "pods")
    assert pods["responseKind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert (pods["scope"], pods["singularResource"]) == ("Namespaced", "pod")
    eviction = next(s for s in pods["subresources"] if s["subresource"] == "eviction")
    assert eviction["responseKind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}


@pytest.mark.parametrize(
    "accept", ["", "application/json", f"{V2BETA},application/json", "*/*", f"application/json,{V2}"]
)
async def test_clients_that_do_not_know_it_get_the_old_form(registry: Registry, accept: str) -> None:
    answer = Discovery(registry).handle(ask("/apis", accept=accept))
    assert header(answer, "content-type") == "application/json"
    assert body(answer)["kind"] == "APIGroupList"


async def test_discovery_follows_the_registry() -> None:
    registry = Registry(kinds.ALL, strategies.of)
    discovery = Discovery(registry)
    snapshots = msgspec.structs.replace(
        kinds.of(Pod),
        struct=None,
        group="snapshot.storage.k8s.io",
        kind="VolumeSnapshot",
        plural="volumesnapshots",
    )
    with pytest.raises(NotFound):
        discovery.handle(ask("/apis/snapshot.storage.k8s.io/v1"))
    registry.add(snapshots)
    found = body(discovery.handle(ask("/apis/snapshot.storage.k8s.io/v1")))
    assert found["resources"][0]["kind"] == "VolumeSnapshot"
    document = body(await openapi.handle(registry, ask("/openapi/v3/apis/snapshot.storage.k8s.io/v1")))
    [path] = [p for p in document["paths"] if p.endswith("{name}")]
    content = document["paths"][path]["patch"]["requestBody"]["content"]
    assert "application/strategic-merge-patch+json" not in content
    assert "application/merge-patch+json" in content
    registry.remove(snapshots)
    with pytest.raises(NotFound):
        discovery.handle(ask("/apis/snapshot.storage.k8s.io/v1"))


# OpenAPI v3


async def test_the_root_names_every_group_version(registry: Registry) -> None:
    paths = body(await openapi.handle(registry, ask("/openapi/v3")))["paths"]
    assert {"api/v1", "apis/apps/v1", "apis/storage.k8s.io/v1"} <= set(paths)
    assert paths["api/v1"]["serverRelativeURL"].startswith("/openapi/v3/api/v1?hash=")


async def test_a_document_is_found_by_its_hash(registry: Registry) -> None:
    url = body(await openapi.handle(registry, ask("/openapi/v3")))["paths"]["api/v1"]["serverRelativeURL"]
    answer = await openapi.handle(registry, ask(url))
    assert answer.status == 200
    assert header(answer, "cache-control") == "public, immutable"
    assert header(answer, "expires").endswith("GMT")
    stale = await openapi.handle(registry, ask("/openapi/v3/api/v1?hash=stale"))
    assert (stale.status, header(stale, "location")) == (301, url)
    tag = header(answer, "etag")
    same = await openapi.handle(registry, ask("/openapi/v3/api/v1", if_none_match=tag))
    assert (same.status, same.body) == (304, b"")
    with pytest.raises(NotFound):
        await openapi.handle(registry, ask("/openapi/v3/apis/nope/v1"))


async def test_what_kubectl_reads(registry: Registry) -> None:
    document = body(await openapi.handle(registry, ask("/openapi/v3/api/v1")))
    patch = document["paths"]["/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"]["patch"]
    gvk = {"group": "", "version": "v1", "kind": "PersistentVolumeClaim"}
    assert patch["x-kubernetes-group-version-kind"] == gvk
    named = {(p["name"], p["in"]) for p in patch["parameters"]}
    assert {("fieldValidation", "query"), ("dryRun", "query")} <= named
    assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]
    schemas = document["components"]["schemas"]
    claim = schemas["io.k8s.api.core.v1.PersistentVolumeClaim"]
    assert claim["x-kubernetes-group-version-kind"] == [gvk]
    properties = schemas["io.k8s.api.core.v1.PersistentVolumeClaimStatus"]["properties"]
    status = {key: value for key, value in properties["conditions"].items() if key != "description"}
    assert status == {
        "type": "array",
        "items": {"$ref": "#/components/schemas/io.k8s.api.core.v1.PersistentVolumeClaimCondition"},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "type",
    }


async def test_every_reference_resolves(registry: Registry) -> None:
    for name in body(await openapi.handle(registry, ask("/openapi/v3")))["paths"]:
        answer = await openapi.handle(registry, ask(f"/openapi/v3/{name}"))
        schemas = body(answer)["components"]["schemas"]
        found = set(_references(body(answer)))
        assert {r.removeprefix("#/components/schemas/") for r in found} <= set(schemas)


async def test_documents_have_no_empty_parts(registry: Registry) -> None:
    """Go reads a document and writes the same one: it does not write empty lists and maps."""
    roots = body(await openapi.handle(registry, ask("/openapi/v3")))["paths"]
    for path in ["/openapi/v2", *(f"/openapi/v3/{name}" for name in roots)]:
        document = body(await openapi.handle(registry, ask(path)))
        assert list(_empty_parts(document)) == []


def _empty_parts(value: Any, path: str = "") -> Iterator[str]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        if part in ({}, []) and key != "schema":
            yield f"{path}/{key}"
        yield from _empty_parts(part, f"{path}/{key}")


def _references(value: Any) -> Any:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _references(inner)


# OpenAPI v2


async def test_the_old_document_in_both_forms(registry: Registry) -> None:
    plain = await openapi.handle(registry, ask("/openapi/v2", accept="*/*"))
    document = body(plain)
    assert (document["swagger"], header(plain, "content-type")) == ("2.0", "application/json")
    coded = await openapi.handle(registry, ask("/openapi/v2", accept=PROTOBUF))
    assert header(coded, "content-type") == PROTOBUF.replace("@", ".")
    assert isinstance(coded.body, bytes)
    fields = _fields(coded.body)
    assert fields[1] == [b"2.0"]
    definitions = {_fields(d)[1][0].decode(): _fields(d)[2][0] for d in _fields(fields[9][0])[1]}
    assert set(definitions) == set(document["definitions"])
    claim = _fields(definitions["io.k8s.api.core.v1.PersistentVolumeClaim"])
    [extension] = claim[31]
    assert _fields(extension)[1] == [b"x-kubernetes-group-version-kind"]
    [any_value] = _fields(extension)[2]
    assert msgspec.yaml.decode(_fields(any_value)[2][0]) == [
        {"group": "", "kind": "PersistentVolumeClaim", "version": "v1"}
    ]
    paths = {_fields(p)[1][0].decode() for p in _fields(fields[8][0])[2]}
    assert paths == set(document["paths"])


def test_numbers_of_any_length_are_encoded() -> None:
    assert gnostic._varint(300) == b"\xac\x02"


def _fields(data: bytes) -> dict[int, list[bytes]]:
    """A message of length-delimited fields, taken apart."""
    found: dict[int, list[bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        assert tag & 7 == 2
        length, at = _read_varint(data, at)
        found.setdefault(tag >> 3, []).append(data[at : at + length])
        at += length
    assert at == len(data)
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
