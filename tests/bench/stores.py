"""`python -m tests.bench.stores`: compare the stores in one run on one machine.

etcd has its default settings, one member on loopback with its data on the same disk as SQLite's. "asked
directly" are reads from etcd instead of from the copy in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import uvloop

from tests.support.etcd import cluster, etcd
from volplane.store import Store
from volplane.store.etcd import EtcdStore, requests
from volplane.store.memory import MemoryStore
from volplane.store.sqlite import SqliteStore

VALUE = os.urandom(1000)
LISTED = 1000


class Figures:
    def __init__(self) -> None:
        self.rows: dict[str, dict[str, str]] = {}

    def add(self, row: str, column: str, text: str) -> None:
        self.rows.setdefault(row, {})[column] = text

    def table(self) -> str:
        columns = list(dict.fromkeys(c for row in self.rows.values() for c in row))
        lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        lines += [
            f"| {n} | " + " | ".join(r.get(c, "") for c in columns) + " |" for n, r in self.rows.items()
        ]
        return "\n".join(lines)


Act = Callable[[int], Awaitable[object]]


async def rate(act: Act, concurrency: int, seconds: float) -> str:
    """Operations per second, and the median duration of one."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def one(worker: int) -> None:
        n = worker
        while (start := time.perf_counter()) < end:
            await act(n)
            times.append(time.perf_counter() - start)
            n += concurrency

    await asyncio.gather(*(one(worker) for worker in range(concurrency)))
    return f"{len(times) / seconds:,.0f}/s, {median(times) * 1000:.2f} ms"


async def measure(figures: Figures, column: str, store: Store, seconds: float) -> None:
    for concurrency in (1, 16, 64):
        create: Act = lambda n, c=concurrency: store.create(f"/create/{c}/{n}", VALUE)  # type: ignore[misc]  # noqa: E731
        figures.add(f"create, {concurrency} at once", column, await rate(create, concurrency, seconds))
    for n in range(LISTED):
        await store.create(f"/listed/{n:04}", VALUE)
    for concurrency in (1, 16, 64):
        get: Act = lambda n: store.get(f"/listed/{n % LISTED:04}")  # noqa: E731
        figures.add(f"get, {concurrency} at once", column, await rate(get, concurrency, seconds))
    for concurrency in (1, 16):
        everything: Act = lambda n: store.list("/listed/")  # noqa: E731
        name = f"list of {LISTED}, {concurrency} at once"
        figures.add(name, column, await rate(everything, concurrency, seconds))
    figures.add("write to watcher", column, f"{await measure_watch_latency(store, 200) * 1000:.2f} ms")


async def measure_watch_latency(store: Store, count: int) -> float:
    """The time from the call of a create until a watcher has its event."""
    times = []
    async with store.watch("/watched/", revision=store.revision) as watch:
        for n in range(count):
            start = time.perf_counter()
            writing = asyncio.ensure_future(store.create(f"/watched/{n}", VALUE))
            await anext(aiter(watch))
            times.append(time.perf_counter() - start)
            await writing
    return median(times)


async def directly(figures: Figures, store: EtcdStore, seconds: float) -> None:
    keys, members = store._keys, store._members
    column = "etcd, asked directly"
    for concurrency in (1, 16, 64):

        async def get(n: int) -> object:
            key = keys.outer(f"/listed/{n % LISTED:04}")
            answer = await members.read("Range", requests.page((key, b"")))
            return requests.record(keys, answer.kvs[0])

        figures.add(f"get, {concurrency} at once", column, await rate(get, concurrency, seconds))
    for concurrency in (1, 16):

        async def everything(n: int) -> object:
            answer = await members.read("Range", requests.page(keys.under("/listed/")))
            return [requests.record(keys, kv) for kv in answer.kvs]

        name = f"list of {LISTED}, {concurrency} at once"
        figures.add(name, column, await rate(everything, concurrency, seconds))


@asynccontextmanager
async def closing(store: Store) -> AsyncIterator[Store]:
    try:
        yield store
    finally:
        await store.close()


async def run(directory: Path, seconds: float) -> str:
    figures = Figures()
    async with closing(MemoryStore()) as store:
        await measure(figures, "memory", store, seconds)
    async with closing(await SqliteStore.open(directory / "store.db")) as store:
        await measure(figures, "SQLite", store, seconds)
    with etcd(directory / "one") as server:
        async with closing(await EtcdStore.open([server.url])) as store:
            await measure(figures, "etcd", store, seconds)
            assert isinstance(store, EtcdStore)
            await directly(figures, store, seconds)
    with cluster(directory / "three") as members:
        async with closing(await EtcdStore.open([member.url for member in members])) as store:
            await measure(figures, "etcd, 3 members", store, seconds)
    return figures.table()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    seconds = parser.parse_args().seconds
    with (
        tempfile.TemporaryDirectory(prefix="volplane-stores-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        print(runner.run(run(Path(directory), seconds)))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
