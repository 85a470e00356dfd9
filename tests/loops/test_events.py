"""Events: as `kubectl describe` expects them, counted, combined, bounded, and never in the way."""

from __future__ import annotations

import asyncio

import pytest

from tests.loops.inprocess import world
from volplane.api.core import ConfigMap, Event, Node
from volplane.api.errors import APIError, Unavailable
from volplane.api.meta import ObjectMeta
from volplane.client.client import Client
from volplane.loops import events as module
from volplane.loops.events import EventRecorder

pytestmark = pytest.mark.virtual

A = ConfigMap(metadata=ObjectMeta(name="a", namespace="default", uid="u-1", resource_version="7"))


async def list_events(client: Client, namespace: str = "default") -> list[Event]:
    found = await client.list(Event, namespace)
    return sorted(found, key=lambda e: e.metadata.name)


async def test_an_event_has_the_shape_that_kubectl_describe_finds() -> None:
    async with world() as w, EventRecorder(w.client, "binder", host="worker-1") as events:
        events.normal(A, "Bound", "all is well")
        await events.flush()
        (event,) = await list_events(w.client)
        about = event.involved_object
        assert (about.kind, about.api_version, about.namespace, about.name) == (
            "ConfigMap",
            "v1",
            "default",
            "a",
        )
        assert (about.uid, about.resource_version) == ("u-1", "7")
        assert (event.type, event.reason, event.message) == ("Normal", "Bound", "all is well")
        assert (event.source.component, event.source.host) == ("binder", "worker-1")
        assert (event.reporting_component, event.reporting_instance) == ("binder", "worker-1")
        assert event.count == 1
        assert event.first_timestamp == event.last_timestamp != ""
        assert event.name.startswith("a.")
        by_name = await w.client.list(Event, "default", fields="involvedObject.name=a,involvedObject.uid=u-1")
        assert len(by_name) == 1


async def test_events_about_what_has_no_namespace_go_to_default() -> None:
    async with world() as w, EventRecorder(w.client, "binder") as events:
        events.warning(Node(metadata=ObjectMeta(name="worker-1")), "Lost", "no answer")
        await events.flush()
        (event,) = await list_events(w.client)
        assert event.namespace == "default"
        assert event.involved_object.namespace == ""


async def test_repeats_are_counted_in_one_event() -> None:
    async with world() as w, EventRecorder(w.client, "binder") as events:
        for _ in range(3):
            events.warning(A, "Failed", "no")
            await asyncio.sleep(5)
        await events.flush()
        (event,) = await list_events(w.client)
        assert event.count == 3
        assert event.first_timestamp < event.last_timestamp


async def test_a_repeat_of_an_event_that_expired_is_made_anew() -> None:
    async with world() as w, EventRecorder(w.client, "binder") as events:
        events.warning(A, "Failed", "no")
        await events.flush()
        (event,) = await list_events(w.client)
        await w.client.delete(Event, event.name, "default")
        events.warning(A, "Failed", "no")
        await events.flush()
        (again,) = await list_events(w.client)
        assert again.uid != event.uid
        assert again.count == 2


async def test_many_alike_become_one_combined_event() -> None:
    async with world() as w, EventRecorder(w.client, "binder") as events:
        for n in range(15):
            events.warning(A, "Failed", f"try {n}")
        await events.flush()
        found = await list_events(w.client)
        assert len(found) == 10
        combined = [e for e in found if e.message.startswith("(combined from similar events): ")]
        assert [e.message for e in combined] == ["(combined from similar events): try 14"]
        assert combined[0].count == 6


async def test_an_object_with_too_much_to_say_is_not_listened_to_for_a_while() -> None:
    async with world() as w, EventRecorder(w.client, "binder") as events:
        for n in range(40):
            events.normal(A, f"Reason{n}", "x")
        await events.flush()
        assert len(await list_events(w.client)) == 25
        await asyncio.sleep(301)
        events.normal(A, "Later", "x")
        events.normal(A, "TooSoon", "x")
        await events.flush()
        assert len(await list_events(w.client)) == 26


async def test_telling_never_waits_and_the_backlog_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        events = EventRecorder(w.client, "binder")  # no task writes yet
        for n in range(module.BACKLOG + 50):
            events.normal(ConfigMap(metadata=ObjectMeta(name=f"c{n}", namespace="default")), "X", "x")
        async with events:
            await events.flush()
        assert len(await w.client.list(Event, "default")) == module.BACKLOG


async def test_events_are_written_once_no_more_come() -> None:
    async with world() as w, EventRecorder(w.client, "binder") as events:
        for number in range(5):
            events.normal(A, f"Step{number}", "done")
            await asyncio.sleep(module.QUIET_TIME * 0.8)
        assert await list_events(w.client) == []
        await asyncio.sleep(module.QUIET_TIME)
        assert len(await list_events(w.client)) == 5


async def test_events_that_keep_coming_are_written_after_two_seconds() -> None:
    async with world() as w, EventRecorder(w.client, "binder") as events:
        end = asyncio.get_running_loop().time() + module.LONGEST_DELAY * 1.1
        number = 0
        while asyncio.get_running_loop().time() < end:
            events.normal(A, f"Step{number}", "done")
            number += 1
            await asyncio.sleep(module.QUIET_TIME * 0.8)
        assert await list_events(w.client) != []


async def test_stopping_writes_what_was_told() -> None:
    async with world() as w:
        async with EventRecorder(w.client, "binder") as events:
            events.normal(A, "Last", "words")
        assert [e.reason for e in await list_events(w.client)] == ["Last"]


async def test_an_unreachable_server_is_tried_again_a_refusal_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        create = w.client.create
        answers: list[APIError] = [Unavailable("away"), Unavailable("away")]
        calls = []

        async def flaky(obj: Event) -> Event:
            calls.append(obj.reason)
            if answers:
                raise answers.pop(0)
            return await create(obj)

        monkeypatch.setattr(w.client, "create", flaky)
        async with EventRecorder(w.client, "binder") as events:
            events.normal(A, "Patient", "x")
            await events.flush()
            answers.append(APIError("no"))
            events.normal(A, "Refused", "x")
            await events.flush()
        assert calls == ["Patient", "Patient", "Patient", "Refused"]
        assert [e.reason for e in await list_events(w.client)] == ["Patient"]
