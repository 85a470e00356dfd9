"""Section C10: how full volumes are and how they are, asked of the driver and shown by the node.

On real sockets, where the minute is as long as its flag says, and in virtual time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.contract.attach_and_mount.test_block_volumes import with_disk
from tests.loops.inprocess import until
from tests.node.node_env import FakeDiskDriver, NodeEnv
from tests.support.timing import GRAIN
from volplane.api.core import Event
from volplane.base import metrics
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code

pytestmark = pytest.mark.root

SOON = 0.2
LABELS = '{namespace="default",persistentvolumeclaim="data"}'


class Telling(FakeDiskDriver):
    """Says how full its volumes are."""

    extra_capabilities = frozenset({"VOLUME_CONDITION"})
    wrong = ""

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        await self._enter("stats", request)
        unit = v1.VolumeUsage
        return v1.NodeGetVolumeStatsResponse(
            usage=[
                unit(unit=unit.BYTES, total=100, available=60, used=40),
                unit(unit=unit.INODES, total=10, available=6, used=4),
            ],
            volume_condition=v1.VolumeCondition(abnormal=bool(self.wrong), message=self.wrong),
        )


async def ready(here: NodeEnv, *, disks: FakeDiskDriver | None = None, **settings: Any) -> None:
    here.disks = disks or Telling(here.paths)
    await here.start(volume_stats_agg_period=SOON, **settings)
    await here.start_driver()
    await here.wait_until_registered()
    await here.volume()
    await here.pod(claim="data")
    await here.wait_until_ready()


def shown(name: str) -> float | None:
    for line in metrics.render().decode().splitlines():
        if line.startswith(f"kubelet_volume_stats_{name}{LABELS} "):
            return float(line.rpartition(" ")[2])
    return None


async def until_asked(here: NodeEnv, times: int) -> None:
    async def asked() -> bool:
        return here.disks.count_calls()["stats"] >= times

    await until(asked, 60)


async def until_shown(name: str, value: float | None) -> None:
    async def is_shown() -> bool:
        return shown(name) == value

    await until(is_shown, 60)


async def test_stats_bytes_and_inodes_by_pvc_and_gone_with_the_pod() -> None:
    async with node_world() as here:
        await ready(here)
        await until_shown("capacity_bytes", 100)
        figures = {"available_bytes": 60, "used_bytes": 40, "inodes": 10, "inodes_free": 6, "inodes_used": 4}
        assert {name: shown(name) for name in figures} == figures
        request = next(r for name, r in here.disks.calls if name == "stats")
        assert request.volume_id == "vol-data"
        assert request.volume_path.endswith("/volumes/kubernetes.io~csi/pv-data/mount")
        assert not request.staging_target_path
        assert shown("health_status_abnormal") is None  # only with its gate
        await until_asked(here, 3)
        assert min(here.disks.seconds_between_calls("stats")) > SOON - GRAIN
        await here.delete()
        await until_shown("capacity_bytes", None)


@pytest.mark.virtual
async def test_stats_each_minute_with_jitter() -> None:
    async with node_world() as here:
        here.disks = Telling(here.paths)
        await here.start()
        here.register_in_memory_driver()
        await here.volume()
        await here.pod(claim="data")
        await here.wait_until_ready()
        await asyncio.sleep(1800)
        pauses = here.disks.seconds_between_calls("stats")
        assert len(pauses) >= 25
        assert all(60 <= pause <= 66.1 for pause in pauses)
        assert max(pauses) - min(pauses) > 0.1


async def test_nil_usage_is_an_error_and_shows_nothing() -> None:
    class Silent(Telling):
        extra_capabilities = frozenset()

        async def node_get_volume_stats(
            self, request: v1.NodeGetVolumeStatsRequest
        ) -> v1.NodeGetVolumeStatsResponse:
            await self._enter("stats", request)
            return v1.NodeGetVolumeStatsResponse()

    async with node_world() as here:
        await ready(here, disks=Silent(here.paths))
        await until_asked(here, 2)
        assert shown("capacity_bytes") is None
        assert await here.phase() == "Running"


async def test_volume_condition_abnormal_with_its_gate() -> None:
    async with node_world() as here:
        await ready(here, feature_gates={"CSIVolumeHealth": True})
        await until_shown("health_status_abnormal", 0)
        assert isinstance(here.disks, Telling)
        here.disks.wrong = "the disk makes noises"
        await here.wait_for_event("Volume data: the disk makes noises")
        reasons = {e.reason for e in await here.client.list(Event, "default") if "noises" in e.message}
        assert reasons == {"VolumeConditionAbnormal"}
        await until_shown("health_status_abnormal", 1)


async def test_a_driver_that_fails_to_tell_disturbs_nobody() -> None:
    async with node_world() as here:

        async def fail(request: Any) -> None:
            raise CallError(Code.INTERNAL, "no idea")

        await ready(here)
        await until_shown("capacity_bytes", 100)
        here.disks.hooks["stats"] = fail
        await until_asked(here, here.disks.count_calls()["stats"] + 2)
        assert await here.phase() == "Running"
        assert shown("capacity_bytes") == 100


async def test_a_driver_without_the_capability_is_not_asked() -> None:
    async with with_disk() as (here, _):
        await here.pod(claim="data", device="/dev/xvda")
        await here.wait_until_ready()
        assert here.role is not None
        (state,) = here.role.volumes.memory.volumes.values()
        (spec,) = state.desired.pods.values()
        assert await here.role.volumes.plugins[state.plugin].read_metrics(spec) is None
        assert here.disks.count_calls() == {"stage": 1, "publish": 1}
