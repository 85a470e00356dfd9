"""Carry out repairs on a stopped cluster."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import assert_never

from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.fsck.model import (
    CheckFinding,
    DetachLoop,
    EndContainers,
    RemoveBridge,
    RemoveFile,
    RemoveMount,
    Repair,
    SetAside,
)
from volplane.host import devices, mounts, network
from volplane.node.containers import records

ORPHANED = ".orphaned"
REPAIR_TIMEOUT, PAUSE = 10.0, 0.2  # seconds: for repairs that must wait for others, and between two tries


def repair_findings(
    layout: DataDirectory, findings: Iterable[CheckFinding], report: Callable[[str], None]
) -> list[str]:
    """Repair what can be repaired. Returns a line for each repair that failed. The directory is locked."""
    left = sorted((finding.repair for finding in findings if finding.repair is not None), key=_order)
    end = time.monotonic() + REPAIR_TIMEOUT
    while True:
        failed: list[tuple[Repair, OSError]] = []
        for repair in left:
            report(str(repair))
            try:
                _carry_out(layout, repair)
            except OSError as error:
                failed.append((repair, error))
        if not failed or time.monotonic() > end:
            return [f"cannot {repair}: {error.strerror or error}" for repair, error in failed]
        # A loop device may be held by another one, or by a process that is still exiting.
        left = [repair for repair, _ in failed]
        time.sleep(PAUSE)


def _order(repair: Repair) -> int:
    """Containers use mounts, and mounts use loop devices; but a loop device that holds another one is known
    by a mount.
    """
    match repair:
        case EndContainers():
            return 0
        case DetachLoop(file=file) if not file.endswith(".img"):
            return 1
        case RemoveMount():
            return 2
        case _:
            return 3


def _carry_out(layout: DataDirectory, repair: Repair) -> None:
    match repair:
        case EndContainers(directory):
            _end_container(directory)
        case RemoveMount(target):
            mounts.unmount(target, detach=True)
        case DetachLoop(device, file):
            devices.loop_detach(device, file)
        case RemoveBridge():
            network.remove_bridge(layout.bridge)
        case SetAside(path):
            os.rename(layout.directory / path, f"{layout.directory / path}{ORPHANED}")
        case RemoveFile(path):
            (layout.directory / path).unlink(missing_ok=True)
        case _:
            assert_never(repair)


def _end_container(directory: str) -> None:
    record = records.load(directory)
    if record is None:
        return
    for pid, lives in ((record.started.pid, record.is_alive), (record.started.shim, record.is_shim_alive)):
        if lives:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
