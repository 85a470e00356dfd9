"""Contract api-server E, list and watch: the cases to test."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.apiserver.conftest import Api, client_of
from tests.contract.api_server.samples import config, make, make_pod
from volplane import apiserver
from volplane.store.sqlite import SqliteStore

INITIAL = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
END = {"k8s.io/initial-events-end": "true"}


def binding(name: str, node: str) -> Any:
    return {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}


async def test_pages_of_3_pods_with_limit_2_show_the_first_snapshot(shared: Any) -> None:
    async with shared() as api:
        for name in ("a", "b", "c"):
            await make_pod(api, name)
        first = (await api.get(f"{api.at('pods')}?limit=2")).json
        assert [i["metadata"]["name"] for i in first["items"]] == ["a", "b"]
        assert first["metadata"]["remainingItemCount"] == 1
        await make_pod(api, "bb")
        token = first["metadata"]["continue"]
        second = (await api.get(f"{api.at('pods')}?limit=2&continue={token}")).json
        assert [i["metadata"]["name"] for i in second["items"]] == ["c"]
        assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}


async def test_initial_events_of_an_empty_collection_begin_with_the_annotated_bookmark(shared: Any) -> None:
    async with shared() as api:
        async with api.watch(f"{api.at('configmaps')}?{INITIAL}") as watch:
            first = await watch.next()
            assert first["type"] == "BOOKMARK"
            assert (first["object"]["kind"], first["object"]["apiVersion"]) == ("ConfigMap", "v1")
            assert first["object"]["metadata"]["annotations"] == END
            revision = int(first["object"]["metadata"]["resourceVersion"])
            await make(api, api.at("configmaps"), config())
            added = await watch.next()
            assert added["type"] == "ADDED"
            assert int(added["object"]["metadata"]["resourceVersion"]) > revision
        refused = await api.get(f"{api.at('configmaps')}?watch=true&sendInitialEvents=true")
        assert (refused.status, refused.json["reason"]) == (422, "Invalid")


async def test_initial_events_come_before_the_bookmark_and_live_ones_after(shared: Any) -> None:
    async with shared() as api:
        made = [await make(api, api.at("configmaps"), config(name)) for name in "ab"]
        version = made[-1]["metadata"]["resourceVersion"]
        async with api.watch(f"{api.at('configmaps')}?{INITIAL}&resourceVersion={version}") as watch:
            events = await watch.take(3)
            assert [e["type"] for e in events] == ["ADDED", "ADDED", "BOOKMARK"]
            assert events[-1]["object"]["metadata"]["annotations"] == END
            await api.delete(api.at("configmaps", "a"))
            assert (await watch.next())["type"] == "DELETED"


async def test_a_bound_pod_is_added_to_the_watch_of_its_node(shared: Any) -> None:
    async with shared() as api:
        await make_pod(api)
        selector = "fieldSelector=spec.nodeName%3Dn1"
        now = (await api.get(api.at("pods"))).json["metadata"]["resourceVersion"]
        async with api.watch(f"{api.at('pods')}?{selector}&resourceVersion={now}") as watch:
            assert (await api.post(api.at("pods", "p", "binding"), binding("p", "n1"))).status == 201
            event = await watch.next()
        assert (event["type"], event["object"]["spec"]["nodeName"]) == ("ADDED", "n1")
        assert len((await api.get(f"{api.at('pods')}?{selector}")).json["items"]) == 1


async def test_a_pod_that_succeeds_is_deleted_from_the_schedulers_watch(shared: Any) -> None:
    async with shared() as api:
        await make_pod(api)
        selector = "fieldSelector=status.phase%21%3DFailed%2Cstatus.phase%21%3DSucceeded"
        async with api.watch(f"{api.at('pods')}?{selector}") as watch:
            assert (await watch.next())["type"] == "ADDED"
            done = await api.merge(api.at("pods", "p", "status"), {"status": {"phase": "Succeeded"}})
            event = await watch.next()
        assert event["type"] == "DELETED"
        # The old state under the new revision.
        assert event["object"]["status"]["phase"] == "Pending"
        assert event["object"]["metadata"]["resourceVersion"] == done.json["metadata"]["resourceVersion"]


async def test_watch_rv_1_after_compaction_is_200_then_410_and_the_end(served: Any) -> None:
    async with served() as api:
        path = "/api/v1/namespaces/default/configmaps"
        for name in "abc":
            await make(api, path, config(name))
        await api.store.compact(api.store.revision)
        async with api.watch(f"{path}?resourceVersion=1") as watch:
            event = await watch.next()
            assert await watch.has_ended()
        assert event["type"] == "ERROR"
        status = event["object"]
        assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
        assert status["message"].startswith("too old resource version: 1 (")
        old = await api.get(f"{path}?resourceVersion=1&resourceVersionMatch=Exact")
        assert (old.status, old.json["reason"], old.json["message"]) == (
            410,
            "Expired",
            "The resourceVersion for the provided list is too old.",
        )


async def test_list_rv_1000_ahead_is_504_with_its_cause(shared: Any) -> None:
    async with shared() as api:
        current = int((await api.get(api.at("pods"))).json["metadata"]["resourceVersion"])
        ahead = await api.get(f"{api.at('pods')}?resourceVersion={current + 1000}")
        assert (ahead.status, ahead.json["reason"]) == (504, "Timeout")
        assert ahead.json["message"].startswith(
            f"Timeout: Too large resource version: {current + 1000}, current: "
        )
        assert ahead.json["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
        assert ahead.json["details"]["retryAfterSeconds"] == 1
        assert ahead.headers.get("retry-after") == "1"


async def test_1000_concurrent_writers_one_event_each_and_no_rv_reuse_after_a_restart(tmp_path: Path) -> None:
    async def written(api: Api, names: range) -> list[int]:
        path = "/api/v1/namespaces/default/configmaps"
        start = (await api.get(path)).json["metadata"]["resourceVersion"]
        async with api.watch(f"{path}?resourceVersion={start}") as watch:
            made = await asyncio.gather(*(api.post(path, config(f"m{n}")) for n in names))
            assert {m.status for m in made} == {201}
            events = await watch.take(len(names))
        reported = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
        assert sorted(int(m.json["metadata"]["resourceVersion"]) for m in made) == reported
        assert len(set(reported)) == len(names)
        return reported

    seen: list[int] = []
    for names in (range(1000), range(1000, 1100)):
        store = await SqliteStore.open(tmp_path / "state.db")
        server = await apiserver.run(apiserver.ApiServerOptions(data_dir=str(tmp_path)), store)
        http = client_of(server)
        try:
            seen += await written(Api(server, store, http), names)  # type: ignore[arg-type]
        finally:
            await http.close()
            await server.close(0)
            await store.close()
    assert seen == sorted(set(seen))


# The prose


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("resourceVersionMatch=Exact", 422),
        ("resourceVersionMatch=Exact&resourceVersion=0", 422),
        ("resourceVersionMatch=Odd&resourceVersion=1", 422),
        ("sendInitialEvents=true", 422),
        ("continue=nonsense", 400),
        ("labelSelector=a%3D%3D%3Db", 400),
        ("fieldSelector=spec.nodeName%3Dx", 400),
        ("resourceVersion=0&limit=1", 200),
    ],
)
async def test_list_options(shared: Any, query: str, code: int) -> None:
    async with shared() as api:
        got = await api.get(f"{api.at('configmaps')}?{query}")
        assert got.status == code, got.json


async def test_unknown_field_selectors_are_refused_in_the_kinds_words(shared: Any) -> None:
    async with shared() as api:
        new = await api.get(f"{api.at('configmaps')}?fieldSelector=x%3D1")
        assert new.json["message"].endswith(
            '"x" is not a known field selector: only "metadata.name", "metadata.namespace"'
        )
        old = await api.get(f"{api.at('pods')}?fieldSelector=x%3D1")
        assert "field label not supported: x" in old.json["message"]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("a=1", "x"),
        ("a==1", "x"),
        ("a!=1", "yz"),
        ("a in (1,2)", "xy"),
        ("a notin (1)", "yz"),
        ("a", "xy"),
        ("!a", "z"),
        ("a>1", "y"),
        ("a<2", "x"),
        ("a,a!=2", "x"),
    ],
)
async def test_label_selectors(shared: Any, selector: str, names: str) -> None:
    async with shared() as api:
        for name, labels in (("x", {"a": "1"}), ("y", {"a": "2"}), ("z", {})):
            await make(api, api.at("configmaps"), {"metadata": {"name": name, "labels": labels}})
        found = (await api.get(f"{api.at('configmaps')}?labelSelector={quote(selector)}")).json["items"]
        assert "".join(i["metadata"]["name"] for i in found) == names


async def test_bookmarks_carry_kind_and_revision_only(shared: Any) -> None:
    async with shared() as api:
        path = f"{api.at('configmaps')}?allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion="
        now = (await api.get(api.at("configmaps"))).json["metadata"]["resourceVersion"]
        async with api.watch(path + now) as watch:
            mark = await watch.next()
            assert mark["type"] == "BOOKMARK"
            assert set(mark["object"]) == {"kind", "apiVersion", "metadata"}
            assert mark["object"]["metadata"]["creationTimestamp"] is None


async def test_the_head_of_a_watch_comes_without_events(shared: Any) -> None:
    async with shared() as api:
        path = f"{api.at('configmaps')}?watch=1&timeoutSeconds=60"
        async with api.http.stream("GET", path) as (answer, _):
            assert answer.status == 200
            assert answer.headers.get("content-type") == "application/json"
            assert answer.headers.get("transfer-encoding") == "chunked"


async def test_get_takes_a_version_and_a_name_with_watch_is_no_watch(shared: Any) -> None:
    async with shared() as api:
        made = await make(api, api.at("configmaps"), config())
        version = made["metadata"]["resourceVersion"]
        assert (await api.get(f"{api.at('configmaps', 'm')}?resourceVersion={version}")).json == made
        assert (await api.get(f"{api.at('configmaps', 'm')}?watch=true")).json["kind"] == "ConfigMap"
