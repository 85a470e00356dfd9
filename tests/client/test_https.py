"""The HTTPS transport with the real API server: verbs, errors, watches, restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.loops.inprocess import until
from volplane.api.core import ConfigMap, Container, Namespace, Node, Pod, PodSpec, ServiceAccount
from volplane.api.errors import AlreadyExists, Conflict, Expired, Invalid, NotFound, Unauthorized, Unavailable
from volplane.api.meta import ObjectMeta
from volplane.api.storage import CSINode
from volplane.apiserver import server as apiserver
from volplane.apiserver.settings import ApiServerOptions
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.client.https import HttpsTransport
from volplane.client.transport import ChangeType
from volplane.store.memory import MemoryStore
from volplane.web import HttpClient, Request, Response, serve


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        yield Path(directory)


@asynccontextmanager
async def serving(
    place: Path, store: MemoryStore, port: int = 0
) -> AsyncIterator[apiserver.RunningApiServer]:
    server = await apiserver.run(ApiServerOptions(data_dir=str(place), port=port), store)
    try:
        yield server
    finally:
        await server.close(0)


@asynccontextmanager
async def connect_client(place: Path) -> AsyncIterator[Client]:
    store = MemoryStore()
    async with serving(place, store) as server:
        transport = kubeconfig.load(server.kubeconfig)
        client = Client(transport, component="test")
        try:
            yield client
        finally:
            await client.close()
            await transport.close()
    await store.close()


def config(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


async def test_verbs_and_errors(place: Path) -> None:
    async with connect_client(place) as client:
        made = await client.create(config("a", x="1"))
        assert made.uid
        assert made.revision > 0
        with pytest.raises(AlreadyExists):
            await client.create(config("a"))
        assert (await client.create(config("a"), exists_ok=True)).uid == made.uid
        patched = await client.patch(ConfigMap, "a", "default", merge={"data": {"y": "2"}}, uid=made.uid)
        assert patched.data == {"x": "1", "y": "2"}
        with pytest.raises(Conflict):
            await client.patch(ConfigMap, "a", "default", merge={"data": {}}, uid="another")
        with pytest.raises(Conflict):
            await client.patch(
                ConfigMap,
                "a",
                "default",
                strategic={"data": {"y": "3"}},
                revision=made.metadata.resource_version,
            )
        add = [{"op": "add", "path": "/data/z", "value": "3"}]
        assert (await client.patch(ConfigMap, "a", "default", json=add)).data["z"] == "3"
        with pytest.raises(Invalid):
            await client.create(config("Not A Name"))
        with pytest.raises(NotFound, match='configmaps "b" not found'):
            await client.get(ConfigMap, "b", "default")
        with pytest.raises(Conflict):
            await client.delete(ConfigMap, "a", "default", uid="another")
        assert await client.delete(ConfigMap, "a", "default") is None
        assert await client.delete(ConfigMap, "a", "default", missing_ok=True) is None


async def test_lists_come_in_pages_and_by_selection(place: Path) -> None:
    async with connect_client(place) as client:
        for n in range(5):
            labelled = ObjectMeta(name=f"c{n}", namespace="default", labels={"odd": str(n % 2)})
            await client.create(ConfigMap(metadata=labelled))
        page = await client.list_page(ConfigMap, "default", limit=2)
        assert len(page.items) == 2
        assert page.token
        assert len([c for c in await client.list(ConfigMap, limit=2) if c.name.startswith("c")]) == 5
        assert [c.name for c in await client.list(ConfigMap, "default", labels="odd=1")] == ["c1", "c3"]
        assert [c.name for c in await client.list(ConfigMap, fields="metadata.name=c4")] == ["c4"]


async def test_a_watch_tells_changes_and_an_old_revision_is_refused(place: Path) -> None:
    async with connect_client(place) as client:
        first = await client.create(config("a"))

        async def write() -> None:
            await client.patch(ConfigMap, "a", "default", merge={"data": {"x": "1"}})
            await client.delete(ConfigMap, "a", "default")

        seen = []
        task = asyncio.create_task(write())
        async with asyncio.timeout(10):
            async for change in client.watch(ConfigMap, "default", revision=first.revision):
                seen.append((change.type, change.object.name if change.object else ""))
                if change.type is ChangeType.DELETED:
                    break
        await task
        assert seen == [(ChangeType.MODIFIED, "a"), (ChangeType.DELETED, "a")]


async def test_a_compacted_revision_is_expired(place: Path) -> None:
    store = MemoryStore()
    async with serving(place, store) as server:
        transport = kubeconfig.load(server.kubeconfig)
        client = Client(transport)
        first = await client.create(config("a"))
        await client.patch(ConfigMap, "a", "default", merge={"data": {"x": "1"}})
        await store.compact(store.revision)
        with pytest.raises(Expired):
            async for _ in client.watch(ConfigMap, "default", revision=first.revision):
                pass
        await transport.close()
    await store.close()


async def test_a_pod_is_bound_and_evicted(place: Path) -> None:
    async with connect_client(place) as client:
        await client.create(ServiceAccount(metadata=ObjectMeta(name="default", namespace="default")))
        await client.create(Node(metadata=ObjectMeta(name="n1")))
        spec = PodSpec(containers=(Container(name="c", image="i"),))
        pod = await client.create(Pod(metadata=ObjectMeta(name="p", namespace="default"), spec=spec))
        await client.bind(pod, "n1")
        assert (await client.get(Pod, "p", "default")).spec.node_name == "n1"
        with pytest.raises(Conflict):
            await client.bind(pod, "n2")
        await client.evict(pod, grace=0)
        left = await client.find(Pod, "p", "default")
        assert left is None or left.is_deleting


async def test_a_cache_goes_on_over_a_restart_of_the_server(place: Path) -> None:
    store = MemoryStore()
    async with serving(place, store) as server:
        port = server.port
        transport = kubeconfig.load(server.kubeconfig)
        client = Client(transport)
        cache = client.cache(ConfigMap, namespace="default")
        await cache.wait_synced()
        made = await client.create(config("before"))
        async with asyncio.timeout(10):
            await cache.wait_for(made.revision)
        assert cache.get("before", "default") == made
    with pytest.raises(Unavailable):
        await client.get(ConfigMap, "before", "default")
    async with serving(place, store, port):
        made = await client.create(config("after"))
        async with asyncio.timeout(20):
            await cache.wait_for(made.revision)
        assert cache.get("after", "default") is not None
        await client.delete(ConfigMap, "before", "default")

        async def gone() -> bool:
            return cache.get("before", "default") is None

        await until(gone)
        await client.close()
        await transport.close()
    await store.close()


async def test_tokens_log_in_and_wrong_ones_do_not(place: Path) -> None:
    store = MemoryStore()
    async with serving(place, store) as server:
        config = json.loads(server.kubeconfig.read_text())
        for token in (server.admin_token, "wrong"):
            config["users"][0]["user"] = {"token": token}
            path = write(place, config)
            transport = kubeconfig.load(path)
            client = Client(transport)
            if token == "wrong":
                with pytest.raises(Unauthorized):
                    await client.list(Namespace)
            else:
                assert "default" in [n.name for n in await client.list(Namespace)]
            await transport.close()
    await store.close()


def write(place: Path, config: object) -> Path:
    path = place / "config.json"
    path.write_text(json.dumps(config))
    return path


async def test_an_empty_list_may_be_null() -> None:
    """As upstream's server writes an empty list or map of Go."""
    node = b'{"metadata":{"name":"n","resourceVersion":"7"},"spec":{"drivers":null}}'

    async def answer(request: Request) -> Response:
        listed = b'{"metadata":{"resourceVersion":"9"},"items":[%b]}' % node
        if request.query.flag("watch"):
            return Response(body=_once(b'{"type":"ADDED","object":%b}\n' % node))
        return Response(body=listed if request.path.endswith("/csinodes") else node)

    server = await serve(answer)
    client = Client(HttpsTransport(HttpClient(f"http://127.0.0.1:{server.port}")))
    try:
        assert (await client.get(CSINode, "n")).spec.drivers == ()
        assert [n.spec.drivers for n in await client.list(CSINode)] == [()]
        async for change in client.watch(CSINode, revision=1):
            assert change.object is not None
            assert change.object.spec.drivers == ()
            break
    finally:
        await client.transport.close()
        await server.close(0)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
