"""Contract api-server I, leases and events: the cases to test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.api_server.samples import COORDINATION, lease, make
from tests.loops.inprocess import world
from volplane.api import core
from volplane.api.events import Event
from volplane.api.meta import ObjectMeta
from volplane.client.client import Client

EVENTS = "events.k8s.io/v1"


def note(name: str = "e", **more: Any) -> Any:
    return {
        "metadata": {"name": name},
        "eventTime": "2026-01-02T03:04:05.000000Z",
        "reportingController": "example.com/scheduler",
        "reportingInstance": "s-1",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "regarding": {"kind": "Pod", "name": "x", "namespace": ""},
        "note": "assigned",
        **more,
    }


def placed(api: Any, **more: Any) -> Any:
    made = note(**more)
    made["regarding"]["namespace"] = api.space
    return made


async def test_of_two_electors_the_second_put_with_a_stale_rv_is_409(shared: Any) -> None:
    async with shared() as api:
        path = api.at("leases", group=COORDINATION)
        seen = await make(api, path, lease(holderIdentity=""))
        first = await api.put(f"{path}/leader", {**seen, "spec": {**seen["spec"], "holderIdentity": "a"}})
        second = await api.put(f"{path}/leader", {**seen, "spec": {**seen["spec"], "holderIdentity": "b"}})
        assert (first.status, second.status) == (200, 409)


async def test_renew_time_is_echoed_unchanged(shared: Any) -> None:
    async with shared() as api:
        time = "2026-01-02T03:04:05.123456Z"
        made = await make(api, api.at("leases", group=COORDINATION), lease(renewTime=time))
        assert made["spec"]["renewTime"] == time


async def test_an_empty_holder_is_stored_empty(shared: Any) -> None:
    async with shared() as api:
        path = api.at("leases", group=COORDINATION)
        made = await make(api, path, lease())
        given = {**made["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        put = await api.put(f"{path}/leader", {**made, "spec": given})
        assert put.status == 200
        assert (await api.get(f"{path}/leader")).json["spec"]["holderIdentity"] == ""


async def test_created_through_events_k8s_io_and_read_through_v1(shared: Any) -> None:
    async with shared() as api:
        made = await make(api, api.at("events", group=EVENTS), placed(api))
        assert (made["kind"], made["apiVersion"]) == ("Event", EVENTS)
        old = (await api.get(api.at("events", "e"))).json
        assert (old["kind"], old["apiVersion"], old["message"]) == ("Event", "v1", made["note"])
        assert old["involvedObject"] == made["regarding"]
        assert old["reportingComponent"] == made["reportingController"]
        assert old["metadata"]["uid"] == made["metadata"]["uid"]
        found = (await api.get(f"{api.at('events')}?fieldSelector=involvedObject.name%3Dx")).json["items"]
        assert [e["metadata"]["name"] for e in found] == ["e"]
        regarding = f"{api.at('events', group=EVENTS)}?fieldSelector=regarding.name%3Dx"
        assert len((await api.get(regarding)).json["items"]) == 1


async def test_created_through_v1_and_read_through_events_k8s_io(shared: Any) -> None:
    async with shared() as api:
        old = {
            "metadata": {"name": "old"},
            "involvedObject": {"kind": "Pod", "name": "y", "namespace": api.space},
            "reason": "Pulled",
            "message": "got it",
            "source": {"component": "kubelet", "host": "n1"},
            "firstTimestamp": "2026-01-02T03:04:05Z",
            "lastTimestamp": "2026-01-02T03:04:06Z",
            "count": 2,
            "type": "Normal",
        }
        await make(api, api.at("events"), old)
        new = (await api.get(api.at("events", "old", group=EVENTS))).json
        assert (new["apiVersion"], new["note"]) == (EVENTS, "got it")
        assert new["regarding"]["name"] == "y"
        assert new["deprecatedSource"] == {"component": "kubelet", "host": "n1"}
        assert new["deprecatedFirstTimestamp"] == "2026-01-02T03:04:05Z"
        assert new["deprecatedLastTimestamp"] == "2026-01-02T03:04:06Z"
        assert new["deprecatedCount"] == 2


async def test_both_faces_are_watched_and_patched(shared: Any) -> None:
    async with shared() as api:
        new, old = api.at("events", group=EVENTS), api.at("events")
        async with api.watch(new) as face, api.watch(old) as other:
            await make(api, new, placed(api))
            series = {"count": 2, "lastObservedTime": "2026-01-02T03:05:05.000000Z"}
            patched = await api.call(
                "PATCH", f"{new}/e", {"series": series}, type="application/strategic-merge-patch+json"
            )
            assert (patched.status, patched.json["series"]) == (200, series)
            assert patched.json["apiVersion"] == EVENTS
            await api.delete(f"{new}/e")
            reported = [await watch.take(3) for watch in (face, other)]
        for events, version, text in zip(reported, (EVENTS, "v1"), ("note", "message"), strict=True):
            assert [e["type"] for e in events] == ["ADDED", "MODIFIED", "DELETED"]
            assert {e["object"]["apiVersion"] for e in events} == {version}
            assert {e["object"][text] for e in events} == {"assigned"}


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"eventTime": None}, "eventTime: Required value"),
        ({"reportingController": ""}, "reportingController: Required value"),
        ({"reportingInstance": ""}, "reportingInstance: Required value"),
        ({"action": ""}, "action: Required value"),
        ({"reason": ""}, "reason: Required value"),
        ({"type": "Odd"}, 'type: Invalid value: "": has invalid value: Odd'),
        ({"note": "x" * 1025}, "can have at most 1024 characters"),
        ({"deprecatedCount": 1}, 'count: Invalid value: "": needs to be unset'),
        (
            {"deprecatedFirstTimestamp": "2026-01-02T03:04:05Z"},
            'firstTimestamp: Invalid value: "": needs to be unset',
        ),
        ({"deprecatedSource": {"component": "a"}}, 'source: Invalid value: "": needs to be unset'),
        ({"series": {"count": 1}}, 'series.count: Invalid value: "": should be at least 2'),
        (
            {"series": {"count": 2}},
            "series.lastObservedTime: Required value",
        ),
    ],
)
async def test_events_k8s_io_is_strict_on_create(shared: Any, change: Any, reported: str) -> None:
    async with shared() as api:
        refused = await api.post(api.at("events", group=EVENTS), {**placed(api), **change})
        assert refused.status == 422, refused.json
        assert reported in refused.json["message"]


async def test_a_v1_event_lies_where_its_subject_lies(shared: Any) -> None:
    async with shared() as api:
        event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "namespace": "elsewhere"}}
        refused = await api.post(api.at("events"), event)
        assert refused.status == 422
        assert (
            'involvedObject.namespace: Invalid value: "elsewhere": does not match event.namespace'
            in (refused.json["message"])
        )
        cluster = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "n"}}
        assert (await api.post(api.at("events"), cluster)).status == 422
        assert (await api.post("/api/v1/namespaces/default/events", cluster)).status == 201


@pytest.mark.virtual
async def test_after_an_hour_deleted_is_watched() -> None:
    async with world() as around:
        client: Client = around.client
        event = core.Event(
            metadata=ObjectMeta(name="e", namespace="default"),
            involved_object=core.ObjectReference(kind="Pod", name="x", namespace="default"),
        )
        await client.create(event)
        seen: list[str] = []

        async def watch() -> None:
            async for change in client.watch(Event, "default"):
                seen.extend([str(change.type)] if change.object is not None else [])

        await asyncio.sleep(3400)
        task = asyncio.create_task(watch())
        await asyncio.sleep(100)
        assert await client.find(core.Event, "e", "default") is not None
        assert seen == ["ADDED"]
        await asyncio.sleep(200)
        task.cancel()
        assert await client.find(core.Event, "e", "default") is None
        assert seen == ["ADDED", "DELETED"]
