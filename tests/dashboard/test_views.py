"""Every view over HTTP, of objects that the test has made, without roles: as of a foreign cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tests.controllers import objects
from tests.dashboard.pages import OpenPage, serve_page, version_of
from volplane.api import codec
from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import StorageClass, VolumeAttachment
from volplane.base.span_store import SpanRecorder
from volplane.base.trace import Span
from volplane.base.trace_context import trace_id
from volplane.client.client import Client
from volplane.dashboard.views import journeys
from volplane.dashboard.views import objects as objects_view

PATIENCE = 120.0  # seconds, for a page that never comes
PATHS = (
    "/cluster",
    "/journeys",
    "/journey/pvc/default/data",
    "/journey/pv/pv-1",
    "/journey/pod/default/web",
    "/journey/pvc/default/data?with=pvc/default/other",
    "/waiting",
    "/desired-and-actual",
    "/object/pvc/default/data",
    "/object/pv/pv-1",
    "/object/va/va-1",
    "/object/pod/default/web",
    "/object/node/worker-1",
)


@asynccontextmanager
async def a_bound_claim() -> AsyncIterator[tuple[OpenPage, Client]]:
    """A claim whose pod waits for the attach, another claim, and an event; the page is open."""
    async with serve_page() as (page, client, _), asyncio.timeout(PATIENCE):
        await client.create(objects.account())
        await client.create(objects.node("worker-1"))
        await client.create(objects.claim("other", "2Gi", "gone"))
        claim = await client.create(objects.claim("data", volumeName="pv-1"))
        ref = {"namespace": "default", "name": "data", "uid": claim.uid}
        await client.create(objects.volume("pv-1", claimRef=ref))
        await _set_phase(client, PersistentVolume, "pv-1", "", "Bound")
        await _set_phase(client, PersistentVolumeClaim, "data", "default", "Bound")
        await client.create(objects.pod("web", "data", on="worker-1"))
        spec = {
            "attacher": objects.DRIVER,
            "nodeName": "worker-1",
            "source": {"persistentVolumeName": "pv-1"},
        }
        await client.create(codec.convert(VolumeAttachment, {"metadata": {"name": "va-1"}, "spec": spec}))
        about = {"kind": "PersistentVolumeClaim", **ref}
        event = {
            "metadata": {"name": "e1", "namespace": "default"},
            "involvedObject": about,
            "reason": "ProvisioningSucceeded",
            "message": "it has <b>worked</b>",
            "type": "Normal",
        }
        await client.create(codec.convert(Event, event))
        await page.log_in()
        yield page, client


async def _set_phase(
    client: Client,
    type: type[PersistentVolume | PersistentVolumeClaim],
    name: str,
    namespace: str,
    phase: str,
) -> None:
    await client.patch(type, name, namespace, merge={"status": {"phase": phase}}, subresource="status")


async def test_every_view_is_shown_and_follows_the_rules_of_a_page() -> None:
    async with a_bound_claim() as (page, _):
        for path in PATHS:
            html = await page.get(path)
            assert html.count("<h1") == 1, path
            assert "live-slot" not in html, path
            assert " style=" not in html, path
            ids = [part.partition('"')[0] for part in html.split(' id="')[1:]]
            assert len(ids) == len(set(ids)), path


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("/cluster", ["attaching", "worker-1", "not provisioned yet"]),
        ("/journeys", ["data", "attaching", "other", "2Gi"]),
        ("/journey/pvc/default/data", ["kubectl to API server: create pvc/default/data", "Not known"]),
        ("/journey/pod/default/web", ["create pvc/default/data"]),
        (
            "/journey/pvc/default/data?with=pvc/default/nothing",
            ["create pvc/default/data", "there is no pvc/default/nothing"],
        ),
        (
            "/waiting",
            ["pvc/default/other", 'storageclass.storage.k8s.io "gone" not found', "volumeattachment/va-1"],
        ),
        ("/desired-and-actual", ["Attach/detach controller", "attaching", "only the kubelet knows it"]),
        (
            "/object/pvc/default/data",
            [
                "Now: Bound.",
                "Now: attaching.",
                "kubernetes.io/pvc-protection",
                "claim protection: removed when no pod uses the claim",
                "it has <b>worked</b>",
            ],
        ),
        ("/object/node/worker-1", ["ready"]),
    ],
)
async def test_a_view_tells_what_it_is_for(path: str, texts: list[str]) -> None:
    async with a_bound_claim() as (page, _):
        html = await page.get(path)
        for text in texts:
            assert text in unescape(html), text
        assert "<b>worked" not in html


async def test_what_is_left_out_of_a_list_is_counted(tmp_path: Path) -> None:
    async with serve_page(spans=tmp_path) as (page, client, _), asyncio.timeout(PATIENCE):
        claim = await client.create(objects.claim("data"))
        recorder = SpanRecorder(tmp_path, "up", max_size=8 << 20, max_age=3600.0)
        own, name = trace_id(claim.uid), "pvc/default/data"
        for number in range(objects_view.MOST_TRANSITIONS + 7):
            changes = [["status.phase", "", str(number)]]
            span = Span("apiserver", "patch", name, number + 1, number + 2, {"changes": changes}, "", (own,))
            recorder.write(msgspec.json.encode(span))
        for number in range(journeys.MOST_DELETED + 3):
            changes = [["exists", "yes", ""]]
            other = Span(
                *("apiserver", "delete", f"pvc/default/old-{number}", number + 1, number + 2),
                *({"changes": changes}, "", (f"{number:032x}",)),
            )
            recorder.write(msgspec.json.encode(other))
        recorder.close()
        for number in range(objects_view.MOST_EVENTS + 1):
            about = {
                "kind": "PersistentVolumeClaim",
                "namespace": "default",
                "name": "data",
                "uid": claim.uid,
            }
            event = {"metadata": {"name": f"e{number}", "namespace": "default"}, "involvedObject": about}
            await client.create(codec.convert(Event, event))
        await page.log_in()
        html = await page.get("/object/pvc/default/data")
        assert "7 older changes not shown. All: <code>volplane states pvc/data -n default</code>" in html
        assert "1 older event not shown." in html
        html = await page.get("/journeys")
        assert "3 older claims not shown." in html
        assert "old-52" in html
        assert "old-2<" not in html


async def test_lists_that_are_complete_say_nothing() -> None:
    async with a_bound_claim() as (page, _):
        for path in PATHS:
            assert "not shown" not in await page.get(path), path


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/journey/secret/default/x",
        "/journey/pvc",
        "/object/pod/default/",
        "/object/configmap/a/b",
    ],
)
async def test_a_page_that_does_not_exist_says_why(path: str) -> None:
    async with serve_page() as (page, _, _):
        await page.log_in()
        answer = await page.ask(path)
        assert answer.status == 404
        assert b"<h1>Not found</h1>" in answer.body


async def test_an_object_is_shown_as_soon_as_it_is_created_and_again_when_it_is_gone() -> None:
    async with serve_page() as (page, client, _), asyncio.timeout(PATIENCE):
        await page.log_in()
        html = await page.get("/object/pvc/default/later")
        assert "There is no pvc/default/later" in html
        async with page.events("/object/pvc/default/later", version_of(html)) as events:
            await client.create(objects.claim("later", "1Gi", None))
            while "Now: Pending." not in (await anext(events)).get("object-states", ""):
                pass
            await client.delete(PersistentVolumeClaim, "later", "default")
            await client.patch(
                PersistentVolumeClaim,
                "later",
                "default",
                merge={"metadata": {"finalizers": None}},
                missing_ok=True,
            )
            while "There is no pvc/default/later" not in (await anext(events)).get("view", ""):
                pass


async def test_a_journey_that_is_derived_grows_with_the_objects() -> None:
    async with a_bound_claim() as (page, client):
        html = await page.get("/journey/pvc/default/data")
        async with page.events("/journey/pvc/default/data", version_of(html)) as events:
            await client.patch(
                Pod,
                "web",
                "default",
                merge={
                    "status": {
                        "phase": "Running",
                        "containerStatuses": [
                            {
                                "name": "c",
                                "ready": True,
                                "state": {"running": {"startedAt": "2026-05-04T03:02:01Z"}},
                            }
                        ],
                    }
                },
                subresource="status",
            )
            while not any(
                "StartContainer" in html or "tart" in html for html in (await anext(events)).values()
            ):
                pass


async def test_a_journey_that_is_derived_grows_with_an_event_alone() -> None:
    """In a cluster without recorded steps, an event may be all that shows a failed attach."""
    async with a_bound_claim() as (page, client):
        html = await page.get("/journey/pvc/default/data?show=all")
        pod = await client.get(Pod, "web", "default")
        async with page.events("/journey/pvc/default/data?show=all", version_of(html)) as events:
            for number in range(3):  # the first may be seen in an update that has another reason
                reason = f"Attempt{number}"
                event = {
                    "metadata": {"name": f"attempt-{number}", "namespace": "default"},
                    "involvedObject": {"kind": "Pod", "namespace": "default", "name": "web", "uid": pod.uid},
                    "reason": reason,
                    "message": "the disk is somewhere else",
                    "type": "Warning",
                }
                await client.create(codec.convert(Event, event))
                while not any(reason in html for html in (await anext(events)).values()):
                    pass


async def test_what_waits_leaves_the_list_when_it_is_mended() -> None:
    async with a_bound_claim() as (page, client):
        html = await page.get("/waiting")
        assert 'id="wait-pvc/default/other"' in html
        async with page.events("/waiting", version_of(html)) as events:
            made = objects.storage_class("gone", "WaitForFirstConsumer")
            await client.create(codec.convert(StorageClass, codec.to_dict(made)))
            while "as expected" not in (await anext(events)).get("wait-pvc/default/other", ""):
                pass


@pytest.mark.parametrize(
    ("kind", "type", "begins"),
    [
        ("svg", "image/svg+xml", "<svg"),
        ("html", "text/html; charset=utf-8", "<!doctype html>"),
        ("mermaid", "text/plain; charset=utf-8", "---"),
    ],
)
async def test_a_journey_is_saved_as_a_file(kind: str, type: str, begins: str) -> None:
    async with a_bound_claim() as (page, _):
        answer = await page.ask(f"/journey/pvc/default/data?save={kind}")
        assert answer.status == 200
        assert answer.headers.get("Content-Type") == type
        assert answer.headers.get("Content-Disposition").startswith(
            'attachment; filename="journey-pvc-default-data.'
        )
        text = answer.body.decode()
        assert text.startswith(begins)
        assert "create pvc" in text
        if kind == "svg":
            ElementTree.fromstring(text)
            assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


async def test_a_view_that_is_no_journey_cannot_be_saved() -> None:
    async with a_bound_claim() as (page, _):
        assert (await page.ask("/cluster?save=svg")).status == 404
        assert (await page.ask("/journey/pvc/default/data?save=exe")).status == 404


async def test_lists_have_pages() -> None:
    async with serve_page() as (page, client, _), asyncio.timeout(PATIENCE):
        for number in range(60):
            await client.create(objects.claim(f"claim-{number}", "1Gi", "none"))
        await page.log_in()
        first, second = await page.get("/journeys"), await page.get("/journeys?page=2")
        assert ("1 to 50 of 60" in first, "51 to 60 of 60" in second) == (True, True)
        assert ("claim-59<" in first, "claim-59<" in second) == (False, True)
        assert "claim-59<" in await page.get("/journeys?page=99")
        assert "claim-7<" in await page.get("/journeys?q=claim-7&page=x")
        assert "Filter" in await page.get("/waiting?page=2")


async def test_a_lost_node_is_the_first_that_waits() -> None:
    async with a_bound_claim() as (page, client):
        await client.patch(
            Node,
            "worker-1",
            merge={"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
            subresource="status",
        )
        html = await page.get("/waiting")
        assert html.index('id="wait-node/worker-1"') < html.index('id="wait-pvc/default/other"')
        assert "kubectl taint node worker-1" in html
