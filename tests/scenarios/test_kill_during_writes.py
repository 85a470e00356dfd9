"""kill -9 of the API server in the middle of a thousand writes, fifty times on one data directory.

A writer knows of each of its writes that it was acknowledged, or does not know what became of it. After every
restart the first must be there exactly as acknowledged; of the second, only one of the two outcomes may be
seen. The watchers live through all deaths: each goes on from the last revision that it has seen, and in the
end has seen every change once, in order.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from volplane import web
from volplane.web import tls
from volplane.web.client import HttpError

pytestmark = pytest.mark.slow

VOLPLANE = str(Path(sys.executable).parent / "volplane")
ROUNDS, WRITES, CONNECTIONS, WATCHERS = 50, 1000, 32, 2
PATIENCE = 60.0
MERGE = {"content-type": "application/merge-patch+json"}
JSON = {"content-type": "application/json"}
Lost = (HttpError, OSError, TimeoutError)


class Server:
    """`volplane apiserver` on one directory and one port, in many lives."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.alive = asyncio.Event()

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            VOLPLANE,
            "apiserver",
            "--data-dir",
            str(self.directory),
            "--port",
            str(self.port),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        reported = b""
        async with asyncio.timeout(PATIENCE):
            while b"serving on" not in reported:
                line = await self.process.stdout.readline()
                assert line, reported.decode()
                reported += line
        self.alive.set()

    def kill(self) -> None:
        self.alive.clear()
        self.process.kill()

    async def ended(self) -> None:
        await self.process.communicate()

    def client(self) -> web.HttpClient:
        context = tls.client_context(str(self.directory / "pki" / "ca.crt"))
        token = (self.directory / "pki" / "admin.token").read_text().strip()
        address = f"https://127.0.0.1:{self.port}"
        headers = {"authorization": f"Bearer {token}"}
        return web.HttpClient(address, ssl=context, headers=headers, max_connections=CONNECTIONS)


class WriteOutcomes(Struct):
    """One object as its only writer knows it: states by revision, 0 for one that is not known to be."""

    # (revision, value), None for deleted: the last that was acknowledged, then perhaps one that is not sure.
    states: list[tuple[int, str | None]] = []

    def sure(self, revision: int, value: str | None) -> None:
        self.states = [(revision, value)]

    def unsure(self, value: str | None) -> None:
        self.states.append((0, value))

    def allows(self, revision: int, value: str | None) -> bool:
        return any(v == value and r in (0, revision) for r, v in self.states) or (
            value is None and not any(r for r, _ in self.states)
        )


class Writers:
    """The thousand writes of one round, in a namespace of its own."""

    def __init__(self, http: web.HttpClient, namespace: str, dice: random.Random) -> None:
        self.http, self.namespace, self.dice = http, namespace, dice
        self.place = f"/api/v1/namespaces/{namespace}/configmaps"
        self.outcomes: dict[str, WriteOutcomes] = {f"m{n}": WriteOutcomes() for n in range(WRITES)}
        self.revisions: list[int] = []
        self.acknowledged = 0
        self.enough = asyncio.Event()
        self.limit = dice.randrange(50, WRITES // 2)

    async def run(self) -> None:
        plans = [(name, self.dice.random()) for name in self.outcomes]
        async with asyncio.TaskGroup() as group:
            for name, chance in plans:
                group.create_task(self._one(name, chance))

    async def _one(self, name: str, chance: float) -> None:
        if not await self._write(
            "POST", self.place, name, "1", {"metadata": {"name": name}, "data": {"v": "1"}}
        ):
            return
        if chance < 0.2:
            await self._write("PATCH", f"{self.place}/{name}", name, "2", {"data": {"v": "2"}})
        elif chance < 0.4:
            await self._write("DELETE", f"{self.place}/{name}", name, None, {})

    async def _write(self, method: str, path: str, name: str, value: str | None, body: Any) -> bool:
        headers = MERGE if method == "PATCH" else JSON
        try:
            answer = await self.http.request(
                method, path, headers=headers, body=json.dumps(body).encode(), timeout=PATIENCE
            )
        except Lost:
            self.outcomes[name].unsure(value)
            return False
        assert answer.status in (200, 201), answer.body
        reported = json.loads(answer.body)
        revision = int(reported["metadata"].get("resourceVersion", 0)) if value is not None else 0
        if revision:
            self.revisions.append(revision)
        self.outcomes[name].sure(revision, value)
        self.acknowledged += 1
        if self.acknowledged == self.limit:
            self.enough.set()
        return True

    async def check(self, http: web.HttpClient) -> None:
        """Every write that was acknowledged is there, and nothing that nobody wrote."""
        answer = await http.request("GET", self.place, timeout=PATIENCE)
        assert answer.status == 200, answer.body
        items = json.loads(answer.body)["items"]
        found = {
            i["metadata"]["name"]: (int(i["metadata"]["resourceVersion"]), i["data"]["v"]) for i in items
        }
        assert set(found) <= set(self.outcomes), "an object that was not written"
        for name, reported in self.outcomes.items():
            revision, value = found.get(name, (0, None))
            assert reported.allows(revision, value), (
                f"{self.namespace}/{name}: {reported.states}, found {found.get(name)}"
            )


class Watcher:
    """Follows all config maps through all lives of the server."""

    def __init__(self, server: Server, http: web.HttpClient, revision: int) -> None:
        self.server, self.http, self.revision = server, http, revision
        self.seen: list[tuple[int, str, str, str]] = []
        self.moved = asyncio.Event()
        self.resumed = 0

    async def run(self) -> None:
        while True:
            await self.server.alive.wait()
            path = f"/api/v1/configmaps?watch=true&allowWatchBookmarks=true&resourceVersion={self.revision}"
            try:
                async with self.http.stream("GET", path, timeout=PATIENCE) as (answer, pieces):
                    assert answer.status == 200, answer.status
                    self.resumed += 1
                    rest = b""
                    async for piece in pieces:
                        *lines, rest = (rest + piece).split(b"\n")
                        for line in lines:
                            self._note(json.loads(line))
            except Lost:
                await asyncio.sleep(0.01)

    def _note(self, event: Any) -> None:
        assert event["type"] != "ERROR", event
        metadata = event["object"]["metadata"]
        revision = int(metadata["resourceVersion"])
        if event["type"] == "BOOKMARK":
            assert revision >= self.revision
        else:
            assert revision > self.revision, f"{event} after {self.revision}"
            key = f"{metadata['namespace']}/{metadata['name']}"
            self.seen.append((revision, event["type"], key, event["object"].get("data", {}).get("v", "")))
        self.revision = revision
        self.moved.set()

    async def reach(self, revision: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.revision < revision:
                self.moved.clear()
                await self.moved.wait()

    def state(self) -> dict[str, tuple[int, str]]:
        held: dict[str, tuple[int, str]] = {}
        for revision, kind, key, value in self.seen:
            if kind == "DELETED":
                assert key in held, f"{key} was deleted before it was seen"
                del held[key]
            else:
                assert (kind == "ADDED") is (key not in held), (kind, key)
                held[key] = (revision, value)
        return held


async def _newest(http: web.HttpClient) -> int:
    answer = await http.request("GET", "/api/v1/configmaps?limit=1", timeout=PATIENCE)
    return int(json.loads(answer.body)["metadata"]["resourceVersion"])


async def test_fifty_deaths_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    server = Server(tmp_path)
    await server.start()
    http = server.client()
    watchers = [Watcher(server, server.client(), await _newest(http)) for _ in range(WATCHERS)]
    following = [asyncio.create_task(watcher.run()) for watcher in watchers]
    dice = random.Random(50)
    rounds: list[Writers] = []
    try:
        for number in range(ROUNDS):
            body = json.dumps({"metadata": {"name": f"round-{number}"}}).encode()
            made = await http.request("POST", "/api/v1/namespaces", headers=JSON, body=body, timeout=PATIENCE)
            assert made.status == 201, made.body
            writers = Writers(http, f"round-{number}", dice)
            rounds.append(writers)
            writing = asyncio.create_task(writers.run())
            await writers.enough.wait()
            server.kill()
            await writing
            await server.ended()
            # A client that knows nothing of the lives before, so that no answer comes from there.
            await http.close()
            await server.start()
            http = server.client()
            await writers.check(http)
            assert min(writers.revisions) > max((r for w in rounds[:-1] for r in w.revisions), default=0)
        await _judge(http, rounds, watchers)
        assert all(not task.done() for task in following), [t for t in following if t.done()]
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        server.kill()
        await server.ended()
        for client in (http, *(watcher.http for watcher in watchers)):
            await client.close()


async def _judge(http: web.HttpClient, rounds: list[Writers], watchers: list[Watcher]) -> None:
    acknowledged = [revision for writers in rounds for revision in writers.revisions]
    assert len(acknowledged) == len(set(acknowledged)), "a revision was given twice"
    for writers in rounds:
        await writers.check(http)
    newest = int((await _mark(http))["metadata"]["resourceVersion"])
    listed = dict(await _everything(http))
    for watcher in watchers:
        await watcher.reach(newest)
        assert watcher.resumed > ROUNDS // 2  # it was cut off, and came back
        seen = [revision for revision, *_ in watcher.seen]
        assert not set(acknowledged) - set(seen), "a change that a watcher has not seen"
        assert watcher.seen == watchers[0].seen
        assert watcher.state() == listed


async def _mark(http: web.HttpClient) -> Any:
    """The last write: who has seen it has seen everything."""
    body = json.dumps({"metadata": {"name": "mark"}, "data": {"v": "end"}}).encode()
    made = await http.request("POST", "/api/v1/namespaces/default/configmaps", headers=JSON, body=body)
    return json.loads(made.body)


async def _everything(http: web.HttpClient) -> Iterator[tuple[str, tuple[int, str]]]:
    answer = await http.request("GET", "/api/v1/configmaps", timeout=PATIENCE)
    items = [i for i in json.loads(answer.body)["items"] if "v" in i.get("data", {})]
    return iter(
        (
            f"{i['metadata']['namespace']}/{i['metadata']['name']}",
            (int(i["metadata"]["resourceVersion"]), i["data"]["v"]),
        )
        for i in items
    )
