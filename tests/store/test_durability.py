"""An acknowledged write is on disk: the writer is killed, and its system calls are traced."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from volplane.store.sqlite import SqliteStore

# Writes from several coroutines at once and prints each acknowledgement with one write(2).
PROGRAM = """
import asyncio, os, sys
from volplane.store.sqlite import SqliteStore

async def writer(store, name, count):
    revision = 0
    for n in range(count):
        key, value = f"/k/{name}", str(n).encode()
        revision = await (store.update(key, value, revision=revision) if n else store.create(key, value))
        os.write(1, f"{name} {n} {revision}\\n".encode())

async def main(path, writers, count):
    store = await SqliteStore.open(path)
    os.write(1, b"ready\\n")
    await asyncio.gather(*(writer(store, name, count) for name in range(writers)))
    os._exit(0)

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


def write_until_killed(path: Path) -> dict[str, tuple[int, int]]:
    """The last value and revision that each writer saw acknowledged."""
    acknowledged: dict[str, tuple[int, int]] = {}
    command = [sys.executable, "-c", PROGRAM, str(path), "20", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for line in process.stdout:
            name, n, revision = line.split()
            acknowledged[name] = int(n), int(revision)
            if int(revision) > 500:
                process.send_signal(signal.SIGKILL)  # the lines still in the pipe were acknowledged, too
    assert process.returncode == -signal.SIGKILL
    return acknowledged


async def test_every_acknowledged_write_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    acknowledged = write_until_killed(path)
    store = await SqliteStore.open(path)
    assert store.revision >= max(revision for _, revision in acknowledged.values())
    for name, (n, revision) in acknowledged.items():
        record = store.peek(f"/k/{name}")
        assert record is not None
        assert (int(record.value), record.revision) >= (n, revision)
        assert record.revision > revision or int(record.value) == n
    assert await store.create("/after", b"") == store.revision
    async with store.watch("/", revision=0) as watch:
        revisions = [event.revision for event in await anext(aiter(watch))]
    assert revisions == list(range(1, store.revision + 1))
    await store.close()


@pytest.mark.peer("strace")
@pytest.mark.parametrize("writers", [1, 8])
def test_a_sync_comes_before_each_acknowledgement(tmp_path: Path, writers: int) -> None:
    trace = tmp_path / "trace"
    calls = ["strace", "-f", "-ttt", "-y", "-o", str(trace), "-e", "trace=fdatasync,fsync,write,pwrite64"]
    command = [*calls, sys.executable, "-c", PROGRAM, str(tmp_path / "store.db"), str(writers), "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1 + writers * 20

    ready, synced, unsynced, acknowledged = False, 0, 0, 0
    for call in trace.read_text().splitlines():
        if '"ready' in call:
            ready = True
        elif not ready:
            continue
        elif "pwrite64" in call and "-wal>" in call:
            unsynced += 1
        elif re.search(r"f(data)?sync(\(.*-wal>| resumed).*= 0$", call):
            synced, unsynced = synced + 1, 0
        elif re.search(r'write\(1<[^>]*>, "\d+ \d+ \d+', call):
            acknowledged += 1
            assert acknowledged <= writers * synced, f"acknowledged before its sync: {call}"
            if writers == 1:  # with several, the next batch may already be on its way to the disk
                assert not unsynced, f"acknowledged with writes not synced: {call}"
    assert acknowledged == writers * 20
