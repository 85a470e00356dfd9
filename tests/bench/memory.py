"""(f) Resident memory, idle and with a thousand claims.

The RSS of the process, as `ps` shows it; then including the private pages of its nodes' launchers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.bench.claims import create_bound, delete_all
from tests.bench.cluster_process import ClusterProcess, descendants
from tests.bench.report import Figure

SETTLE = 1.0  # seconds after the last write until background work is done


async def measure(running: ClusterProcess, count: int) -> list[Figure]:
    await asyncio.sleep(SETTLE)
    idle, idle_all = resident(running.process.pid), total(running.process.pid)
    await create_bound(running, count, "held")
    await asyncio.sleep(SETTLE)
    full, full_all = resident(running.process.pid), total(running.process.pid)
    await delete_all(running)
    return [
        _figure("resident memory, idle", idle, aim=120, upstream=988),
        _figure("    and its helpers", idle_all),
        _figure(f"resident memory, {count} claims", full),
        _figure("    and its helpers", full_all),
    ]


def _figure(name: str, value: float, aim: float | None = None, upstream: float | None = None) -> Figure:
    return Figure(key="f", name=name, unit="MB", samples=(value,), aim=aim, upstream=upstream)


def resident(pid: int) -> float:
    return _field(f"/proc/{pid}/smaps_rollup", "Rss:")


def total(pid: int) -> float:
    return resident(pid) + sum(own_pages(helper) for helper in descendants(pid))


def own_pages(pid: int) -> float:
    path = f"/proc/{pid}/smaps_rollup"
    return _field(path, "Private_Clean:") + _field(path, "Private_Dirty:")


def _field(path: str, name: str) -> float:
    """In MB (10^6 bytes)."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:  # ended meanwhile
        return 0.0
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))
