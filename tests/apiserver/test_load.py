"""Load: too many requests of one user, watchers that do not read, bodies that are too large."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.apiserver.conftest import Api, client_of
from tests.contract.api_server.people import grant, person, rule
from volplane import apiserver
from volplane.apiserver.app import BODY_LIMIT
from volplane.store.memory import MemoryStore
from volplane.web import tls

MAPS = "/api/v1/namespaces/default/configmaps"


async def test_a_user_with_too_many_requests_gets_429_and_others_are_served(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    settings = apiserver.ApiServerOptions(data_dir=str(tmp_path), max_requests_inflight=3)
    server = await apiserver.run(settings, store)
    http = client_of(server)
    api = Api(server, store, http)
    try:
        for user in ("jane", "joe"):
            await grant(api, user, rule("list", "configmaps"))
        ahead = f"{MAPS}?resourceVersion={store.revision + 1000}"  # lists wait for it
        async with person(server, "jane") as jane, person(server, "joe") as joe:
            assert (await jane.get(MAPS)).status == 200
            answers = asyncio.gather(*(jane.get(ahead) for _ in range(8)))
            await asyncio.sleep(0.5)
            assert (await joe.get(MAPS)).status == 200
            assert (await api.get(MAPS)).status == 200
            results = await answers
            codes = [answer.status for answer in results]
            assert set(codes) == {429, 504}
            assert codes.count(504) >= 3
            refused = next(answer for answer in results if answer.status == 429)
            assert refused.headers.get("retry-after") == "1"
            assert (refused.json["reason"], refused.message) == (
                "TooManyRequests",
                "too many requests, please try again later",
            )
            assert (await jane.get(MAPS)).status == 200  # after they are done she is served again
    finally:
        await http.close()
        await server.close(0)
        await store.close()


async def test_a_watcher_that_does_not_read_is_disconnected_and_others_are_not(served: Any) -> None:
    async with served(store=MemoryStore(backlog=32)) as api:
        server = api.server
        pair = server.authority.client("client-kubernetes-admin", "kubernetes-admin", ("system:masters",))
        ca = str(server.authority.pair.cert_path)
        context = tls.client_context(ca, str(pair.cert_path), str(pair.key_path))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=context, server_hostname="127.0.0.1"
        )
        writer.write(f"GET {MAPS}?watch=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        text = "x" * 500_000
        async with api.watch(MAPS) as quick:
            await api.post(MAPS, {"metadata": {"name": "m"}})
            assert (await quick.next())["type"] == "ADDED"
            for count in range(80):
                changed = await api.merge(f"{MAPS}/m", {"data": {"text": f"{count}{text}"}})
                assert changed.status == 200
                event = await quick.next()
                assert event["object"]["data"]["text"].startswith(str(count))
        async with asyncio.timeout(60):
            lines = [json.loads(line) for line in _join_chunks(await _read_all(reader)).splitlines()]
        writer.close()
    *events, last = lines
    assert 0 < len(events) < 81
    versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
    assert versions == sorted(set(versions))
    assert (last["type"], last["object"]["code"], last["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_slow_watchers_get_every_event_exactly_once(served: Any) -> None:
    async with served() as api, AsyncExitStack() as stack:
        watches = [await stack.enter_async_context(api.watch(MAPS)) for _ in range(6)]
        writes, text = 30, "x" * 300_000  # far more than all buffers hold

        async def read(number: int, watch: Any) -> list[int]:
            """Some read at once, some after the last event, some intermittently."""
            if number % 3 == 1:
                await said.wait()
            versions = []
            for count in range(writes):
                if number % 3 == 2 and count % 10 == 5:
                    await asyncio.sleep(0.05)
                versions.append(int((await watch.next())["object"]["metadata"]["resourceVersion"]))
            return versions

        said = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(read(n, watch)) for n, watch in enumerate(watches)]
            await api.post(MAPS, {"metadata": {"name": "m"}})
            for count in range(writes - 1):
                assert (await api.merge(f"{MAPS}/m", {"data": {"text": f"{count}{text}"}})).status == 200
            said.set()
        results = readers[0].result()
        assert results == sorted(set(results))
        assert all(reader.result() == results for reader in readers)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """Read up to the last chunk; the connection stays open."""
    data = bytearray()
    while not data.endswith(b"\r\n0\r\n\r\n"):
        data += await reader.read(1 << 20)
    return bytes(data)


def _join_chunks(data: bytes) -> bytes:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if not int(size, 16):
            return body
        body += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]


async def test_a_body_with_a_too_large_content_length_is_refused_at_once(served: Any) -> None:
    async with served() as api:
        pair = api.server.authority.client("client-kubernetes-admin", "kubernetes-admin", ("system:masters",))
        ca = str(api.server.authority.pair.cert_path)
        context = tls.client_context(ca, str(pair.cert_path), str(pair.key_path))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", api.server.port, ssl=context, server_hostname="127.0.0.1"
        )
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY_LIMIT + 1}\r\n\r\n"
        writer.write(head.encode())
        async with asyncio.timeout(60):
            answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_the_fingerprint_of_a_certificate_is_its_credential_id(served: Any) -> None:
    async with served() as api, person(api.server, "alice", "dev") as alice:
        review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        who = (await alice.post(review, {})).json["status"]["userInfo"]
        (credential,) = who["extra"]["authentication.kubernetes.io/credential-id"]
        kind, _, digest = credential.partition("=")
        assert (kind, len(digest)) == ("X509SHA256", 64)
