"""The addresses of Services follow their pods, on the real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from tests.controllers.objects import account, pod
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api import codec
from volplane.api.core import Endpoints, Pod, Service
from volplane.api.discovery import EndpointSlice
from volplane.controllers.endpoints.controller import EndpointSlices, EndpointsObjects

pytestmark = pytest.mark.virtual


def service(name: str = "web", **spec: Any) -> Service:
    whole = {
        "metadata": {"name": name, "namespace": "default", "labels": {"tier": "front"}},
        "spec": {
            "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP"}],
            **spec,
        },
    }
    return codec.convert(Service, whole)


async def add_pod(env: InProcessEnv, name: str, ip: str, *, ready: bool, **spec: Any) -> None:
    container = {"name": "c", "image": "a", "ports": [{"name": "web", "containerPort": 8080}]}
    new = pod(name, on="node-1", containers=[container], **spec)
    await env.client.create(
        structs.replace(new, metadata=structs.replace(new.metadata, labels={"app": "web"}))
    )
    await set_ready(env, name, ip, ready=ready)


async def set_ready(env: InProcessEnv, name: str, ip: str, *, ready: bool) -> None:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [condition]}
    await env.client.patch(Pod, name, "default", merge={"status": status}, subresource="status")


@asynccontextmanager
async def cluster() -> AsyncIterator[InProcessEnv]:
    async with world() as env:
        await env.client.create(account())
        async with running(EndpointSlices(env.client).run(), EndpointsObjects(env.client).run()):
            yield env


async def slice_of(env: InProcessEnv, name: str, addresses: dict[str, bool]) -> EndpointSlice:
    async def there() -> EndpointSlice | None:
        for one in await env.client.list(EndpointSlice, "default"):
            found = {e.addresses[0]: e.conditions.ready for e in one.endpoints}
            if one.metadata.labels["kubernetes.io/service-name"] == name and found == addresses:
                return one
        return None

    made: EndpointSlice = await until(there)
    return made


async def test_slices_and_endpoints_have_the_ready_pods_of_the_selector() -> None:
    async with cluster() as env:
        made = await env.client.create(service())
        await add_pod(env, "a", "10.1.0.1", ready=True)
        await add_pod(env, "b", "10.1.0.2", ready=False)
        one = await slice_of(env, "web", {"10.1.0.1": True, "10.1.0.2": False})
        assert [(p.name, p.port, p.protocol) for p in one.ports] == [("http", 8080, "TCP")]
        assert one.metadata.labels["tier"] == "front"
        assert one.metadata.owner_references[0].uid == made.uid
        assert one.endpoints[0].target_ref is not None
        assert (one.endpoints[0].target_ref.name, one.endpoints[0].node_name) == ("a", "node-1")

        async def both() -> Endpoints | None:
            held = await env.client.find(Endpoints, "web", "default")
            return held if held and held.subsets and held.subsets[0].not_ready_addresses else None

        [subset] = (await until(both)).subsets
        assert [a.ip for a in subset.addresses] == ["10.1.0.1"]
        assert [a.ip for a in subset.not_ready_addresses] == ["10.1.0.2"]

        await set_ready(env, "b", "10.1.0.2", ready=True)
        await slice_of(env, "web", {"10.1.0.1": True, "10.1.0.2": True})
        await env.client.delete(Pod, "a", "default", grace=0)
        await slice_of(env, "web", {"10.1.0.2": True})


async def test_a_deleted_service_loses_its_endpoints() -> None:
    async with cluster() as env:
        await env.client.create(service())
        await add_pod(env, "a", "10.1.0.1", ready=True)
        await slice_of(env, "web", {"10.1.0.1": True})
        await env.client.delete(Service, "web", "default")

        async def gone() -> bool:
            slices = await env.client.list(EndpointSlice, "default")
            return not slices and await env.client.find(Endpoints, "web", "default") is None

        assert await until(gone)


async def test_endpoints_that_a_user_writes_for_a_service_without_selector_stay() -> None:
    async with cluster() as env:
        await env.client.create(service("db", selector={}))
        metadata = {"name": "db", "namespace": "default"}
        subsets = [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 5432}]}]
        await env.client.create(codec.convert(Endpoints, {"metadata": metadata, "subsets": subsets}))
        await env.client.create(service())
        await add_pod(env, "a", "10.1.0.1", ready=True)
        await slice_of(env, "web", {"10.1.0.1": True})
        assert (await env.client.get(Endpoints, "db", "default")).subsets[0].addresses[0].ip == "192.0.2.1"


async def test_pods_of_a_headless_service_have_their_host_names() -> None:
    async with cluster() as env:
        await env.client.create(service("db", clusterIP="None", publishNotReadyAddresses=True))
        await add_pod(env, "db-0", "10.1.0.7", ready=False, hostname="db-0", subdomain="db")
        one = await slice_of(env, "db", {"10.1.0.7": True})
        assert one.endpoints[0].hostname == "db-0"
        assert "service.kubernetes.io/headless" in one.metadata.labels
