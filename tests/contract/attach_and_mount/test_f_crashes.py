"""Section F: the node is killed before and after each call to a FlexVolume driver, and another one starts."""

from __future__ import annotations

import pytest

from tests.contract.attach_and_mount.flex_grounds import flex_claim, list_attached, make_script
from tests.loops.inprocess import until
from tests.node.node_env import NODE, NodeEnv, path_exists
from tests.node.node_process import LONG, NodeProcess, create_process_pod, node_process_env, wait_until_clean
from tests.support.flex_script import DRIVER, FlexScript
from volplane.api.core import Node

pytestmark = [pytest.mark.root, pytest.mark.slow]

MOUNTS = ("getvolumename", "waitforattach", "mountdevice", "mount")
UNMOUNTS = ("unmount", "unmountdevice")
OWN = {"enable_controller_attach_detach": "false"}
RECORD = "file:flexvolume_attached"


def points(*commands: str) -> list[str]:
    return [f"flexvolume:{command}:{when}" for command in commands for when in ("before", "after")]


async def prepare(here: NodeEnv, child: NodeProcess, failpoint: str, **flags: str) -> FlexScript:
    script = make_script(here)
    script.install()
    await child.start(failpoint, **flags)
    await until(lambda: here.client.find(Node, NODE), LONG)
    await flex_claim(here)
    if not flags:
        await list_attached(here, "pv-data")
    await create_process_pod(here)
    return script


async def end(here: NodeEnv) -> None:
    """The pod goes, and with it everything of the volume."""
    await here.delete()
    await here.wait_for_phase("gone")
    await wait_until_clean(here)
    assert not path_exists(here.paths.real(device_directory(here)))


def device_directory(here: NodeEnv) -> str:
    return f"{here.paths.plugins}/kubernetes.io/flexvolume/{DRIVER}/mounts/pv-data"


@pytest.mark.parametrize("point", points(*MOUNTS))
async def test_killed_during_a_mount_the_next_node_mounts_and_unmounts(point: str) -> None:
    async with node_process_env() as (here, child):
        script = await prepare(here, child, point)
        await child.wait_until_killed()
        await child.start()
        await here.wait_until_ready()
        await end(here)
        assert script.commands[-2:] == ["unmount", "unmountdevice"]


@pytest.mark.parametrize("point", points(*MOUNTS))
async def test_killed_during_a_mount_and_the_pod_is_gone_nothing_is_left(point: str) -> None:
    async with node_process_env() as (here, child):
        await prepare(here, child, point)
        await child.wait_until_killed()
        await here.delete(grace=0)
        await child.start()
        await wait_until_clean(here)
        assert not path_exists(here.paths.real(device_directory(here)))


@pytest.mark.parametrize("point", points(*UNMOUNTS))
async def test_killed_during_an_unmount_the_next_node_finishes_it(point: str) -> None:
    async with node_process_env() as (here, child):
        await prepare(here, child, point)
        await here.wait_until_ready()
        await here.delete()
        await child.wait_until_killed()
        await child.start()
        await here.wait_for_phase("gone")
        await wait_until_clean(here)
        assert not path_exists(here.paths.real(device_directory(here)))


async def test_killed_while_the_driver_hangs_in_mount_nothing_is_left_whoever_mounts_last() -> None:
    async with node_process_env() as (here, child):
        script = make_script(here)
        go = script.home / "go"
        script.on("mount", f"while [ ! -f {go} ]; do sleep 0.05; done")
        await prepare(here, child, "")

        async def is_hanging() -> bool:
            return script.commands[-1:] == ["mount"]

        await until(is_hanging, LONG)
        await child.kill()
        await child.start()

        async def is_called_again() -> bool:
            return script.commands.count("mount") == 2  # the first call is still running

        await until(is_called_again, LONG)
        go.touch()
        await here.wait_until_ready()
        await end(here)


async def wait_until_detached(here: NodeEnv, script: FlexScript) -> None:
    """What was attached is detached, as the driver sees it, and no record is left."""
    records = f"{here.paths.plugins}/kubernetes.io/flexvolume/{DRIVER}/attached/pv-data.json"

    async def is_detached() -> bool:
        attached = [c for c in script.commands if c in ("attach", "detach")]
        return attached[-1:] != ["attach"] and not path_exists(here.paths.real(records))

    await until(is_detached, LONG)


@pytest.mark.parametrize("point", [f"{RECORD}:write:before", f"{RECORD}:write:after", *points("attach")])
async def test_killed_during_an_attach_by_the_kubelet_and_the_pod_is_gone_nothing_stays_attached(
    point: str,
) -> None:
    async with node_process_env() as (here, child):
        script = await prepare(here, child, point, **OWN)
        await child.wait_until_killed()
        await here.delete(grace=0)
        await child.start(**OWN)
        await wait_until_clean(here)
        await wait_until_detached(here, script)


@pytest.mark.parametrize("point", [*points("attach", "detach"), f"{RECORD}:remove:before"])
async def test_killed_during_attach_or_detach_by_the_kubelet_the_next_node_goes_on(point: str) -> None:
    async with node_process_env() as (here, child):
        script = await prepare(here, child, point, **OWN)
        if ":attach:" not in point:
            await here.wait_until_ready()
            await here.delete()
        await child.wait_until_killed()
        await child.start(**OWN)
        if ":attach:" in point:
            await here.wait_until_ready()
            await here.delete()
        await here.wait_for_phase("gone")
        await wait_until_clean(here)
        await wait_until_detached(here, script)
