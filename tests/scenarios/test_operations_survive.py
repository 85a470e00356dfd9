"""The whole process is killed while a volume grows and while a snapshot is taken; its next life goes on."""

from __future__ import annotations

import pytest

from tests.scenarios import test_volume_operations as operations
from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]


def test_a_story_with_two_deaths() -> None:
    cluster = Up(nodes=1)
    try:
        cluster.start({"VOLPLANE_FAILPOINT": "rpc:ControllerExpandVolume:after"})
        cluster.apply(operations.XFS)
        cluster.apply(operations.claim("data", cls="xfs"))
        operations.run(cluster, "user", "data")
        before = operations.write(cluster, "user")
        operations.grow(cluster, "data", "2Gi")
        cluster.wait_until_exit(60)
        cluster.start({"VOLPLANE_FAILPOINT": "rpc:CreateSnapshot:after"})
        wait_until("the claim has grown", lambda: operations.has_grown(cluster, "data", "2Gi"), 60)
        cluster.apply(operations.SNAPSHOT.format(name="moment", of="data"))
        cluster.wait_until_exit(60)
        cluster.start()
        assert operations.ready(cluster, "moment")["restoreSize"] == "2Gi"
        assert len(cluster.aws("describe-snapshots")["Snapshots"]) == 1
        assert operations.mebibytes(cluster, "user") > 1500
        assert operations.read(cluster, "user") == before
        cluster.kubectl("delete", "pods,volumesnapshots,pvc", "--all", "--timeout=60s")
        wait_until("no volume is left", lambda: cluster.kubectl("get", "pv", "-o", "name") == "", 60)
        assert cluster.aws("describe-snapshots")["Snapshots"] == []
    finally:
        cluster.remove()
    assert cluster.leftovers() == {}
