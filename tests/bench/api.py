"""(j) The API server over TLS: create, get, list, patch, apply at 1, 16 and 64 at once; write to watcher.

With VOLPLANE_BENCH_PEER=kubeconfig the same client measures a second server in the same run, alternately, and
the table shows the ratios. The client is one process on the same machine, so at high rates it affects the
results of both servers.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

from tests.bench.cluster_process import COMMAND, PATIENCE
from tests.bench.load import Connection, Load, Target
from tests.bench.report import Figure

PEER = os.environ.get("VOLPLANE_BENCH_PEER", "")
# Of a peer on this machine, `apiserver,etcd`: the CPU time of all of them, the memory of the first.
PEER_PIDS = tuple(int(pid) for pid in os.environ.get("VOLPLANE_BENCH_PEER_PIDS", "").split(",") if pid)
CONCURRENCY = (1, 16, 64)
LISTED = 1000
NAMESPACE = f"bench-{secrets.token_hex(4)}"  # a peer may have a namespace of any other name
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
LISTED_MAPS = f"/api/v1/namespaces/{NAMESPACE}-listed/configmaps"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Row(Struct):
    """One measurement: ours, the peer's if there is one, and the target ratio."""

    name: str
    unit: str
    factor: float | None
    recorded: float | None = (
        None  # kube-apiserver v1.35.8 with etcd on a machine of this size, for orientation
    )
    ours: float = 0.0
    peer: float | None = None
    our_cpu: float | None = None  # milliseconds per request: depends less on other load
    peer_cpu: float | None = None

    @property
    def ratio(self) -> float | None:
        """Greater than one: ours is better."""
        other = self.recorded if self.peer is None else self.peer
        if not other or not self.ours:
            return None
        return self.ours / other if self.unit == "/s" else other / self.ours


Act = Callable[[Connection, int, int], Awaitable[None]]
Sample = tuple[float, float | None]  # the measured value, and the CPU time of one request
Measure = Callable[[Target], Awaitable[Sample]]


async def measure(seconds: float, writes: int) -> tuple[list[Figure], str]:
    """The figures of our server, and the table that compares it with the peer."""
    rows: list[tuple[Row, Measure]] = list(_plan(seconds, writes))
    async with _ours() as (ours, started):
        peer = Target.of(Path(PEER), *PEER_PIDS) if PEER else None
        for target in filter(None, (ours, peer)):
            await _prepare(target)
        for row, act in rows:
            row.ours, row.our_cpu = await act(ours)
            if peer is not None:
                row.peer, row.peer_cpu = await act(peer)
        done = [row for row, _ in rows]
        done.append(Row("start-up to /readyz", "s", None, 4.0, started))
        memory = Row("resident after all this", "MB", None, 310.0, _resident(ours.pids[0]))
        if PEER_PIDS:
            memory.peer = _resident(PEER_PIDS[0])
        done.append(memory)
        if peer is not None:
            await _clean(peer)
    figures = [
        Figure(key="j", name=r.name, unit=r.unit, samples=(r.ours,), upstream=r.peer or r.recorded)
        for r in done
    ]
    return figures, table(done)


def _plan(seconds: float, writes: int) -> Iterator[tuple[Row, Measure]]:
    recorded = {"create": 970.0, "get": 1350.0, "merge patch": 700.0, "server-side apply": 560.0}
    factors = {
        "create": 2.0,
        "get": 4.0,
        f"list of {LISTED}": 8.0,
        "merge patch": 2.0,
        "server-side apply": 2.0,
    }
    acts = {
        "create": create,
        "get": get,
        f"list of {LISTED}": list_all,
        "merge patch": patch,
        "server-side apply": apply,
    }
    for name, act in acts.items():
        for at_once in CONCURRENCY:
            row = Row(
                f"{name}, {at_once} at once",
                "/s",
                factors[name],
                recorded.get(name) if at_once == 16 else None,
            )
            yield row, partial(rate, act=act, at_once=at_once, seconds=seconds)
    for count, recorded_ms in ((1, 4.3), (100, 7.1)):
        name = "write to watcher" if count == 1 else f"write to the last of {count} watchers"
        yield Row(name, "ms", 4.0, recorded_ms), partial(measure_watch_latency, watchers=count, writes=writes)


# --- requests


async def create(connection: Connection, worker: int, n: int) -> None:
    body = msgspec.json.encode(_map(f"c-{worker}-{n}-{time.monotonic_ns()}"))
    await connection.ask("POST", MAPS, body, expect=201)


async def get(connection: Connection, worker: int, n: int) -> None:
    await connection.ask("GET", f"{LISTED_MAPS}/m{n % LISTED}")


async def list_all(connection: Connection, worker: int, n: int) -> None:
    await connection.ask("GET", LISTED_MAPS)


async def patch(connection: Connection, worker: int, n: int) -> None:
    body = msgspec.json.encode({"data": {"changed": str(time.monotonic_ns())}})
    await connection.ask("PATCH", f"{MAPS}/p{worker}", body, type=MERGE)


async def apply(connection: Connection, worker: int, n: int) -> None:
    body = msgspec.json.encode({**_map(f"p{worker}"), "data": {"applied": str(time.monotonic_ns())}})
    await connection.ask("PATCH", f"{MAPS}/p{worker}?fieldManager=bench&force=true", body, type=APPLY)


def _map(name: str) -> dict[str, object]:
    data = {"colour": "blue", "text": "x" * 100}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


# --- measuring


async def rate(target: Target, act: Act, at_once: int, seconds: float) -> Sample:
    async with Load(target, at_once) as load:
        before = target.cpu()
        done = await load.rate(act, seconds)
        return done, _each(target, before, load.total)


def _each(target: Target, before: float, count: int) -> float | None:
    return (target.cpu() - before) / count if target.pids and count else None


async def measure_watch_latency(target: Target, watchers: int, writes: int) -> Sample:
    """Milliseconds from the sending of a write until the last watcher has its event; the median."""
    times: list[float] = []
    path = f"{MAPS}?watch=true&resourceVersion={await _revision(target)}"
    async with Load(target, watchers) as load, Load(target, 1) as writing:
        streams = [await connection.follow(path) for connection in load.connections]
        before = target.cpu()
        for n in range(writes):
            begun = time.perf_counter()
            (writer,) = writing.connections
            sent = asyncio.ensure_future(create(writer, 1000 + watchers, n))
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(anext(stream) for stream in streams))
            times.append((time.perf_counter() - begun) * 1000)
            await sent
        return median(times), _each(target, before, writes)


async def _revision(target: Target) -> str:
    async with Load(target, 1) as load:
        answer = await load.connections[0].ask("GET", f"{MAPS}?limit=1")
    return str(msgspec.json.decode(answer)["metadata"]["resourceVersion"])


async def _prepare(target: Target) -> None:
    async with Load(target, 16) as load:
        (first, *_) = load.connections
        for name in (NAMESPACE, f"{NAMESPACE}-listed"):
            await first.ask(
                "POST", "/api/v1/namespaces", msgspec.json.encode({"metadata": {"name": name}}), expect=201
            )
        left = iter(range(LISTED))

        async def fill(connection: Connection) -> None:
            for n in left:
                await connection.ask("POST", LISTED_MAPS, msgspec.json.encode(_map(f"m{n}")), expect=201)
                if n < max(CONCURRENCY):
                    await connection.ask("POST", MAPS, msgspec.json.encode(_map(f"p{n}")), expect=201)

        await asyncio.gather(*(fill(connection) for connection in load.connections))


async def _clean(target: Target) -> None:
    """Delete our namespaces on the peer."""
    async with Load(target, 1) as load:
        for name in (NAMESPACE, f"{NAMESPACE}-listed"):
            await load.connections[0].ask("DELETE", f"/api/v1/namespaces/{name}")


@asynccontextmanager
async def _ours() -> AsyncIterator[tuple[Target, float]]:
    """Start `volplane apiserver` with SQLite as a process; returns the seconds until it was ready."""
    directory = Path(tempfile.mkdtemp(prefix="vp-bench-api-"))
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "apiserver",
        "--data-dir",
        str(directory),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while b"serving on" not in (line := await process.stdout.readline()):
                assert line, "the server ended"
        target = Target.of(directory / "kubeconfig", process.pid)
        async with Load(target, 1) as load:
            await load.connections[0].ask("GET", "/readyz")
        yield target, time.perf_counter() - begun
    finally:
        process.terminate()
        await process.communicate()
        shutil.rmtree(directory)


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


# --- the table


def table(rows: list[Row]) -> str:
    head = ("", "volplane", "peer" if PEER else "kube-apiserver*", "ratio", "aim", "", "CPU each", "peer's")
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        other = row.recorded if row.peer is None else row.peer
        ratio, aim = row.ratio, row.factor
        verdict = "" if ratio is None or aim is None else "✓" if ratio >= aim else "✗"
        shown = ("" if ratio is None else f"{ratio:.1f}x", "" if aim is None else f"{aim:g}x", verdict)
        costs = (_number(row.our_cpu, "ms"), _number(row.peer_cpu, "ms"))
        lines.append(
            (f"(j) {row.name}", _number(row.ours, row.unit), _number(other, row.unit), *shown, *costs)
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown_lines = [
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
    note = (
        ""
        if PEER
        else "\n* measured on another machine of this size; VOLPLANE_BENCH_PEER=kubeconfig measures one here"
    )
    return "\n".join(line.rstrip() for line in shown_lines) + note


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return (
        f"{value:,.0f}{unit}"
        if unit == "/s"
        else f"{value:.2f} {unit}"
        if unit != "MB"
        else f"{value:.0f} MB"
    )
