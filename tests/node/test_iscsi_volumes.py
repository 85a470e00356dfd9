"""iscsi volumes on a real node, with an `iscsiadm` that makes loop devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import node_env, read, write
from tests.support.iscsi_target import IscsiTarget
from volplane.volumes.iscsi import plugin

pytestmark = pytest.mark.root

IQN, PORTAL = "iqn.2026-01.com.example:a", "10.0.0.1:3260"
SOURCE = {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0}


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IscsiTarget]:
    made = IscsiTarget(tmp_path, monkeypatch, {IQN: [0]})
    monkeypatch.setattr(plugin, "IscsiSettings", made.settings)  # where the node looks for /sys and /dev
    yield made
    made.close()


async def test_a_pod_keeps_its_disk_while_the_node_restarts(target: IscsiTarget) -> None:
    async def logged_out() -> bool:
        return not target.sessions()

    async with node_env() as here:
        await here.start()
        await here.volume(attached=False, csi=None, iscsi=SOURCE)
        await here.pod(claim="data")
        pod = await here.wait_until_ready()
        assert here.role is not None
        path = here.role.volumes.mounted_volumes(pod.uid)["data"].path
        write(f"{path}/file", "kept")
        await here.stop(drain=False)
        await here.start()
        await here.wait_until_ready()
        assert read(f"{path}/file") == "kept"
        assert sum("--login" in call for call in target.calls()) == 1
        assert await here.in_use() == []
        await here.stop(drain=False)
        await here.delete()  # while the node is down
        await here.start()
        await here.wait_for_phase("gone")
        await until(logged_out, here.timeout)
        assert not here.list_mounts()


async def test_a_pod_whose_target_does_not_answer_gets_an_event_and_its_disk_later(
    target: IscsiTarget,
) -> None:
    target.configure(answers={PORTAL: "refuse"})
    async with node_env() as here:
        await here.start()
        volume = {"name": "v", "iscsi": SOURCE}
        await here.pod(volumes=[volume], mounts=[{"name": "v", "mountPath": "/v"}])
        text = await here.wait_for_event("MountVolume.MountDevice failed")
        assert f'for volume "v" : cannot attach {PORTAL}:{IQN}:0: portal {PORTAL}: iscsiadm ' in text
        assert f"cannot make connection to {PORTAL}" in text
        target.configure()
        await here.wait_until_ready()
        await here.delete()
        await here.wait_for_phase("gone")
