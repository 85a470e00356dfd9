"""A disk service, a controller and two nodes, on real sockets, for tests of the EBS driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from volplane.cloud import CloudInstance, CloudOptions, serve_endpoint
from volplane.csi import convert, v1
from volplane.csi.client import Caller, CsiChannel
from volplane.csi.outcome import CallError, Code
from volplane.drivers.ebs import AwsAccount, EbsController, EbsNode, EbsNodeConfig, connect_ec2
from volplane.host import Host, NodePaths
from volplane.sdk import DriverServer
from volplane.store.memory import MemoryStore

GIB = 1 << 30
MODE = v1.VolumeCapability.AccessMode
EXT4 = convert.capability(MODE.SINGLE_NODE_MULTI_WRITER, fs_type="ext4")
BLOCK = convert.capability(MODE.SINGLE_NODE_WRITER, block=True)


class EbsEnvironment(Struct):
    account: AwsAccount
    controller: Caller
    nodes: dict[str, CsiChannel]
    paths: dict[str, NodePaths]
    host: Host

    async def create(self, name: str = "pvc-1", gib: int = 1, **more: Any) -> str:
        request = v1.CreateVolumeRequest(
            name=name, volume_capabilities=[EXT4], capacity_range={"required_bytes": gib * GIB}, **more
        )
        reply = await self.controller.call("CreateVolume", request)
        return str(reply.volume.volume_id)

    async def publish(self, volume: str, node: str, capability: v1.VolumeCapability = EXT4) -> dict[str, str]:
        request = v1.ControllerPublishVolumeRequest(
            volume_id=volume, node_id=node, volume_capability=capability
        )
        reply = await self.controller.call("ControllerPublishVolume", request)
        return dict(reply.publish_context)

    async def unpublish(self, volume: str, node: str) -> None:
        request = v1.ControllerUnpublishVolumeRequest(volume_id=volume, node_id=node)
        await self.controller.call("ControllerUnpublishVolume", request)

    async def delete(self, volume: str) -> None:
        await self.controller.call("DeleteVolume", v1.DeleteVolumeRequest(volume_id=volume))

    async def stage(
        self, volume: str, node: str, context: dict[str, str], capability: v1.VolumeCapability = EXT4
    ) -> str:
        staging = self.paths[node].staging("ebs.csi.aws.com", volume)
        request = v1.NodeStageVolumeRequest(
            volume_id=volume,
            staging_target_path=staging,
            publish_context=context,
            volume_capability=capability,
        )
        await self.nodes[node].call("NodeStageVolume", request)
        return staging

    async def mount(
        self,
        volume: str,
        node: str,
        pod: str,
        capability: v1.VolumeCapability = EXT4,
        *,
        readonly: bool = False,
    ) -> str:
        target = self.paths[node].csi_target(pod, "pv")
        request = v1.NodePublishVolumeRequest(
            volume_id=volume,
            staging_target_path=self.paths[node].staging("ebs.csi.aws.com", volume),
            target_path=target,
            volume_capability=capability,
            readonly=readonly,
        )
        await self.nodes[node].call("NodePublishVolume", request)
        return self.paths[node].real(target)

    async def unmount(self, volume: str, node: str, pod: str) -> None:
        request = v1.NodeUnpublishVolumeRequest(
            volume_id=volume, target_path=self.paths[node].csi_target(pod, "pv")
        )
        await self.nodes[node].call("NodeUnpublishVolume", request)

    async def unstage(self, volume: str, node: str) -> None:
        staging = self.paths[node].staging("ebs.csi.aws.com", volume)
        request = v1.NodeUnstageVolumeRequest(volume_id=volume, staging_target_path=staging)
        await self.nodes[node].call("NodeUnstageVolume", request)

    async def wipe(self, volume: str, node: str) -> None:
        for pod in ("a", "b"):
            await self.unmount(volume, node, pod)
        await self.unstage(volume, node)
        await self.unpublish(volume, node)
        await self.delete(volume)


@asynccontextmanager
async def ebs_environment(directory: Path) -> AsyncIterator[EbsEnvironment]:
    host = Host()
    paths = {f"i-{n}": NodePaths(str(directory / f"n{n}")) for n in (1, 2)}
    instances = tuple(CloudInstance(i, "us-east-1a", p.dev) for i, p in paths.items())
    settings = CloudOptions(
        data_dir=str(directory), access_key="key", secret_key="secret", instances=instances
    )
    async with serve_endpoint(settings, host, MemoryStore()) as address:
        account = AwsAccount(address, access_key="key", secret_key="secret")
        ec2 = await connect_ec2(account, host)
        sockets = {i: str(directory / f"{i}.sock") for i in ("controller", *paths)}
        drivers = [DriverServer(EbsController(ec2), sockets["controller"])]
        for i, p in paths.items():
            node = EbsNode(
                EbsNodeConfig(i, "us-east-1a"), host, p, connect=lambda: connect_ec2(account, host)
            )
            drivers.append(DriverServer(node, sockets[i]))
        for driver in drivers:
            await driver.start()
        channels = {i: CsiChannel(socket) for i, socket in sockets.items()}
        try:
            yield EbsEnvironment(account, channels["controller"], channels, paths, host)
        finally:
            for channel in channels.values():
                await channel.close()
            for driver in drivers:
                await driver.close()
    await host.close()


async def expect_error(code: Code, call: object) -> str:
    with pytest.raises(CallError) as caught:
        await call  # type: ignore[misc]
    assert caught.value.code is code, caught.value
    return caught.value.message
