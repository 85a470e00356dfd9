"""A cloud that takes its time and fails: latency in virtual time, faults by script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.ebs import EXT4, GIB
from volplane.base import clock
from volplane.cloud import CloudInstance, CloudOptions, serve_endpoint
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.faults import FaultScript
from volplane.csi import v1
from volplane.drivers.ebs import AwsAccount, EbsController, EbsNode, EbsNodeConfig, connect_ec2
from volplane.drivers.ebs.ec2 import Ec2, Ec2Error
from volplane.drivers.ebs.inline import ConnectEc2
from volplane.host import Host, NodePaths
from volplane.rules import latency
from volplane.sdk import Local
from volplane.store.memory import MemoryStore

ZONE = "us-east-1a"
GIVEN = {"Size": "1", "AvailabilityZone": ZONE, "VolumeType": "gp3"}


@asynccontextmanager
async def cloud(directory: Path, host: Host, **more: Any) -> AsyncIterator[tuple[Ec2, NodePaths]]:
    paths = NodePaths(str(directory / "n"))
    node = CloudInstance("i-1", ZONE, paths.dev)
    settings = CloudOptions(
        data_dir=str(directory), access_key="a", secret_key="b", instances=(node,), **more
    )
    async with serve_endpoint(settings, host, MemoryStore()) as address:
        ec2 = await connect_ec2(AwsAccount(address, access_key="a", secret_key="b"), host)
        try:
            yield ec2, paths
        finally:
            await ec2.close()


def connecting(ec2: Ec2) -> ConnectEc2:
    async def connect() -> Ec2:
        return ec2

    return connect


@pytest.mark.root
@pytest.mark.virtual
@pytest.mark.parametrize(
    ("profile", "kind", "least", "most"),
    [("ebs", "gp3", 15, 45), ("io2", "gp3", 5, 20), ("aws", "gp3", 15, 45), ("aws", "io2", 5, 16)],
)
async def test_a_journey_takes_as_long_as_in_a_cloud(
    tmp_path: Path, profile: str, kind: str, least: float, most: float
) -> None:
    host = Host()
    async with cloud(tmp_path, host, latency=profile) as (ec2, paths):
        controller = Local(EbsController(ec2))
        own = EbsNode(EbsNodeConfig("i-1", ZONE, latency=profile), host, paths, connect=connecting(ec2))
        node = Local(own)
        for number in range(3):
            create = v1.CreateVolumeRequest(
                name=f"pvc-{number}",
                volume_capabilities=[EXT4],
                capacity_range={"required_bytes": 4 * GIB},
                parameters={"type": kind, **({"iops": "100"} if kind == "io2" else {})},
            )
            made = await controller.call("CreateVolume", create, timeout=60)
            volume, start = made.volume.volume_id, clock.now()
            publish = v1.ControllerPublishVolumeRequest(
                volume_id=volume, node_id="i-1", volume_capability=EXT4
            )
            reply = await controller.call("ControllerPublishVolume", publish, timeout=60)
            staging, target = paths.staging("ebs.csi.aws.com", volume), paths.csi_target("pod", volume)
            stage = v1.NodeStageVolumeRequest(
                volume_id=volume,
                staging_target_path=staging,
                publish_context=reply.publish_context,
                volume_capability=EXT4,
            )
            await node.call("NodeStageVolume", stage, timeout=60)
            mount = v1.NodePublishVolumeRequest(
                volume_id=volume, staging_target_path=staging, target_path=target, volume_capability=EXT4
            )
            await node.call("NodePublishVolume", mount, timeout=60)
            assert least <= clock.now() - start <= most
            undo = v1.NodeUnpublishVolumeRequest(volume_id=volume, target_path=target)
            await node.call("NodeUnpublishVolume", undo)
            await node.call(
                "NodeUnstageVolume",
                v1.NodeUnstageVolumeRequest(volume_id=volume, staging_target_path=staging),
            )
            leave = v1.ControllerUnpublishVolumeRequest(volume_id=volume, node_id="i-1")
            await controller.call("ControllerUnpublishVolume", leave, timeout=60)
    await host.close()


@pytest.mark.root
@pytest.mark.virtual
async def test_a_snapshot_is_pending_before_it_is_completed(tmp_path: Path) -> None:
    host = Host()
    async with cloud(tmp_path, host, latency="ebs") as (ec2, _):
        volume = await ec2.create_volume(GIVEN, {})
        states, start = set[str](), clock.now()
        for number in range(3):
            taken = await ec2.create_snapshot(volume.id, "", {"n": str(number)})
            states.add(taken.state)
            while (await ec2.snapshot(taken.id)).state != "completed":  # noqa: ASYNC110
                await asyncio.sleep(1)
        assert "pending" in states  # it takes longer than a request waits
        assert clock.now() - start > 30
    await host.close()


def test_the_ranges_lie_in_the_table() -> None:
    table = {
        ("ebs", "AttachVolume"): (5, 30),
        ("ebs", "NodeStageVolume"): (2, 10),
        ("io2", "AttachVolume"): (5, 15),
        ("io2", "NodeStageVolume"): (0.5, 0.5),
        ("efs", "NodePublishVolume"): (1, 2),
    }
    for (profile, step), (low, high) in table.items():
        assert low <= latency.seconds(profile, step, 0.0) <= latency.seconds(profile, step, 1.0) <= high
    assert latency.seconds("efs", "AttachVolume", 0.5) == 0
    with pytest.raises(ValueError, match="ebs, io2, efs, aws"):
        CloudOptions(data_dir="", access_key="", secret_key="", latency="floppy")


@pytest.mark.root
async def test_faults_by_script(tmp_path: Path) -> None:
    host, file = Host(), tmp_path / "faults.json"
    file.write_text(json.dumps([{"action": "DescribeAvailabilityZones", "code": "Unavailable", "skip": 1}]))
    async with cloud(tmp_path, host, faults=str(file)) as (ec2, _):
        await ec2.zones()
        with pytest.raises(Ec2Error, match="Unavailable"):
            await ec2.zones()
        await ec2.zones()
        lost = {"action": "Create*", "after": True}
        await ec2.call("SetFaults", {"Script": json.dumps([lost])})
        given = {**GIVEN, "ClientToken": "t"}
        with pytest.raises(Ec2Error, match="InternalError"):
            await ec2.create_volume(given, {})
        (volume,) = await ec2.volumes()  # it was made; only the answer was lost
        assert (await ec2.create_volume(given, {})).id == volume.id
        stuck = {"action": "DeleteVolume", "resource": volume.id, "times": 2, "status": 400, "code": "Busy"}
        await ec2.call("SetFaults", {"Script": json.dumps([stuck])})
        for _ in range(2):
            with pytest.raises(Ec2Error, match="Busy"):
                await ec2.delete_volume(volume.id)
        await ec2.delete_volume(volume.id)
        with pytest.raises(Ec2Error, match="unknown field"):
            await ec2.call("SetFaults", {"Script": '[{"acton": "x"}]'})
    await host.close()


@pytest.mark.root
@pytest.mark.virtual
async def test_a_slow_answer_is_no_answer(tmp_path: Path) -> None:
    host = Host()
    async with cloud(tmp_path, host) as (ec2, _):
        slow = [{"action": "CreateVolume", "delay": 100.0, "code": ""}]
        await ec2.call("SetFaults", {"Script": json.dumps(slow)})
        controller = Local(EbsController(ec2))
        request = v1.CreateVolumeRequest(
            name="x", volume_capabilities=[EXT4], capacity_range={"required_bytes": GIB}
        )
        with pytest.raises(Exception, match=r"CreateVolume: .* did not answer within 60 s"):
            await controller.call("CreateVolume", request, timeout=200)
        await asyncio.sleep(100)
        made = await controller.call("CreateVolume", request, timeout=60)
        assert [v.id for v in await ec2.volumes()] == [made.volume.volume_id]
    await host.close()


def test_the_first_fault_that_fits_takes_the_request() -> None:
    faults = FaultScript.read(
        b'[{"action": "A", "resource": "vol-1", "code": "one"}, {"times": 0, "code": "all"}]'
    )
    codes = [getattr(faults.next_fault("A", r), "code", "") for r in (("vol-2",), ("vol-1",), ("vol-1",), ())]
    assert codes == ["all", "one", "all", "all"]
    with pytest.raises(Ec2ErrorResponse):
        FaultScript.read(b"nonsense")


@pytest.mark.root
async def test_questions_about_volumes_go_out_together(tmp_path: Path) -> None:
    host = Host()
    async with cloud(tmp_path, host) as (ec2, _):
        made = [await ec2.create_volume(GIVEN, {}) for _ in range(10)]
        asked = list[str]()
        send = ec2._send

        async def count_requests(action: str, given: Any) -> Any:
            asked.append(action)
            return await send(action, given)

        ec2._send = count_requests  # type: ignore[method-assign, assignment]
        found = await asyncio.gather(*(ec2.volume(v.id) for v in made for _ in range(3)))
        assert {v.id for v in found} == {v.id for v in made}
        assert len(asked) <= 2
        gone = asyncio.gather(ec2.volume("vol-00000000"), ec2.volume(made[0].id), return_exceptions=True)
        error, there = await gone
        assert isinstance(error, Ec2Error)
        assert error.code == "InvalidVolume.NotFound"
        assert there == found[0]
    await host.close()


@pytest.mark.root
async def test_the_driver_waits_when_it_is_throttled(tmp_path: Path) -> None:
    host = Host()
    async with cloud(tmp_path, host, request_rate=20.0, request_burst=1) as (ec2, _):
        assert [await ec2.zones() for _ in range(4)] == [[ZONE]] * 4
    await host.close()
