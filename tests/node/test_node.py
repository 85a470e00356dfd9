"""A node: its objects, its drivers, and a pod with a disk from creation to removal."""

from __future__ import annotations

import json
import os

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import DRIVER, NODE, NodeEnv, node_env, unique_name
from volplane.api.coordination import Lease
from volplane.api.core import Node, Pod
from volplane.api.storage import CSINode
from volplane.client.client import Client

pytestmark = pytest.mark.root


async def test_a_node_introduces_itself() -> None:
    async with node_env() as here:
        await here.start()

        async def ready() -> Node | None:
            node = await here.client.get(Node, NODE)
            fit = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
            return node if fit else None

        node = await until(ready)
        assert node.metadata.labels["kubernetes.io/hostname"] == NODE
        assert node.metadata.labels["topology.kubernetes.io/zone"] == "us-east-1a"
        assert node.metadata.labels["node.kubernetes.io/instance-type"] == "m5.large"
        assert node.metadata.annotations["volumes.kubernetes.io/controller-managed-attach-detach"] == "true"
        assert node.spec.provider_id == "aws:///us-east-1a/i-0123456789"
        assert node.status.capacity["pods"] == "110"
        lease = await until(lambda: here.client.find(Lease, NODE, "kube-node-lease"))
        assert lease.spec.holder_identity == NODE
        assert lease.metadata.owner_references[0].uid == node.uid
        csinode = await here.client.get(CSINode, NODE)
        assert csinode.metadata.owner_references[0].uid == node.uid


async def test_a_driver_registers_and_leaves() -> None:
    async with node_env() as here:
        await here.start()
        await here.start_driver()
        (driver,) = (await here.wait_until_registered()).spec.drivers
        assert (driver.name, driver.node_id) == (DRIVER, "n-1")
        assert driver.topology_keys == ("topology.disks.test/zone",)
        assert driver.allocatable is not None
        assert driver.allocatable.count == 5
        node = await here.client.get(Node, NODE)
        assert node.metadata.labels["topology.disks.test/zone"] == "a"
        assert json.loads(node.metadata.annotations["csi.volume.kubernetes.io/nodeid"]) == {DRIVER: "n-1"}
        await here.stop_driver()

        async def left() -> bool:
            return not (await here.client.get(CSINode, NODE)).spec.drivers

        await until(left)
        node = await until(lambda: _without_ids(here.client))
        assert node.metadata.labels["topology.disks.test/zone"] == "a"


async def _without_ids(client: Client) -> Node | None:
    node = await client.get(Node, NODE)
    return None if "csi.volume.kubernetes.io/nodeid" in node.metadata.annotations else node


async def test_a_pod_gets_its_disk_and_gives_it_back() -> None:
    async with node_env() as here:
        await here.start()
        await here.start_driver()
        await here.wait_until_registered()
        await here.volume()
        await here.pod(claim="data")
        pod = await here.wait_until_ready()
        assert pod.status.phase == "Running"
        assert here.disks.count_calls() == {"stage": 1, "publish": 1}
        stage, publish = here.disks.calls[0][1], here.disks.calls[1][1]
        assert stage.volume_id == "vol-data"
        assert dict(stage.publish_context) == {"devicePath": "/dev/data"}
        assert stage.volume_capability.mount.fs_type == "ext4"
        assert stage.staging_target_path.startswith(f"/var/lib/kubelet/plugins/kubernetes.io/csi/{DRIVER}/")
        assert publish.target_path == (
            f"/var/lib/kubelet/pods/{pod.uid}/volumes/kubernetes.io~csi/pv-data/mount"
        )
        assert publish.staging_target_path == stage.staging_target_path
        assert here.list_mounts() == sorted([stage.staging_target_path, publish.target_path])
        assert await here.in_use() == [unique_name()]
        data = json.loads(_read(here.paths.real(here.paths.csi_data(pod.uid, "pv-data"))))
        assert data["volumeHandle"] == "vol-data"
        assert data["volumeLifecycleMode"] == "Persistent"

        await here.delete()
        await here.wait_for_phase("gone")
        await until(lambda: _nothing_in_use(here))
        assert here.disks.count_calls() == {"stage": 1, "publish": 1, "unpublish": 1, "unstage": 1}
        assert here.list_mounts() == []
        await until(lambda: _is_clean(here))


async def _is_clean(here: NodeEnv) -> bool:
    return not os.listdir(here.paths.real(here.paths.pods))


async def _nothing_in_use(here: NodeEnv) -> bool:
    return not await here.in_use()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


async def test_the_pods_own_fields_are_reported() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(restartPolicy="Never", container={"image": "once", "args": ["3"]})
        await here.wait_for_phase("Failed")
        pod = await here.client.get(Pod, "app", "default")
        (status,) = pod.status.container_statuses
        assert status.state.terminated is not None
        assert status.state.terminated.exit_code == 3
        assert status.container_id.startswith("task://")
        assert pod.status.host_ip == "127.0.0.1"
        assert pod.status.start_time
