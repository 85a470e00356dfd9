"""Volumes that pods have written into their own manifests: the node alone makes them and removes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.ebs import BLOCK, GIB, MODE, EbsEnvironment, ebs_environment, expect_error
from volplane.csi import convert, v1
from volplane.csi.outcome import Code
from volplane.drivers.ebs import connect_ec2
from volplane.drivers.ebs.constants import INLINE_TAG
from volplane.drivers.ebs.ec2 import Ec2
from volplane.drivers.ebs.inline import parse_attributes
from volplane.drivers.ebs.node import EbsNode, EbsNodeConfig
from volplane.sdk.errors import InvalidArgument
from volplane.sdk.server import Local

pytestmark = pytest.mark.root

HANDLE = "csi-" + "0123456789abcdef" * 4
POD = {
    "csi.storage.k8s.io/ephemeral": "true",
    "csi.storage.k8s.io/pod.name": "cache",
    "csi.storage.k8s.io/pod.namespace": "default",
}


def request(
    w: EbsEnvironment, fs_type: str = "ext4", *, readonly: bool = False, **given: str
) -> v1.NodePublishVolumeRequest:
    return v1.NodePublishVolumeRequest(
        volume_id=HANDLE,
        target_path=w.paths["i-1"].csi_target("a", "cache"),
        volume_capability=convert.capability(MODE.SINGLE_NODE_WRITER, fs_type=fs_type),
        volume_context=POD | given,
        readonly=readonly,
    )


async def publish(w: EbsEnvironment, fs_type: str = "ext4", **given: object) -> str:
    wanted = request(w, fs_type, **given)  # type: ignore[arg-type]
    await w.nodes["i-1"].call("NodePublishVolume", wanted)
    return w.paths["i-1"].real(wanted.target_path)


async def unpublish(w: EbsEnvironment) -> None:
    target = w.paths["i-1"].csi_target("a", "cache")
    wanted = v1.NodeUnpublishVolumeRequest(volume_id=HANDLE, target_path=target)
    await w.nodes["i-1"].call("NodeUnpublishVolume", wanted)


async def cloud(w: EbsEnvironment) -> Ec2:
    return await connect_ec2(w.account, w.host)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
async def test_an_inline_volume_lives_as_long_as_its_pod(tmp_path: Path, kind: str) -> None:
    async with ebs_environment(tmp_path) as w:
        ec2 = await cloud(w)
        for _ in range(2):  # a kubelet that was restarted publishes again
            target = await publish(w, kind, size="2Gi", type="gp3", tagSpecification_1="team=db")
        entry = (await w.host.mounts()).at(target)
        assert entry is not None
        assert entry.fstype == kind
        await w.host.atomic_write(f"{target}/note", b"mine", durable=True)
        await publish(w, kind, size="2Gi", type="gp3", tagSpecification_1="team=db")
        assert await w.host.call(Path(f"{target}/note").read_bytes) == b"mine"
        (volume,) = await ec2.volumes()
        assert (volume.size, volume.type, volume.zone) == (2, "gp3", "us-east-1a")
        assert volume.tags[INLINE_TAG] == HANDLE
        assert volume.tags["team"] == "db"
        assert volume.tags["kubernetes.io/created-for/pod/name"] == "cache"
        assert [a.instance for a in volume.attachments] == ["i-1"]
        stats = await w.nodes["i-1"].call(
            "NodeGetVolumeStats",
            v1.NodeGetVolumeStatsRequest(volume_id=HANDLE, volume_path=request(w).target_path),
        )
        assert stats.usage[0].total > GIB
        for _ in range(2):
            await unpublish(w)
        assert await ec2.volumes() == []
        assert not await w.host.call(os.path.exists, target)
        await ec2.close()


async def test_an_inline_volume_can_be_read_only(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        target = await publish(w, readonly=True)
        entry = (await w.host.mounts()).at(target)
        assert entry is not None
        assert entry.readonly
        await unpublish(w)


async def test_what_a_crash_left_is_found_again(tmp_path: Path) -> None:
    """Each half-way point of publishing and of unpublishing, as a node that was killed leaves it."""
    async with ebs_environment(tmp_path) as w:
        ec2 = await cloud(w)
        given = {"Size": "1", "AvailabilityZone": "us-east-1a", "VolumeType": "gp3"}
        made = await ec2.create_volume(given, {INLINE_TAG: HANDLE})  # made, not attached
        await publish(w)
        assert [v.id for v in await ec2.volumes()] == [made.id]
        await unpublish(w)
        made = await ec2.create_volume(given, {INLINE_TAG: HANDLE})
        await ec2.attach_volume(made.id, "i-1", "/dev/xvdbc")  # attached, not mounted
        await publish(w)
        (volume,) = await ec2.volumes()
        assert [a.device for a in volume.attachments] == ["/dev/xvdbc"]
        target = w.paths["i-1"].real(request(w).target_path)
        await w.host.unmount(target)  # unmounted, not detached
        await unpublish(w)
        assert await ec2.volumes() == []
        made = await ec2.create_volume(given, {INLINE_TAG: HANDLE})  # detached, not deleted
        await unpublish(w)
        assert await ec2.volumes() == []
        await ec2.close()


async def test_a_volume_in_use_is_kept_until_it_is_free(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        ec2 = await cloud(w)
        target = await publish(w)
        elsewhere = str(tmp_path / "pinned")
        await w.host.call(os.mkdir, elsewhere)
        await w.host.bind(target, elsewhere)
        await expect_error(Code.FAILED_PRECONDITION, unpublish(w))
        assert [v.state for v in await ec2.volumes()] == ["in-use"]
        await w.host.unmount(elsewhere)
        await unpublish(w)
        assert await ec2.volumes() == []
        await ec2.close()


async def test_what_a_pod_may_not_ask_for(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        ec2 = await cloud(w)
        for given in ({"size": "much"}, {"size": "-1Gi"}, {"type": "floppy"}, {"colour": "blue"}):
            await expect_error(Code.INVALID_ARGUMENT, publish(w, **given))
        raw = request(w)
        raw.volume_capability.CopyFrom(BLOCK)
        await expect_error(Code.INVALID_ARGUMENT, w.nodes["i-1"].call("NodePublishVolume", raw))
        alone = Local(EbsNode(EbsNodeConfig("i-1", "us-east-1a"), w.host, w.paths["i-1"]))
        text = await expect_error(Code.FAILED_PRECONDITION, alone.call("NodePublishVolume", request(w)))
        assert "no AWS account" in text
        await alone.close()
        assert await ec2.volumes() == []
        await ec2.close()


def test_sizes_are_whole_gibibytes_of_what_the_type_allows() -> None:
    assert parse_attributes({})[1] == 1
    assert parse_attributes({"size": "1500Mi"})[1] == 2
    assert parse_attributes({"size": "1Gi", "type": "st1"})[1] == 125
    with pytest.raises(InvalidArgument):
        parse_attributes({"size": "0"})
