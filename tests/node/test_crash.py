"""A node in a process of its own, killed at a call, before it and after it; the next one finishes the work.

After a call that mounts, and while pods run, it is a case of the contract: test_g_crashes and test_c_crashes
in tests/contract/attach_and_mount/.
"""

from __future__ import annotations

import pytest

from tests.node.node_env import unique_name
from tests.node.node_process import (
    create_process_pod,
    node_process_env,
    wait_until_clean,
    wait_until_registered,
)

pytestmark = [pytest.mark.root, pytest.mark.slow]

UP = [f"rpc:Node{call}Volume:before" for call in ("Stage", "Publish")]
DOWN = [f"rpc:Node{call}Volume:{when}" for call in ("Unpublish", "Unstage") for when in ("before", "after")]


@pytest.mark.parametrize("point", UP)
async def test_killed_while_mounting(point: str) -> None:
    async with node_process_env() as (here, child):
        await child.start(point)
        await wait_until_registered(here)
        await here.volume()
        await create_process_pod(here)
        await child.wait_until_killed()
        await child.start()
        await here.wait_until_ready()
        assert len(here.list_mounts()) == 2
        assert await here.in_use() == [unique_name()]
        await here.delete()
        await here.wait_for_phase("gone")
        await wait_until_clean(here)


@pytest.mark.parametrize("point", UP)
async def test_killed_while_mounting_for_a_pod_that_is_gone_afterwards(point: str) -> None:
    async with node_process_env() as (here, child):
        await child.start(point)
        await wait_until_registered(here)
        await here.volume()
        await create_process_pod(here)
        await child.wait_until_killed()
        await here.delete(grace=0)
        await child.start()
        await wait_until_clean(here)


@pytest.mark.parametrize("point", DOWN)
async def test_killed_while_unmounting(point: str) -> None:
    async with node_process_env() as (here, child):
        await child.start(point)
        await wait_until_registered(here)
        await here.volume()
        await create_process_pod(here)
        await here.wait_until_ready()
        await here.delete()
        await child.wait_until_killed()
        assert await here.in_use() == [unique_name()]
        await child.start()
        await here.wait_for_phase("gone")
        await wait_until_clean(here)
