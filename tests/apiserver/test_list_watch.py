"""Lists and watches over HTTPS (section E of the contract)."""

from __future__ import annotations

import asyncio
from typing import Any

DEFAULT = "/api/v1/namespaces/default"
MAPS = f"{DEFAULT}/configmaps"
INITIAL = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"


async def make(api: Any, *names: str, **labels: str) -> list[dict[str, Any]]:
    made = [await api.post(MAPS, {"metadata": {"name": n, "labels": labels}}) for n in names]
    assert all(answer.status == 201 for answer in made)
    return [answer.json for answer in made]


async def make_pod(api: Any, name: str, **spec: Any) -> dict[str, Any]:
    await api.post(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": "default"}})
    spec = {"containers": [{"name": "c", "image": "busybox"}], **spec}
    made = await api.post(f"{DEFAULT}/pods", {"metadata": {"name": name}, "spec": spec})
    assert made.status == 201, made.json
    result: dict[str, Any] = made.json
    return result


def names(listed: Any) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


def version(obj: Any) -> int:
    return int(obj["metadata"]["resourceVersion"])


async def test_an_empty_list_has_an_empty_list(served: Any) -> None:
    async with served() as api:
        listed = (await api.get(MAPS)).json
        assert (listed["kind"], listed["apiVersion"], listed["items"]) == ("ConfigMapList", "v1", [])
        assert version(listed) == api.store.revision


async def test_pages_show_one_snapshot(served: Any) -> None:
    async with served() as api:
        await make(api, "a", "b", "d")
        first = (await api.get(f"{MAPS}?limit=2")).json
        assert names(first) == ["a", "b"]
        assert first["metadata"]["remainingItemCount"] == 1
        await make(api, "c")
        token = first["metadata"]["continue"]
        second = (await api.get(f"{MAPS}?limit=2&continue={token}")).json
        assert names(second) == ["d"]
        assert version(second) == version(first)
        assert "continue" not in second["metadata"]


async def test_pages_of_a_selection_are_full_pages(served: Any) -> None:
    async with served() as api:
        for at in range(6):
            await make(api, f"m{at}", parity="even" if at % 2 == 0 else "odd")
        first = (await api.get(f"{MAPS}?limit=2&labelSelector=parity%3Deven")).json
        assert names(first) == ["m0", "m2"]
        assert "remainingItemCount" not in first["metadata"]
        token = first["metadata"]["continue"]
        second = (await api.get(f"{MAPS}?limit=2&labelSelector=parity%3Deven&continue={token}")).json
        assert names(second) == ["m4"]


async def test_a_page_of_a_compacted_revision_has_expired(served: Any) -> None:
    async with served() as api:
        await make(api, "a", "b", "c")
        token = (await api.get(f"{MAPS}?limit=1")).json["metadata"]["continue"]
        await make(api, "d")
        await api.store.compact(api.store.revision)
        late = await api.get(f"{MAPS}?limit=1&continue={token}")
        assert (late.status, late.json["reason"]) == (410, "Expired")
        exact = await api.get(f"{MAPS}?resourceVersion=1&resourceVersionMatch=Exact")
        assert exact.status == 410
        assert exact.json["message"] == "The resourceVersion for the provided list is too old."


async def test_a_list_at_an_exact_revision_shows_that_state(served: Any) -> None:
    async with served() as api:
        (first,) = await make(api, "a")
        await make(api, "b")
        then = (await api.get(f"{MAPS}?resourceVersion={version(first)}&resourceVersionMatch=Exact")).json
        assert names(then) == ["a"]
        assert version(then) == version(first)
        at_least = (await api.get(f"{MAPS}?resourceVersion={version(first)}")).json
        assert names(at_least) == ["a", "b"]


async def test_invalid_list_options_are_refused(served: Any) -> None:
    async with served() as api:
        for query in (
            "resourceVersionMatch=Exact",
            "resourceVersion=0&resourceVersionMatch=Exact",
            "resourceVersion=1&resourceVersionMatch=Roughly",
            "sendInitialEvents=true",
        ):
            assert (await api.get(f"{MAPS}?{query}")).status == 422, query
        for query in (
            "limit=x",
            "continue=x",
            "labelSelector=a%20b",
            "fieldSelector=spec.x%3D1",
        ):
            assert (await api.get(f"{MAPS}?{query}")).status == 400, query
        unknown = await api.get(f"{DEFAULT}/pods?fieldSelector=spec.colour%3Dred")
        assert unknown.json["message"] == "field label not supported: spec.colour"
        assert (await api.get(f"{MAPS}?unheard=of&timeout=32s")).status == 200


async def test_a_watch_sends_every_change_in_order(served: Any) -> None:
    async with served() as api:
        (a,) = await make(api, "a")
        async with api.watch(f"{MAPS}?resourceVersion={version(a)}") as watch:
            await make(api, "b")
            await api.merge(f"{MAPS}/a", {"data": {"x": "1"}})
            await api.delete(f"{MAPS}/a")
            events = await watch.take(3)
        received = [(e["type"], e["object"]["metadata"]["name"]) for e in events]
        assert received == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]
        assert all(e["object"]["kind"] == "ConfigMap" and e["object"]["apiVersion"] == "v1" for e in events)
        assert events[2]["object"]["data"] == {"x": "1"}
        versions = [version(e["object"]) for e in events]
        assert versions == sorted(versions)


async def test_a_watch_without_a_revision_begins_with_existing_objects(served: Any) -> None:
    async with served() as api:
        await make(api, "a", "b")
        for query in ("", "?resourceVersion=0"):
            async with api.watch(f"{MAPS}{query}") as watch:
                assert sorted(e["object"]["metadata"]["name"] for e in await watch.take(2)) == ["a", "b"]


async def test_initial_events_end_with_a_bookmark(served: Any) -> None:
    async with served() as api:
        async with api.watch(f"{MAPS}?{INITIAL}") as watch:
            event = await watch.next()
            assert event["type"] == "BOOKMARK"
            assert event["object"] == {
                "kind": "ConfigMap",
                "apiVersion": "v1",
                "metadata": {
                    "resourceVersion": str(api.store.revision),
                    "creationTimestamp": None,
                    "annotations": {"k8s.io/initial-events-end": "true"},
                },
            }
            await make(api, "a")
            assert (await watch.next())["type"] == "ADDED"
        async with api.watch(f"{MAPS}?{INITIAL}") as watch:
            assert [e["type"] for e in await watch.take(2)] == ["ADDED", "BOOKMARK"]
        refused = await api.get(f"{MAPS}?watch=true&sendInitialEvents=true")
        assert refused.status == 422


async def test_a_pod_enters_and_leaves_the_selection_of_a_watch(served: Any) -> None:
    async with served() as api:
        pod = await make_pod(api, "p")
        at = version(pod)
        here = f"{DEFAULT}/pods?resourceVersion={at}&fieldSelector=spec.nodeName%3Dn1"
        running = "status.phase!%3DFailed,status.phase!%3DSucceeded"
        busy = f"{DEFAULT}/pods?resourceVersion={at}&fieldSelector={running}"
        async with api.watch(here) as on_node, api.watch(busy) as not_done:
            target = {"kind": "Node", "name": "n1"}
            bound = await api.post(f"{DEFAULT}/pods/p/binding", {"metadata": {"name": "p"}, "target": target})
            assert (bound.status, bound.json["status"]) == (201, "Success")
            added = await on_node.next()
            assert (added["type"], added["object"]["spec"]["nodeName"]) == ("ADDED", "n1")
            assert (await not_done.next())["type"] == "MODIFIED"
            await api.merge(f"{DEFAULT}/pods/p/status", {"status": {"phase": "Succeeded"}})
            left = await not_done.next()
            assert (left["type"], left["object"]["status"]["phase"]) == ("DELETED", "Pending")
            assert version(left["object"]) == api.store.revision
        listed = (await api.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")).json
        assert names(listed) == ["p"]


async def test_a_watch_from_a_compacted_revision_gets_expired_and_ends(served: Any) -> None:
    async with served() as api:
        await make(api, "a", "b")
        await api.store.compact(api.store.revision)
        async with api.watch(f"{MAPS}?resourceVersion=1") as watch:
            event = await watch.next()
            assert event["type"] == "ERROR"
            assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
            assert event["object"]["message"].startswith("too old resource version: 1 (")
            assert await watch.has_ended()


async def test_a_watch_ends_when_its_time_is_up(served: Any) -> None:
    async with served() as api:
        query = f"resourceVersion={api.store.revision}&timeoutSeconds=1&allowWatchBookmarks=true"
        async with api.watch(f"{MAPS}?{query}") as watch:
            assert [(await watch.next())["type"] for _ in "12"] == ["BOOKMARK", "BOOKMARK"]
            assert await watch.has_ended()


async def test_a_watch_of_metadata_and_of_tables(served: Any) -> None:
    async with served() as api:
        await make(api, "a", "b")
        partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        async with api.watch(MAPS, accept=partial) as watch:
            assert (await watch.next())["object"]["kind"] == "PartialObjectMetadata"
        table = "application/json;as=Table;g=meta.k8s.io;v=v1"
        async with api.watch(MAPS, accept=table) as watch:
            first, second = (e["object"] for e in await watch.take(2))
        assert (first["kind"], second["kind"]) == ("Table", "Table")
        assert first["columnDefinitions"][0]["name"] == "Name"
        assert not second.get("columnDefinitions")
        assert first["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


async def test_every_write_of_many_writers_is_sent_once_and_in_order(served: Any) -> None:
    writers, each = 20, 10
    async with served() as api:
        start = api.store.revision
        async with api.watch(f"{MAPS}?resourceVersion={start}") as watch:

            async def write(who: int) -> None:
                for at in range(each):
                    made = await api.post(MAPS, {"metadata": {"name": f"w{who}-{at}"}})
                    assert made.status == 201

            await asyncio.gather(*(write(who) for who in range(writers)))
            events = await watch.take(writers * each)
        versions = [version(e["object"]) for e in events]
        assert versions == list(range(start + 1, start + 1 + writers * each))


async def test_patches_of_many_writers_are_all_applied(served: Any) -> None:
    async with served() as api:
        await make(api, "a")
        patches = [api.merge(f"{MAPS}/a", {"data": {f"k{n}": "v"}}) for n in range(20)]
        assert {answer.status for answer in await asyncio.gather(*patches)} == {200}
        assert len((await api.get(f"{MAPS}/a")).json["data"]) == 20


async def test_an_impossible_revision_is_a_bad_request(served: Any) -> None:
    async with served() as api:
        for version in (str(2**64), "9" * 5000):
            refused = await api.get(f"/api/v1/configmaps?resourceVersion={version}")
            assert refused.status == 400
            assert "value out of range" in refused.json["message"]
