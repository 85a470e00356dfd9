"""Details of responses that upstream's own tests look at."""

from __future__ import annotations

from typing import Any

import pytest

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("path", "plural", "value"),
    [
        ("/api/v1", "pods", "xPOwRZ+Yhw8="),
        ("/apis/apps/v1", "deployments", "8aSe+NMegvE="),
        ("/apis/autoscaling/v1", "horizontalpodautoscalers", "qwQve8ut294="),
    ],
)
async def test_the_storage_version_hash_is_that_of_the_stored_form(
    served: Any, path: str, plural: str, value: str
) -> None:
    async with served() as api:
        entries = (await api.get(path)).json["resources"]
        assert [e["storageVersionHash"] for e in entries if e["name"] == plural] == [value]


async def test_an_object_of_a_namespaced_kind_has_no_path_without_its_namespace(served: Any) -> None:
    async with served() as api:
        answer = await api.get("/api/v1/pods/one")
        assert (answer.status, answer.json["reason"]) == (404, "NotFound")
        assert (await api.post("/api/v1/pods", {})).status == 405


async def test_a_malformed_timeout_is_refused(served: Any) -> None:
    async with served() as api:
        refused = await api.get("/api/v1/namespaces?timeout=invalid")
        assert refused.status == 400
        assert refused.json["message"] == (
            'invalid timeout specified in the request URL - time: invalid duration "invalid"'
        )
        assert (await api.get("/api/v1/namespaces?timeout=34s")).status == 200


async def test_a_review_has_no_table(served: Any) -> None:
    async with served() as api:
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        review = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
        refused = await api.post(path, review, accept=TABLE)
        assert (refused.status, refused.json["reason"]) == (406, "NotAcceptable")
        assert (await api.post(path, review)).status == 201


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_verbose_health_lists_the_parts_of_the_start(served: Any, path: str) -> None:
    async with served() as api:
        lines = (await api.get(f"{path}?verbose")).body.decode().splitlines()
        assert {
            "[+]ping ok",
            "[+]log ok",
            "[+]poststarthook/crd-informer-synced ok",
            "[+]poststarthook/rbac/bootstrap-roles ok",
        } < set(lines)
        assert ("[+]etcd ok" in lines) is (path != "/livez")
