"""Details of responses that upstream's own tests look at."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.apiserver.start_progress import READY_CHECKS, START_CHECKS, StartProgress, StartStep

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("path", "plural", "value"),
    [
        ("/api/v1", "pods", "xPOwRZ+Yhw8="),
        ("/apis/apps/v1", "deployments", "8aSe+NMegvE="),
        ("/apis/autoscaling/v1", "horizontalpodautoscalers", "qwQve8ut294="),
        ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", "jfWCUB31mvA="),
        ("/apis/storage.k8s.io/v1", "volumeattributesclasses", "Bl3MtjZ/n/s="),
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


@pytest.mark.parametrize(
    ("collection", "made"),
    [
        ("/api/v1/namespaces/default/configmaps", {}),
        ("/apis/networking.k8s.io/v1/namespaces/default/ingresses", {"spec": {}}),
        (
            "/apis/events.k8s.io/v1/namespaces/default/events",
            {
                "eventTime": "2026-01-01T00:00:00.000000Z",
                "reportingController": "a/b",
                "reportingInstance": "c",
                "action": "d",
                "reason": "e",
                "type": "Normal",
                "regarding": {"namespace": "default"},
            },
        ),
        (
            "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers",
            {"spec": {"maxReplicas": 1, "scaleTargetRef": {"kind": "Deployment", "name": "d"}}},
        ),
    ],
)
async def test_items_of_a_list_do_not_repeat_its_kind(
    served: Any, collection: str, made: dict[str, Any]
) -> None:
    async with served() as api:
        one = await api.post(collection, {"metadata": {"name": "one"}, **made})
        assert one.status == 201, one.json
        found = (await api.get(collection)).json
        assert found["kind"] == f"{one.json['kind']}List"
        (item,) = [i for i in found["items"] if i["metadata"]["name"] == "one"]
        assert item == {k: v for k, v in one.json.items() if k not in ("kind", "apiVersion")}
        deleted = await api.call("DELETE", f"{collection}?fieldSelector=metadata.name=one")
        assert "kind" not in deleted.json["items"][0]


async def test_items_of_a_list_of_custom_objects_have_their_kind(served: Any) -> None:
    schema = {"openAPIV3Schema": {"type": "object"}}
    spec = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
    }
    kind = {"apiVersion": "example.com/v1", "kind": "Widget"}
    async with served() as api:
        made = {"metadata": {"name": "widgets.example.com"}, "spec": spec}
        await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)
        path = "/apis/example.com/v1/namespaces/default/widgets"
        await api.post(path, {**kind, "metadata": {"name": "a"}})
        (item,) = (await api.get(path)).json["items"]
        assert {key: item[key] for key in kind} == kind


def test_each_check_of_the_start_stands_for_one_step() -> None:
    for step in StartStep:
        progress = StartProgress()
        progress.finish(*(other for other in StartStep if other is not step))
        left = progress.find_unfinished(["ping", *START_CHECKS, *READY_CHECKS])
        assert left
        assert set(left.values()) == {f"not yet: {step.value}"}
        progress.finish(step)
        assert progress.find_unfinished(START_CHECKS) == {}


async def test_a_check_fails_alone_as_long_as_its_step_is_not_finished(served: Any) -> None:
    async with served() as api:
        progress = StartProgress()
        progress.finish(*(step for step in StartStep if step is not StartStep.CLIENT_CA))
        api.server._app.health._progress = progress
        failed = "poststarthook/start-cluster-authentication-info-controller"
        answer = await api.get("/readyz?verbose")
        assert answer.status == 500
        lines = answer.body.decode().splitlines()
        assert [line for line in lines if line.startswith("[-]")] == [f"[-]{failed} failed: reason withheld"]
        assert (await api.get(f"/readyz/{failed}")).status == 500
        assert (await api.get("/readyz/poststarthook/rbac/bootstrap-roles")).status == 200
        assert (await api.get("/livez")).status == 200


async def test_the_system_priority_classes_exist(served: Any) -> None:
    async with served() as api:
        found = (await api.get("/apis/scheduling.k8s.io/v1/priorityclasses")).json["items"]
        assert {item["metadata"]["name"]: item["value"] for item in found} == {
            "system-cluster-critical": 2_000_000_000,
            "system-node-critical": 2_000_001_000,
        }
