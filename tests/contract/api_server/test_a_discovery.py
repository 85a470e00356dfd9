"""Contract api-server A, discovery and OpenAPI: the cases to test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import client_of
from tests.contract.api_server.definitions import install_snapshots
from tests.contract.api_server.samples import JSON, PROTOBUF
from tests.contract.api_server.test_h_kubectl import Kubectl
from volplane import apiserver
from volplane.store.memory import MemoryStore

V2 = f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
V2BETA1 = f"{JSON};g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
GNOSTIC = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
PRIORITY = (
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "storagemigration.k8s.io",
)


async def test_apis_with_the_v2_accept_carries_g_v_as_and_every_gv_is_current(shared: Any) -> None:
    async with shared() as api:
        for path in ("/api", "/apis"):
            got = await api.get(path, accept=f"{V2},{V2BETA1},{JSON}")
            assert got.headers.get("content-type") == V2
            assert got.json["kind"] == "APIGroupDiscoveryList"
            assert got.json["apiVersion"] == "apidiscovery.k8s.io/v2"
            versions = [v for group in got.json["items"] for v in group["versions"]]
            assert versions
            assert {v["freshness"] for v in versions} == {"Current"}
            # A missing responseKind hides the resource.
            assert all(r["responseKind"]["kind"] for v in versions for r in v["resources"])


async def test_apis_with_only_v2beta1_and_json_is_a_plain_group_list(shared: Any) -> None:
    async with shared() as api:
        got = await api.get("/apis", accept=f"{V2BETA1},{JSON}")
        assert got.headers.get("content-type") == JSON
        assert (got.json["kind"], got.json["apiVersion"]) == ("APIGroupList", "v1")


async def test_groups_come_in_their_order_of_priority(shared: Any) -> None:
    async with shared() as api:
        plain = [g["name"] for g in (await api.get("/apis")).json["groups"]]
        together = [i["metadata"]["name"] for i in (await api.get("/apis", accept=V2)).json["items"]]
        assert plain == together == list(PRIORITY)


async def test_a_nopeer_profile_changes_nothing(shared: Any) -> None:
    async with shared() as api:
        assert (await api.get("/apis", accept=f"{V2};profile=nopeer,{JSON}")).headers.get(
            "content-type"
        ) == V2


async def test_the_roots_in_the_old_form(shared: Any) -> None:
    async with shared() as api:
        core = (await api.get("/api")).json
        assert (core["kind"], core["versions"]) == ("APIVersions", ["v1"])
        address = core["serverAddressByClientCIDRs"][0]
        assert address == {"clientCIDR": "0.0.0.0/0", "serverAddress": f"127.0.0.1:{api.server.port}"}
        assert (await api.get("/api/v1")).json["groupVersion"] == "v1"
        group = (await api.get("/apis/storage.k8s.io")).json
        assert group["preferredVersion"] == {"groupVersion": "storage.k8s.io/v1", "version": "v1"}
        missing = await api.get("/apis/metrics.k8s.io")
        assert (missing.status, missing.json["kind"], missing.json["reason"]) == (404, "Status", "NotFound")


async def test_version_is_all_strings(shared: Any) -> None:
    async with shared() as api:
        found = (await api.get("/version")).json
        keys = [
            "major",
            "minor",
            "gitVersion",
            "gitCommit",
            "gitTreeState",
            "buildDate",
            "goVersion",
            "compiler",
            "platform",
        ]
        assert set(keys) <= set(found)
        assert all(isinstance(v, str) for v in found.values())
        assert found["gitVersion"].startswith("v1.35.")


async def test_storage_lists_volumeattributesclass(shared: Any) -> None:
    async with shared() as api:
        listed = (await api.get("/apis/storage.k8s.io/v1")).json
        assert (listed["kind"], listed["apiVersion"]) == ("APIResourceList", "v1")
        found = next(r for r in listed["resources"] if r["kind"] == "VolumeAttributesClass")
        assert {key: value for key, value in found.items() if key != "storageVersionHash"} == {
            "name": "volumeattributesclasses",
            "singularName": "volumeattributesclass",
            "namespaced": False,
            "kind": "VolumeAttributesClass",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": ["vac"],
        }


async def test_the_snapshot_group_is_404_before_its_crds_and_lists_three_kinds_after(served: Any) -> None:
    path = "/apis/snapshot.storage.k8s.io/v1"
    async with served() as api:
        before = await api.get(path)
        assert (before.status, before.json["kind"]) == (404, "Status")
        await install_snapshots(api)
        after = await api.get(path)
        listed = {r["kind"] for r in after.json["resources"] if "/" not in r["name"]}
        assert listed == {"VolumeSnapshot", "VolumeSnapshotContent", "VolumeSnapshotClass"}
        assert "snapshot.storage.k8s.io" in [g["name"] for g in (await api.get("/apis")).json["groups"]]


@pytest.mark.parametrize(
    ("place", "resource", "short", "subresources"),
    [
        (
            "/api/v1",
            "pods",
            ["po"],
            "attach binding ephemeralcontainers eviction exec log portforward resize status",
        ),
        ("/api/v1", "persistentvolumeclaims", ["pvc"], "status"),
        ("/api/v1", "namespaces", ["ns"], "finalize status"),
        ("/api/v1", "serviceaccounts", ["sa"], "token"),
        ("/api/v1", "limitranges", ["limits"], ""),
        ("/api/v1", "resourcequotas", ["quota"], "status"),
        ("/api/v1", "podtemplates", None, ""),
        ("/api/v1", "replicationcontrollers", ["rc"], "scale status"),
        ("/api/v1", "componentstatuses", ["cs"], ""),
        ("/apis/apps/v1", "statefulsets", ["sts"], "scale status"),
        ("/apis/events.k8s.io/v1", "events", ["ev"], ""),
        ("/apis/certificates.k8s.io/v1", "certificatesigningrequests", ["csr"], "approval status"),
        ("/apis/resource.k8s.io/v1", "resourceclaims", None, "status"),
        ("/apis/resource.k8s.io/v1", "resourceslices", None, ""),
        ("/apis/resource.k8s.io/v1", "deviceclasses", None, ""),
    ],
)
async def test_resources_with_their_short_names_and_subresources(
    shared: Any, place: str, resource: str, short: list[str] | None, subresources: str
) -> None:
    async with shared() as api:
        listed = {r["name"]: r for r in (await api.get(place)).json["resources"]}
        assert listed[resource].get("shortNames") == short
        below = [name.partition("/")[2] for name in listed if name.startswith(f"{resource}/")]
        assert set(subresources.split()) <= set(below)


async def test_namespaces_have_no_deletecollection_and_reviews_only_create(shared: Any) -> None:
    async with shared() as api:
        core = {r["name"]: r for r in (await api.get("/api/v1")).json["resources"]}
        assert "deletecollection" not in core["namespaces"]["verbs"]
        eviction = core["pods/eviction"]
        assert (eviction["group"], eviction["version"], eviction["kind"]) == ("policy", "v1", "Eviction")
        reviews = (await api.get("/apis/authorization.k8s.io/v1")).json["resources"]
        assert {tuple(r["verbs"]) for r in reviews} == {("create",)}


@pytest.mark.peer("kubectl")
async def test_create_f_and_explain_with_kubectl(tmp_path: Path) -> None:
    """What kubectl asks is read from the audit log: v2 in protobuf for old ones, v3 for new ones."""
    log = tmp_path / "audit.log"
    store = MemoryStore()
    settings = apiserver.ApiServerOptions(data_dir=str(tmp_path), audit_log_path=str(log))
    server = await apiserver.run(settings, store)
    try:
        kubectl = Kubectl(server.kubeconfig, tmp_path)
        manifest = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm"}}'
        assert "configmap/cm created" in await kubectl("create", "-f", "-", text=manifest)
        reported = await kubectl("explain", "pvc.spec")
        assert "volumeName" in reported
        http = client_of(server)
        old = await http.request("GET", "/openapi/v2", headers={"accept": GNOSTIC})
        await http.close()
        assert old.status == 200
        assert old.headers.get("content-type") == GNOSTIC.replace("@", ".")
    finally:
        await server.close(0)
        await store.close()
    asked = [json.loads(line) for line in log.read_text().splitlines()]
    answered = {(a["verb"], a["requestURI"].partition("?")[0]): a["responseStatus"]["code"] for a in asked}
    assert answered["create", "/api/v1/namespaces/default/configmaps"] == 201
    if ("get", "/openapi/v2") in answered:
        assert answered["get", "/openapi/v2"] == 200
    assert ("get", "/swagger-2.0.0.pb-v1") not in answered


async def test_a_stale_openapi_hash_redirects_to_the_current_one(shared: Any) -> None:
    async with shared() as api:
        current = (await api.get("/openapi/v3")).json["paths"]["api/v1"]["serverRelativeURL"]
        stale = await api.get("/openapi/v3/api/v1?hash=stale")
        assert (stale.status, stale.headers.get("location")) == (301, current)
        kept = await api.get(current)
        assert kept.status == 200
        assert kept.headers.get("cache-control") == "public, immutable"


async def test_aggregated_apis_with_a_matching_if_none_match_is_304_without_body(shared: Any) -> None:
    async with shared() as api:
        first = await api.get("/apis", accept=V2)
        assert first.headers.get("vary") == "Accept"
        assert first.headers.get("cache-control") == "public"
        again = await api.get("/apis", accept=V2, if_none_match=first.headers.get("etag"))
        assert (again.status, again.body) == (304, b"")


async def test_healthz_with_a_protobuf_accept_is_ok(shared: Any) -> None:
    async with shared() as api:
        got = await api.get("/healthz", accept=f"{PROTOBUF}, */*")
        assert (got.status, got.body) == (200, b"ok")
        assert got.headers.get("content-type") == "text/plain; charset=utf-8"


async def test_health_checks_are_named_when_asked_verbosely(shared: Any) -> None:
    async with shared() as api:
        reported = (await api.get("/readyz?verbose")).body.decode()
        assert "[+]ping ok\n" in reported
        assert "[+]etcd ok\n" in reported
        assert reported.endswith("readyz check passed\n")
        without = (await api.get("/readyz?verbose&exclude=etcd")).body.decode()
        assert "[+]etcd excluded: ok\n" in without
        for path in ("/readyz/etcd", "/livez/ping", "/healthz/etcd"):
            assert (await api.get(path)).body == b"ok"
        assert (await api.get("/readyz/nonsense")).status == 404


async def test_the_issuer_of_tokens_is_described(shared: Any) -> None:
    async with shared() as api:
        found = (await api.get("/.well-known/openid-configuration")).json
        assert found["jwks_uri"].endswith("/openid/v1/jwks")
        keys = await api.get("/openid/v1/jwks")
        assert keys.json["keys"][0]["kid"]


async def test_what_kubectl_needs_of_openapi_v3(shared: Any) -> None:
    async with shared() as api:
        index = (await api.get("/openapi/v3")).json["paths"]
        document = (await api.get(index["apis/storage.k8s.io/v1"]["serverRelativeURL"])).json
        patch = document["paths"]["/apis/storage.k8s.io/v1/storageclasses/{name}"]["patch"]
        kind = {"group": "storage.k8s.io", "version": "v1", "kind": "StorageClass"}
        assert patch["x-kubernetes-group-version-kind"] == kind
        assert any(p["name"] == "fieldValidation" and p["in"] == "query" for p in patch["parameters"])
        assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]
        schema = document["components"]["schemas"]["io.k8s.api.storage.v1.StorageClass"]
        assert schema["x-kubernetes-group-version-kind"] == [kind]


@pytest.mark.peer("kubectl")
@pytest.mark.parametrize(
    "path",
    [
        "pvc",
        "pvc.spec",
        "pv",
        "pv.spec",
        "sc",
        "storageclass.provisioner",
        "volumeattachment.spec",
        "csidriver.spec",
        "csinode.spec",
        "csistoragecapacity.capacity",
        "vac.driverName",
    ],
)
async def test_explain_says_something_of_every_storage_kind(shared: Any, tmp_path: Path, path: str) -> None:
    kubectl = Kubectl(shared.kubeconfig, Path(os.environ["TMPDIR"]))
    reported = await kubectl("explain", path)
    assert "<empty>" not in reported, reported
