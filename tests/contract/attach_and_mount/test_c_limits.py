"""Section C10: a volume limit that changes while the driver runs, in virtual time.

With durations set by flag, on a real socket: test_c_short_waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.node.node_env import DRIVER, NODE, FakeDiskDriver, NodeEnv
from volplane.api import names
from volplane.api.codec import convert
from volplane.api.core import Pod
from volplane.api.storage import CSIDriver, CSINode, VolumeAttachment
from volplane.csi import v1
from volplane.csi.outcome import Code

pytestmark = [pytest.mark.root, pytest.mark.virtual]


class Shrinking(FakeDiskDriver):
    limit = 5

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        await self._enter("info", request)
        return v1.NodeGetInfoResponse(node_id="n-1", max_volumes_per_node=self.limit)


async def ready(here: NodeEnv, **about: Any) -> None:
    spec = {"attachRequired": True, **about}
    await here.client.create(convert(CSIDriver, {"metadata": {"name": DRIVER}, "spec": spec}))
    here.disks = Shrinking(here.paths)
    await here.start()
    here.register_in_memory_driver()


async def count(here: NodeEnv) -> int | None:
    found = await here.client.get(CSINode, NODE)
    return next((d.allocatable.count for d in found.spec.drivers if d.allocatable is not None), None)


async def refuse_attach(here: NodeEnv, code: Code) -> None:
    """What the attacher says of the volume."""
    name = names.attachment_name("vol-data", DRIVER, NODE)
    spec = {"attacher": DRIVER, "nodeName": NODE, "source": {"persistentVolumeName": "pv-data"}}
    await here.client.create(convert(VolumeAttachment, {"metadata": {"name": name}, "spec": spec}))
    error = {"message": "too many disks", "errorCode": int(code)}
    status = {"attached": False, "attachError": error}
    await here.client.patch(VolumeAttachment, name, merge={"status": status}, subresource="status")


async def test_nodegetinfo_is_refreshed_periodically_where_the_driver_asks_for_it() -> None:
    async with node_world() as here:
        await ready(here, nodeAllocatableUpdatePeriodSeconds=60)
        await asyncio.sleep(65)
        assert await count(here) == 5
        assert isinstance(here.disks, Shrinking)
        here.disks.limit = 2
        await asyncio.sleep(61)
        assert await count(here) == 2
        assert here.disks.count_calls()["info"] == 2


async def test_nobody_is_asked_where_the_driver_does_not() -> None:
    async with node_world() as here:
        await ready(here)
        await asyncio.sleep(300)
        assert here.disks.count_calls() == {}


async def test_a_pod_whose_attach_is_exhausted_is_rejected_and_the_limit_read_again() -> None:
    async with node_world() as here:
        await ready(here, nodeAllocatableUpdatePeriodSeconds=3600)
        await here.volume(attached=False)
        await refuse_attach(here, Code.RESOURCE_EXHAUSTED)
        await here.pod(claim="data", restartPolicy="Always")
        await asyncio.sleep(120)
        assert await here.phase() == "Pending"
        await asyncio.sleep(10)
        pod = await here.client.get(Pod, "app", "default")
        assert (pod.status.phase, pod.status.reason) == ("Failed", "VolumeAttachmentLimitExceeded")
        assert "too many disks" in pod.status.message
        assert here.disks.count_calls()["info"] == 1
        assert await here.in_use() == []


@pytest.mark.parametrize("period", [0, 3600])
async def test_other_failures_and_other_drivers_are_waited_for(period: int) -> None:
    async with node_world() as here:
        await ready(here, **({"nodeAllocatableUpdatePeriodSeconds": period} if period else {}))
        await here.volume(attached=False)
        await refuse_attach(here, Code.INTERNAL if period else Code.RESOURCE_EXHAUSTED)
        await here.pod(claim="data")
        await asyncio.sleep(600)
        assert await here.phase() == "Pending"
