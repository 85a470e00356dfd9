"""What is left of a cluster in the background, and waiting for one to be ready."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from volplane.cluster import leftovers, lifecycle, supervisor
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.lifecycle import ClusterPhase, ClusterProcesses
from volplane.host.mounts import MountTable
from volplane.host.processes import spawn


def test_a_data_directory_that_is_a_mount_point_is_not_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = DataDirectory(tmp_path)
    own = f"30 1 8:1 / {tmp_path} rw - ext4 /dev/sda1 rw"
    inner = f"31 30 8:2 / {tmp_path}/nodes/worker-1/pods/x rw - ext4 /dev/loop7 rw"
    table = MountTable.parse(own)
    monkeypatch.setattr(leftovers, "read_table", lambda: table)
    assert leftovers.describe_leftovers(layout) == ""
    table = MountTable.parse(f"{own}\n{inner}")
    assert leftovers.describe_leftovers(layout) == "1 mount"


def test_the_directory_of_another_user_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, pattern: str) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "glob", refuse)
    assert leftovers.describe_leftovers(DataDirectory(tmp_path)) == ""


def test_a_cluster_that_was_ready_and_ended_at_once_was_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = iter((ClusterPhase.RUNNING, ClusterPhase.STOPPED))
    monkeypatch.setattr(lifecycle, "find_processes", lambda layout: ClusterProcesses(next(phases)))
    assert lifecycle.wait_ready(DataDirectory(tmp_path), None, 60.0, lambda: None) == ""


async def test_a_supervisor_notes_the_readiness_also_if_it_may_not_watch_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files", "inotify")

    monkeypatch.setattr(supervisor, "Inotify", refuse)
    monkeypatch.setattr(supervisor, "LOOK", 0.01)
    layout = DataDirectory(tmp_path)
    process = spawn(["sleep", "60"])
    made = supervisor.Supervisor(layout)
    try:
        noting = asyncio.create_task(made._note_ready(process))
        await asyncio.sleep(0)
        layout.ready.write_text(str(process.pid))
        async with asyncio.timeout(60):
            await noting
        assert made._was_ready
    finally:
        process.kill()
        await process.wait()
