"""A restarted node finds the unfinished starts of its earlier process."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from volplane.base.directory_identity import boot_id
from volplane.host.processes import start_time
from volplane.node.containers import records
from volplane.node.containers.base import ContainerSpec
from volplane.node.containers.records import StartedRecord


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Create and lock the directory, as the shim does."""
    directory.mkdir()
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def write_container_record(directory: Path) -> None:
    spec = ContainerSpec(id=directory.name, pod_uid="u", pod_name="p", namespace="n", name="c", image="i")
    me = os.getpid()
    made = StartedRecord(spec, me, start_time(me), me, start_time(me), boot_id(), "2026-01-02T03:04:05Z")
    whole = directory / "container.json.new"
    whole.write_bytes(msgspec.json.encode(made))
    whole.rename(directory / "container.json")


async def start_loading(base: Path) -> asyncio.Task[list[records.ProcessContainerRecord]]:
    asked = asyncio.create_task(asyncio.to_thread(records.load_all, str(base)))
    await asyncio.wait({asked}, timeout=0.2)
    assert not asked.done()  # the start is unfinished
    return asked


async def test_a_start_that_succeeds_meanwhile_is_found(tmp_path: Path) -> None:
    with lock_directory(tmp_path / "c1"):
        asked = await start_loading(tmp_path)
        write_container_record(tmp_path / "c1")
        (found,) = await asyncio.wait_for(asked, 60)
    assert found.started.spec.id == "c1"


async def test_a_start_that_was_given_up_is_cleared_away(tmp_path: Path) -> None:
    with lock_directory(tmp_path / "c1"):
        asked = await start_loading(tmp_path)
    assert await asyncio.wait_for(asked, 60) == []
    assert not (tmp_path / "c1").exists()


async def test_a_start_that_comes_to_no_end_is_found_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "START_TIMEOUT", 0.3)
    with lock_directory(tmp_path / "c1"):
        assert await asyncio.to_thread(records.load_with_starts, str(tmp_path)) == (
            [],
            [records.UnfinishedStart(str(tmp_path / "c1"))],
        )
        assert (tmp_path / "c1").exists()


async def test_a_start_whose_first_process_outlives_its_supervisor_is_not_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "START_TIMEOUT", 0.0)
    me = os.getpid()
    begun = records.StartRecord(me, start_time(me), 1, 0, boot_id())
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1" / "start.json").write_bytes(msgspec.json.encode(begun))
    found = await asyncio.to_thread(records.load_with_starts, str(tmp_path))
    assert found == ([], [records.UnfinishedStart(str(tmp_path / "c1"), begun)])
    assert begun.live_pids == [me]
