"""Section G: the kubelet's process killed after a call that succeeded, before it has noted that."""

from __future__ import annotations

import pytest

from tests.node.killing import crash_world, everything_is_given_back, is_there, process_pod

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
    async with crash_world() as (here, child):
        await child.start(point)
        await is_there(here)
        await here.volume()
        await process_pod(here)
        await child.died()
        mounted = here.mounted()
        assert len(mounted) == len(undone)
        here.disks.calls.clear()
        if not wanted:
            await here.delete(grace=0)
        await child.start()
        if wanted:
            await here.until_ready()
            assert [name for name, _ in here.disks.calls] == ["stage", "publish"]
            assert set(mounted) <= set(here.mounted())
            await here.delete()
            await here.until_phase("gone")
        await everything_is_given_back(here)
        if not wanted:
            assert [name for name, _ in here.disks.calls] == undone
