"""Section G, case by case: what each gRPC code means, what stays on the disk, what is called afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.loops.inprocess import until
from tests.node.node_env import DRIVER, path_exists
from volplane.api.core import Event
from volplane.csi.outcome import CallError, Code
from volplane.node.volume_manager.plan import MountState

pytestmark = pytest.mark.root

UNCERTAIN = [
    Code.CANCELLED,
    Code.DEADLINE_EXCEEDED,
    Code.RESOURCE_EXHAUSTED,
    Code.ABORTED,
    Code.UNAVAILABLE,
]
FINAL = [
    Code.UNKNOWN,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.ALREADY_EXISTS,
    Code.PERMISSION_DENIED,
    Code.FAILED_PRECONDITION,
    Code.OUT_OF_RANGE,
    Code.UNIMPLEMENTED,
    Code.INTERNAL,
    Code.DATA_LOSS,
    Code.UNAUTHENTICATED,
]
CASES = [(code, True) for code in UNCERTAIN] + [(code, False) for code in FINAL]


@pytest.mark.parametrize(("code", "uncertain"), CASES)
@pytest.mark.parametrize("call", ["stage", "publish"])
async def test_each_code_state_files_and_next_call_after_pod_deletion(
    call: str, code: Code, uncertain: bool
) -> None:
    async with node_world() as here:
        await here.start()
        await here.start_driver()
        await here.wait_until_registered()
        await here.volume()

        async def fail(request: Any) -> None:
            raise CallError(code, "as told")

        here.disks.hooks[call] = fail
        pod = await here.pod(claim="data")
        await here.wait_for_event(f"rpc error: code = {code.go_name} desc = as told")
        staged = path_exists(here.paths.real(here.paths.staging_data(DRIVER, "vol-data")))
        published = path_exists(here.paths.real(here.paths.csi_data(pod.uid, "pv-data")))
        assert here.role is not None
        (state,) = here.role.volumes.memory.volumes.values()
        if call == "stage":
            assert staged is uncertain
            assert not published
            assert state.actual.device is (MountState.UNCERTAIN if uncertain else MountState.ABSENT)
        else:
            assert staged
            assert published is uncertain
            assert (pod.uid in state.actual.mounts) is uncertain
        await here.delete()
        await here.wait_for_phase("gone")
        await until(lambda: _is_out_of_use(here))
        counted = here.disks.count_calls()
        assert counted["unpublish"] == (1 if call == "publish" and uncertain else 0)
        assert counted["unstage"] == (1 if call == "publish" or uncertain else 0)
        assert here.list_mounts() == []


async def _is_out_of_use(here: Any) -> bool:
    return not await here.in_use()


async def test_registered_but_socket_dead_before_the_step_no_directory_created_or_removed() -> None:
    async with node_world() as here:
        await here.start()
        await here.start_driver()
        await here.wait_until_registered()
        await here.volume()
        assert here.role is not None
        # The registrar lives on, so that the driver stays registered.
        await here.kill_driver()
        pod = await here.pod(claim="data")
        reported = await here.wait_for_event(f"driver {DRIVER} does not answer")
        assert {e.reason for e in await here.client.list(Event, "default") if e.message == reported} == {
            "FailedMount"
        }
        assert here.disks.calls == []
        assert not path_exists(here.paths.real(here.paths.staging_data(DRIVER, "vol-data")))
        assert not path_exists(here.paths.real(here.paths.pod(pod.uid) + "/volumes/kubernetes.io~csi"))
        await here.restart_driver()
        await here.wait_until_ready()


async def test_nodeunpublish_slow_no_parallel_duplicate_call() -> None:
    async with node_world() as here:
        await here.start()
        await here.start_driver()
        await here.wait_until_registered()
        await here.volume()
        await here.pod("a", claim="data")
        await here.wait_until_ready("a")
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def hang(request: Any) -> None:
            entered.set()
            await go_on.wait()

        here.disks.hooks["unpublish"] = hang
        await here.delete("a")
        await entered.wait()
        await here.pod("b", claim="data")
        await asyncio.sleep(0.1)
        assert here.disks.count_calls() == {"stage": 1, "publish": 1, "unpublish": 1}
        go_on.set()
        await here.wait_until_ready("b")
        assert here.disks.count_calls() == {"stage": 1, "publish": 2, "unpublish": 1}
