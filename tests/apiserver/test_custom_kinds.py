"""A kind that is added while the server runs is served by the same verbs, as plain data."""

from __future__ import annotations

from typing import Any

from volplane.api.kinds import STATUS, Kind

SNAPSHOT = Kind(
    None,
    "snapshot.example.com",
    "v1",
    "Snapshot",
    "snapshots",
    subresources=(STATUS,),
    unconditional_update=False,
    status_metadata=False,
    generation="counted",
)
PATH = "/apis/snapshot.example.com/v1/namespaces/default/snapshots"


def snapshot(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "snapshot.example.com/v1",
        "kind": "Snapshot",
        "metadata": {"name": "s"},
        "spec": spec,
    }


async def test_a_custom_kind_can_be_added_and_removed(served: Any) -> None:
    async with served() as api:
        registry = api.server.backend.registry
        assert (await api.get(PATH)).status == 404
        registry.add(SNAPSHOT)
        assert (await api.get(PATH)).json["kind"] == "SnapshotList"
        assert (await api.get("/apis/snapshot.example.com/v1")).status == 200
        registry.remove(SNAPSHOT)
        assert (await api.get(PATH)).status == 404
        assert (await api.get("/apis/snapshot.example.com/v1")).status == 404


async def test_custom_objects_keep_undeclared_fields(served: Any) -> None:
    async with served() as api:
        api.server.backend.registry.add(SNAPSHOT)
        start = api.store.revision
        async with api.watch(f"{PATH}?resourceVersion={start}") as watch:
            made = await api.post(PATH, {**snapshot(source={"deep": [1, "a"]}), "status": {"ready": True}})
            assert made.status == 201, made.json
            assert made.json["spec"] == {"source": {"deep": [1, "a"]}}
            assert "status" not in made.json
            assert made.json["metadata"]["generation"] == 1
            assert made.json["metadata"]["uid"]
            patched = await api.merge(f"{PATH}/s", {"spec": {"size": 1}, "status": {"ready": True}})
            assert patched.json["metadata"]["generation"] == 2
            assert "status" not in patched.json
            replaced = await api.call(
                "PATCH",
                f"{PATH}/s/status",
                [{"op": "replace", "path": "/status", "value": {"ready": False}}],
                type="application/json-patch+json",
            )
            assert (replaced.status, replaced.json["status"]) == (200, {"ready": False})
            assert replaced.json["metadata"]["generation"] == 2
            again = await api.merge(f"{PATH}/s/status", {"status": {"ready": False}})
            assert again.json == replaced.json
            assert (await api.put(f"{PATH}/s", snapshot())).status == 422
            gone = await api.delete(f"{PATH}/s")
            assert gone.json["details"]["kind"] == "snapshots"
            events = await watch.take(4)
        assert [e["type"] for e in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
        assert events[1]["object"] == patched.json


async def test_custom_objects_have_no_strategic_merge(served: Any) -> None:
    async with served() as api:
        api.server.backend.registry.add(SNAPSHOT)
        await api.post(PATH, snapshot())
        patched = await api.call("PATCH", f"{PATH}/s", {}, type="application/strategic-merge-patch+json")
        assert (patched.status, patched.json["reason"]) == (415, "UnsupportedMediaType")
