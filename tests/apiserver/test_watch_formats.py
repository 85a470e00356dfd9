"""Watches as tables and as metadata, and what cannot be had in another form."""

from __future__ import annotations

from typing import Any

import pytest

MAPS = "/api/v1/namespaces/default/configmaps"

META = "g=meta.k8s.io;v="
TABLE, PARTIAL = "application/json;as=Table", "application/json;as=PartialObjectMetadata"


def config(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize("include", ["", "Metadata", "None", "Object"])
async def test_a_watch_sends_tables_and_the_columns_once(served: Any, version: str, include: str) -> None:
    async with served() as api:
        path = f"{MAPS}?resourceVersion=0&fieldSelector=metadata.name=a&includeObject={include}"
        async with api.watch(path, accept=f"{TABLE};{META}{version}") as events:
            await api.post(MAPS, config("a", x="1"))
            await api.merge(f"{MAPS}/a", {"data": {"y": "2"}})
            await api.delete(f"{MAPS}/a")
            got = await events.take(3)
        assert [event["type"] for event in got] == ["ADDED", "MODIFIED", "DELETED"]
        tables = [event["object"] for event in got]
        assert {(t["kind"], t["apiVersion"]) for t in tables} == {("Table", f"meta.k8s.io/{version}")}
        assert [c["name"] for c in tables[0]["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert [t["columnDefinitions"] for t in tables[1:]] == [None, None]
        rows = [row for t in tables for row in t["rows"]]
        assert [row["cells"][:2] for row in rows] == [["a", 1], ["a", 2], ["a", 2]]
        objects = [row["object"] for row in rows]
        if include == "None":
            assert objects == [None] * 3
        elif include == "Object":
            assert [o["data"] for o in objects] == [{"x": "1"}, {"x": "1", "y": "2"}, {"x": "1", "y": "2"}]
        else:
            form = ("PartialObjectMetadata", f"meta.k8s.io/{version}")
            assert {(o["kind"], o["apiVersion"]) for o in objects} == {form}
        assert [t["metadata"]["resourceVersion"] for t in tables] == sorted(
            t["metadata"]["resourceVersion"] for t in tables
        )


@pytest.mark.parametrize(
    ("accept", "kind"), [(f"{TABLE};{META}v1", "Table"), (f"{PARTIAL};{META}v1", "PartialObjectMetadata")]
)
async def test_bookmarks_have_the_form_of_the_other_events(served: Any, accept: str, kind: str) -> None:
    async with served() as api:
        path = f"{MAPS}?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        async with api.watch(path, accept=accept) as events:
            while (event := await events.next())["type"] != "BOOKMARK":
                pass
        assert (event["object"]["kind"], event["object"]["apiVersion"]) == (kind, "meta.k8s.io/v1")
        assert int(event["object"]["metadata"]["resourceVersion"]) > 0


ALL = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
REFUSED = {
    "a table in protobuf": ("application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1", ALL),
    "another version": (f"{PARTIAL};{META}v1alpha1", ALL),
    "another group": (f"{PARTIAL};g=k8s.io;v=v1", ALL),
    "another kind": (f"application/json;as=PartialObject;{META}v1", ALL),
    "no kind": (f"application/json;{META}v1", ALL),
    "an ordinary kind": ("application/json;as=Service;g=;v=v1", ALL),
}


@pytest.mark.parametrize(("accept", "listed"), REFUSED.values(), ids=REFUSED)
async def test_forms_that_do_not_exist_are_refused(served: Any, accept: str, listed: str) -> None:
    async with served() as api:
        for path in ("/api/v1/namespaces/default", MAPS, f"{MAPS}?watch=true&timeoutSeconds=1"):
            answer = await api.get(path, accept=accept)
            assert (answer.status, answer.json["reason"]) == (406, "NotAcceptable")
            assert answer.json["message"] == f"only the following media types are accepted: {listed}"


@pytest.mark.parametrize("accept", ["application/yaml", f"application/yaml;as=Table;{META}v1"])
async def test_a_watch_has_no_form_in_yaml(served: Any, accept: str) -> None:
    async with served() as api:
        answer = await api.get(f"{MAPS}?watch=true&timeoutSeconds=1", accept=accept)
        assert (answer.status, answer.json["message"]) == (
            406,
            "only the following media types are accepted: application/json;stream=watch, "
            "application/vnd.kubernetes.protobuf;stream=watch",
        )


async def test_an_unknown_amount_of_the_object_is_refused_before_the_watch_begins(served: Any) -> None:
    async with served() as api:
        path = f"{MAPS}?watch=true&timeoutSeconds=1&includeObject=unrecognized"
        answer = await api.get(path, accept=f"{TABLE};{META}v1beta1")
        assert answer.status == 400
        assert (
            "Invalid value: \"unrecognized\": must be 'Metadata', 'Object', 'None', or empty"
            in (answer.json["message"])
        )
