"""In-tree volumes on a node: translated to CSI, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.node_env import NODE, NodeEnv, node_env
from tests.node.test_volume_expansion import SOON, expand_disk, expansions, status, until_capacity
from volplane.api import names
from volplane.api.annotations import MIGRATED_PLUGINS_ANNOTATION
from volplane.api.codec import convert
from volplane.api.core import Node, PersistentVolume
from volplane.api.storage import CSINode, StorageClass, VolumeAttachment
from volplane.sdk import Local
from volplane.volumes import csi as volumes_csi

pytestmark = pytest.mark.root
EBS = "ebs.csi.aws.com"


async def start(here: NodeEnv) -> None:
    """A node with the test's driver under the name of the EBS driver."""
    role = await here.start(claim_read_frequency=SOON)
    role.drivers.add(volumes_csi.RegisteredDriver(EBS, Local(here.disks, component="kubelet")))


async def attach(here: NodeEnv, disk: str, source: dict[str, Any]) -> None:
    name = names.attachment_name(disk, EBS, NODE)
    spec = {"attacher": EBS, "nodeName": NODE, "source": source}
    await here.client.create(convert(VolumeAttachment, {"metadata": {"name": name}, "spec": spec}))
    await here.client.patch(
        VolumeAttachment, name, merge={"status": {"attached": True}}, subresource="status"
    )
    listed = [{"name": names.csi_volume_name(EBS, disk), "devicePath": ""}]
    await here.client.patch(Node, NODE, merge={"status": {"volumesAttached": listed}}, subresource="status")


async def refuse(here: NodeEnv, source: dict[str, Any]) -> str:
    """The event of a pod with this volume."""
    mounts = [{"name": "data", "mountPath": "/data"}]
    await here.pod(volumes=[{"name": "data", **source}], mounts=mounts)
    return await here.wait_for_event("Unable to attach or mount volumes")


async def test_an_in_tree_volume_is_staged_as_a_csi_volume_and_expanded_while_it_is_mounted() -> None:
    async with node_env() as here:
        await start(here)
        source = {"volumeID": "aws://us-east-1a/vol-data", "fsType": "xfs", "partition": 1}
        fast = {"metadata": {"name": "fast"}, "provisioner": EBS, "allowVolumeExpansion": True}
        await here.client.create(convert(StorageClass, fast))
        await here.volume(attached=False, csi=None, awsElasticBlockStore=source, storageClassName="fast")
        await status(here, {"capacity": {"storage": "1Gi"}})
        await attach(here, "vol-data", {"persistentVolumeName": "pv-data"})
        await here.pod(claim="data")
        await here.wait_until_ready()
        (stage,) = [request for name, request in here.disks.calls if name == "stage"]
        assert (stage.volume_id, stage.volume_capability.mount.fs_type) == ("vol-data", "xfs")
        assert dict(stage.volume_context) == {"partition": "1"}
        assert await here.in_use() == [f"kubernetes.io/csi/{EBS}^vol-data"]
        found = await here.client.get(PersistentVolume, "pv-data")
        assert found.spec.aws_elastic_block_store is not None  # the object is as the user wrote it
        await expand_disk(here)
        await until_capacity(here, "2Gi")
        (request,) = expansions(here)
        assert request.volume_id == "vol-data"


async def test_a_volume_of_a_pod_is_named_after_its_disk_and_found_again_after_a_restart() -> None:
    async with node_env() as here:
        await start(here)
        csi = {"driver": EBS, "volumeHandle": "vol-1"}
        inline = {"inlineVolumeSpec": {"csi": csi, "accessModes": ["ReadWriteOnce"]}}
        await attach(here, "vol-1", inline)
        volume = {"name": "data", "awsElasticBlockStore": {"volumeID": "vol-1", "readOnly": True}}
        made = await here.pod(volumes=[volume], mounts=[{"name": "data", "mountPath": "/data"}])
        await here.wait_until_ready()
        target = f"/var/lib/kubelet/pods/{made.uid}/volumes/kubernetes.io~csi/{EBS}-vol-1/mount"
        assert target in here.list_mounts()
        (publish,) = [request for name, request in here.disks.calls if name == "publish"]
        assert publish.readonly
        await here.stop(drain=False)
        await start(here)
        await here.wait_until_ready()
        await here.delete()
        await here.wait_for_phase("gone")
        assert not any("kubernetes.io~csi" in path for path in here.list_mounts())


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            {"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/disk"}},
            'volume data: awsElasticBlockStore.volumeID: "aws://us-east-1a/disk" is not a volume id',
        ),
        (
            {"gcePersistentDisk": {"pdName": "d"}},
            "gcePersistentDisk: the in-tree plugin kubernetes.io/gce-pd is replaced by the CSI driver "
            "pd.csi.storage.gke.io",
        ),
        (
            {"cephfs": {"monitors": ["m"]}},
            "cephfs: the in-tree plugin kubernetes.io/cephfs was removed from Kubernetes in v1.31",
        ),
    ],
)
async def test_a_volume_that_cannot_be_served_has_an_event_that_says_why(
    source: dict[str, Any], why: str
) -> None:
    async with node_env() as here:
        await here.start()
        assert why in await refuse(here, source)


async def test_the_csinode_lists_the_translated_plugins_also_after_an_upgrade() -> None:
    async with node_env() as here:
        role = await here.start()
        found = await here.client.get(CSINode, NODE)
        assert found.metadata.annotations == {MIGRATED_PLUGINS_ANNOTATION: "kubernetes.io/aws-ebs"}
        old = {"metadata": {"annotations": {MIGRATED_PLUGINS_ANNOTATION: ""}}}
        await here.client.patch(CSINode, NODE, merge=old)
        again = await role.csinode.ensure()
        assert again.metadata.annotations == {MIGRATED_PLUGINS_ANNOTATION: "kubernetes.io/aws-ebs"}
