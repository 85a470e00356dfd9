"""A first start that fails leaves no process, mount or network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import machine
from volplane.cluster.single_process import Cluster, ClusterOptions
from volplane.host import mounts
from volplane.node.containers import records

pytestmark = pytest.mark.root


class StartFailed(Exception):
    pass


class FailingCluster(Cluster):
    """Its start fails when a container of its own runs."""

    pids: list[int]

    async def _start(self) -> None:
        await super()._start()
        await self.wait_ready()
        found = [r for m in self.members for r in records.load_all(str(m.root / "containers"))]
        self.pids = [r.started.pid for r in found if r.is_alive]
        self._started = self._complete = False  # as if it had failed before
        raise StartFailed


async def test_the_containers_of_a_discarded_cluster_are_killed(tmp_path: Path) -> None:
    options = ClusterOptions(data_dir=str(tmp_path / "c"), nodes=1, nodes_per_zone=1)
    cluster = FailingCluster(options)
    with pytest.raises(StartFailed):
        await cluster.__aenter__()
    assert not mounts.read_table().under(str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()
    assert not running(cluster.pids)
    assert machine.interfaces(tmp_path) == {}


def running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
