"""Section G: the kubelet's process killed after a call that succeeded, before it has noted that."""

from __future__ import annotations

import pytest

from tests.node.node_env import NODE
from tests.node.node_process import (
    create_process_pod,
    cut_power,
    node_process_env,
    pids,
    start_with_running_pod,
    wait_until_clean,
    wait_until_registered,
)
from volplane.api.core import Node
from volplane.api.storage import VolumeAttachment

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.mark.parametrize(
    ("point", "undone"),
    [
        pytest.param("rpc:NodeStageVolume:after", ["unstage"], id="between NodeStage OK and NodePublish"),
        pytest.param(
            "rpc:NodePublishVolume:after", ["unpublish", "unstage"], id="NodePublish OK and state update"
        ),
    ],
)
@pytest.mark.parametrize("wanted", [True, False], ids=["wanted", "pod gone"])
async def test_kubelet_killed_between(point: str, undone: list[str], wanted: bool) -> None:
    """Also a volume that was only staged is found again, by the metadata beside it."""
    async with node_process_env() as (here, child):
        await child.start(point)
        await wait_until_registered(here)
        await here.volume()
        await create_process_pod(here)
        await child.wait_until_killed()
        mounted = here.list_mounts()
        assert len(mounted) == len(undone)
        here.disks.calls.clear()
        if not wanted:
            await here.delete(grace=0)
        await child.start()
        if wanted:
            await here.wait_until_ready()
            assert [name for name, _ in here.disks.calls] == ["stage", "publish"]
            assert set(mounted) <= set(here.list_mounts())
            await here.delete()
            await here.wait_for_phase("gone")
        await wait_until_clean(here)
        if not wanted:
            assert [name for name, _ in here.disks.calls] == undone


async def test_node_crash_volume_force_detached_node_returns_unpublish_and_unstage_without_the_device() -> (
    None
):
    """The mounts went with the machine, the disk is at another node; only the metadata is left."""
    async with node_process_env() as (here, child):
        await start_with_running_pod(here, child)
        await cut_power(here, child)
        await here.delete(grace=0)
        for attachment in await here.client.list(VolumeAttachment):
            await here.client.delete(VolumeAttachment, attachment.name)
        detached = {"status": {"volumesAttached": None}}
        await here.client.patch(Node, NODE, merge=detached, subresource="status")
        here.disks.calls.clear()
        await child.start()
        await wait_until_clean(here)
        assert [name for name, _ in here.disks.calls] == ["unpublish", "unstage"]
        assert pids(here) == {}
