"""A node in a process of its own, killed at a call, before it and after it; the next one finishes the work.

After a call that mounts, and while pods run, it is a case of the contract: test_g_crashes and test_c_crashes
in tests/contract/attach_and_mount/.
"""

from __future__ import annotations

import pytest

from tests.node.killing import crash_world, everything_is_given_back, is_there, process_pod
from tests.node.nodeworld import unique

pytestmark = [pytest.mark.root, pytest.mark.slow]

UP = [f"rpc:Node{call}Volume:before" for call in ("Stage", "Publish")]
DOWN = [f"rpc:Node{call}Volume:{when}" for call in ("Unpublish", "Unstage") for when in ("before", "after")]


@pytest.mark.parametrize("point", UP)
async def test_killed_while_mounting(point: str) -> None:
    async with crash_world() as (here, child):
        await child.start(point)
        await is_there(here)
        await here.volume()
        await process_pod(here)
        await child.died()
        await child.start()
        await here.until_ready()
        assert len(here.mounted()) == 2
        assert await here.in_use() == [unique()]
        await here.delete()
        await here.until_phase("gone")
        await everything_is_given_back(here)


@pytest.mark.parametrize("point", UP)
async def test_killed_while_mounting_for_a_pod_that_is_gone_afterwards(point: str) -> None:
    async with crash_world() as (here, child):
        await child.start(point)
        await is_there(here)
        await here.volume()
        await process_pod(here)
        await child.died()
        await here.delete(grace=0)
        await child.start()
        await everything_is_given_back(here)


@pytest.mark.parametrize("point", DOWN)
async def test_killed_while_unmounting(point: str) -> None:
    async with crash_world() as (here, child):
        await child.start(point)
        await is_there(here)
        await here.volume()
        await process_pod(here)
        await here.until_ready()
        await here.delete()
        await child.died()
        assert await here.in_use() == [unique()]
        await child.start()
        await here.until_phase("gone")
        await everything_is_given_back(here)
