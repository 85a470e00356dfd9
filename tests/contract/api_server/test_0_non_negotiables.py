"""Contract api-server 0: each breaks a real client when missing."""

from __future__ import annotations

import re
from typing import Any

from tests.apiserver.test_streams import pod_on_a_node
from tests.contract.api_server.samples import (
    BODIES,
    COORDINATION,
    JSON,
    PROTOBUF,
    STORAGE,
    attachment,
    claim,
    config,
    lease,
    make,
    make_pod,
)
from volplane.web import websocket

JSON_PATCH = "application/json-patch+json"


async def test_1_protobuf_bodies_are_decoded_and_answered_in_json(shared: Any) -> None:
    async with shared() as api:
        path = f"{STORAGE}/csidrivers"
        made = await api.post(path, BODIES["a csi driver"], type=PROTOBUF, accept=f"{PROTOBUF},{JSON}")
        assert (made.status, made.headers.get("content-type")) == (201, JSON)
        assert made.json["kind"] == "CSIDriver"


async def test_2_send_initial_events_is_implemented(shared: Any) -> None:
    async with shared() as api:
        query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        async with api.watch(f"{api.at('secrets')}?{query}") as watch:
            assert (await watch.next())["type"] == "BOOKMARK"


async def test_3_resource_versions_are_decimal_and_strictly_increasing(shared: Any) -> None:
    async with shared() as api:
        versions = []
        for n in range(5):
            kind = ("configmaps", "secrets")[n % 2]
            made = await make(api, api.at(kind), {"metadata": {"name": f"m{n}"}})
            versions.append(made["metadata"]["resourceVersion"])
        assert all(re.fullmatch(r"[1-9]\d*", v) for v in versions)
        assert [int(v) for v in versions] == sorted({int(v) for v in versions})


async def test_4_the_content_type_is_exactly_application_json(shared: Any) -> None:
    async with shared() as api:
        for path in (api.at("pods"), api.at("pods", "none"), "/version", "/api", "/nowhere"):
            assert (await api.get(path)).headers.get("content-type") == JSON, path


async def test_5_microtimes_have_six_digits_and_times_none(shared: Any) -> None:
    async with shared() as api:
        body = lease(renewTime="2026-01-02T03:04:05Z", acquireTime="2026-01-02T03:04:05.5Z")
        made = await make(api, api.at("leases", group=COORDINATION), body)
        assert made["spec"]["renewTime"] == "2026-01-02T03:04:05.000000Z"
        assert made["spec"]["acquireTime"] == "2026-01-02T03:04:05.500000Z"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["metadata"]["creationTimestamp"])


async def test_6_json_patch_replaces_and_tests_what_is_absent(shared: Any) -> None:
    async with shared() as api:
        await make(api, api.at("configmaps"), config())
        ops = [
            {"op": "test", "path": "/data", "value": None},
            {"op": "replace", "path": "/data", "value": {"a": "b"}},
        ]
        patched = await api.call("PATCH", api.at("configmaps", "m"), ops, type=JSON_PATCH)
        assert (patched.status, patched.json["data"]) == (200, {"a": "b"})


async def test_7_old_watches_get_an_event_and_old_lists_a_410(served: Any) -> None:
    async with served() as api:
        path = "/api/v1/namespaces/default/configmaps"
        for name in "abc":
            await make(api, path, config(name))
        token = (await api.get(f"{path}?limit=1")).json["metadata"]["continue"]
        await make(api, path, config("d"))
        await api.store.compact(api.store.revision)
        async with api.watch(f"{path}?resourceVersion=1") as watch:
            event = await watch.next()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == (
            "ERROR",
            410,
            "Expired",
        )
        late = await api.get(f"{path}?limit=1&continue={token}")
        assert (late.status, late.json["reason"]) == (410, "Expired")


async def test_8_status_bodies_are_complete(shared: Any) -> None:
    async with shared() as api:
        missing = (await api.get(api.at("persistentvolumeclaims", "none"))).json
        assert missing == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": 'persistentvolumeclaims "none" not found',
            "reason": "NotFound",
            "details": {"name": "none", "kind": "persistentvolumeclaims"},
            "code": 404,
        }
        invalid = (await api.post(api.at("persistentvolumeclaims"), {"metadata": {"name": "x"}})).json
        assert (invalid["code"], invalid["details"]["kind"]) == (422, "PersistentVolumeClaim")


async def test_9_the_last_finalizer_takes_the_object_in_the_same_write(shared: Any) -> None:
    async with shared() as api:
        path = api.at("persistentvolumeclaims", "data")
        await make(api, api.at("persistentvolumeclaims"), claim())
        await api.delete(path)
        async with api.watch(api.at("persistentvolumeclaims")) as watch:
            assert (await watch.next())["type"] == "ADDED"
            patched = await api.merge(path, {"metadata": {"finalizers": None}})
            assert (patched.status, patched.json["kind"]) == (200, "PersistentVolumeClaim")
            assert (await watch.next())["type"] == "DELETED"
        assert (await api.get(path)).status == 404


async def test_10_main_ignores_status_and_status_ignores_spec(shared: Any) -> None:
    async with shared() as api:
        await make_pod(api)
        main = await api.merge(api.at("pods", "p"), {"status": {"phase": "Running"}})
        assert main.json["status"]["phase"] == "Pending"
        both = {"spec": {"activeDeadlineSeconds": 5}, "status": {"phase": "Running"}}
        status = await api.merge(api.at("pods", "p", "status"), both)
        assert status.json["status"]["phase"] == "Running"
        assert "activeDeadlineSeconds" not in status.json["spec"]
        path = f"{STORAGE}/volumeattachments"
        await make(api, path, attachment("va-0"))
        labelled = await api.merge(f"{path}/va-0/status", {"metadata": {"labels": {"a": "b"}}})
        assert "labels" not in labelled.json["metadata"]


async def test_11_openapi_in_both_versions(shared: Any) -> None:
    async with shared() as api:
        gnostic = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
        old = await api.get("/openapi/v2", accept=gnostic)
        assert (old.status, old.body[:5]) == (200, b"\n\x032.0")
        assert (await api.get("/openapi/v2")).json["swagger"] == "2.0"
        assert "api/v1" in (await api.get("/openapi/v3")).json["paths"]


async def test_12_items_is_a_list_and_objects_carry_their_kind(shared: Any) -> None:
    async with shared() as api:
        empty = (await api.get(api.at("configmaps"))).json
        assert (empty["kind"], empty["apiVersion"], empty["items"]) == ("ConfigMapList", "v1", [])
        made = await make(api, api.at("configmaps"), config())
        assert (made["kind"], made["apiVersion"]) == ("ConfigMap", "v1")


async def test_14_field_selectors_work_on_list_and_watch(shared: Any) -> None:
    async with shared() as api:
        await make_pod(api, nodeName="n1")
        await make_pod(api, "q")
        query = "fieldSelector=spec.nodeName%3Dn1"
        listed = (await api.get(f"{api.at('pods')}?{query}")).json["items"]
        assert [p["metadata"]["name"] for p in listed] == ["p"]
        async with api.watch(f"{api.at('pods')}?{query}") as watch:
            assert (await watch.next())["object"]["metadata"]["name"] == "p"
            bound = {"metadata": {"name": "q"}, "target": {"kind": "Node", "name": "n1"}}
            await api.post(api.at("pods", "q", "binding"), bound)
            assert (await watch.next())["type"] == "ADDED"
            await api.delete(api.at("pods", "p"), {"gracePeriodSeconds": 0})
            assert (await watch.next())["type"] == "DELETED"


async def test_13_exec_takes_websocket_v5_and_spdy(served: Any) -> None:
    async with served() as api, pod_on_a_node(api) as node:
        path = "/api/v1/namespaces/default/pods/p/exec?command=sh&stdin=true&stdout=true"
        socket = await websocket.connect_websocket(api.http, path, protocols=["v5.channel.k8s.io"])
        assert socket.protocol == "v5.channel.k8s.io"
        await socket.send(b"\0hello")
        assert await socket.receive() == b"\1HELLO"
        await socket.close()
        headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")]
        headers += [("X-Stream-Protocol-Version", f"v{n}.channel.k8s.io") for n in (5, 4)]
        answer, stream = await api.http.upgrade(path, headers, method="POST")
        assert (answer.status, answer.headers.get("upgrade")) == (101, "SPDY/3.1")
        assert stream is not None
        stream.close()
        assert [method for method, _, _ in node.requests] == ["GET", "POST"]
