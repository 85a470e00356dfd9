"""How the worlds of a cluster end: the machine is given back, and what was found is kept."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support import loop_device_holder, sample_driver
from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.cluster import external_driver
from volplane.cluster.external_driver.workloads import KUBELET
from volplane.csi.call_interceptor import CsiCall
from volplane.host import devices, mounts
from volplane.testing import driver_run, unmounts
from volplane.testing.capabilities import DriverCapabilities
from volplane.testing.case import CaseFailure
from volplane.testing.cluster_env import ClusterEnv
from volplane.testing.process_env import ProcessEnv, SurvivorPod
from volplane.testing.socket_env import SocketEnv

GUEST = external_driver.from_command(sample_driver.command_line())


W = TypeVar("W", bound=ClusterEnv)


def composed(kind: type[W], directory: Path) -> W:
    """A world whose cluster was not started, or has ended."""
    world = kind(GUEST, directory, DriverCapabilities())
    directory.mkdir(exist_ok=True)
    world.cluster = world._make_cluster()
    return world


class Refused(ProcessEnv):
    """Whose driver does not let go of anything."""

    error: Exception

    async def remove_pod(self, name: str) -> None:
        raise self.error


@pytest.mark.root
async def test_a_device_that_a_container_has_left_is_released(tmp_path: Path) -> None:
    world = composed(ClusterEnv, tmp_path / "w")
    file = tmp_path / "w" / "volume.img"
    file.touch()
    os.truncate(file, 1 << 20)
    with loop_device_holder.bind_in_namespace(file) as (device, process):
        assert device in devices.loops_below(str(tmp_path))
        # It is busy as long as the container's last process: that one ends while it is swept.
        ending = asyncio.get_running_loop().call_later(0.3, process.kill)
        await world.__aexit__()
        ending.cancel()
        assert devices.loops_below(str(tmp_path)) == {}


@pytest.mark.root
async def test_a_cluster_that_does_not_end_well_is_swept_none_the_less(tmp_path: Path) -> None:
    async def refuses() -> None:
        raise OSError("no")

    world = composed(ClusterEnv, tmp_path / "w")
    file = tmp_path / "w" / "volume.img"
    file.touch()
    os.truncate(file, 1 << 20)
    world.cluster._stack.push_async_callback(refuses)
    with loop_device_holder.bind_in_namespace(file):
        pass
    with pytest.raises(OSError, match="no"):
        await world.__aexit__()
    assert devices.loops_below(str(tmp_path)) == {}


@pytest.mark.root
@pytest.mark.parametrize("error", [CaseFailure("refused"), TimeoutError()], ids=["refused", "too late"])
async def test_a_driver_that_keeps_the_last_pod_does_not_cost_the_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    world = composed(Refused, tmp_path / "a")
    world.error, world._survivor = error, SurvivorPod(world, "claim", "pod", "checksum")
    await world.__aexit__()
    [reported] = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert reported.startswith("pod pod and its volume cannot be removed: ")


class Holding(ClusterEnv):
    """Whose driver says OK to an unmount and does nothing, until it is done by force."""

    forced = 0

    async def _force_unmount(self) -> None:
        self.forced += 1

    async def _wait_for_crash_loop(self) -> str:
        await asyncio.Event().wait()
        return ""

    async def delete_created(self) -> None:
        for number in range(10 * (not self.forced)):
            self.livelock.observe_call(unmounted(float(number)))
        await self.livelock.wait_or_livelock(asyncio.sleep(0.01))


def unmounted(at: float, volume: str = "v") -> CsiCall:
    request = json.dumps({"volume_id": volume, "target_path": "/t"})
    return CsiCall(1, "NodeUnpublishVolume", "kubelet", "here", request, at, at, "OK", "{}")


async def test_what_was_unmounted_by_force_is_waited_for_to_its_end(tmp_path: Path) -> None:
    world = composed(Holding, tmp_path / "w")
    [reported] = await world.clean()  # and not: nor by force
    assert "returned OK 10 times" in reported
    assert world.forced == 1


async def test_a_case_that_a_driver_has_failed_is_cleaned_by_force_at_once(tmp_path: Path) -> None:
    world = composed(Holding, tmp_path / "w")
    for number in range(10):
        world.livelock.observe_call(unmounted(float(number)))
    assert world.livelock.has_livelock
    assert await world.clean() == []
    assert world.forced == 1


async def test_a_case_disturbs_no_call_for_what_another_has_left(tmp_path: Path) -> None:
    world = composed(ClusterEnv, tmp_path / "w")
    made = {"volume": {"volume_id": "old"}}
    world.tap.calls.append(
        CsiCall(1, "CreateVolume", "me", "here", '{"name":"pvc-1"}', 0.0, 1.0, "OK", json.dumps(made))
    )
    mine = world.calls_of_this_case()
    assert not mine(unmounted(2.0, "old"))
    assert not mine(CsiCall(2, "CreateVolume", "me", "here", '{"name":"pvc-1"}', 2.0))
    assert mine(unmounted(2.0, "new"))


async def test_a_case_that_fails_takes_the_witness_with_it(tmp_path: Path) -> None:
    async def never(world: ClusterEnv) -> tuple[str, str, str]:
        raise AssertionError

    world = composed(ProcessEnv, tmp_path / "a")
    world._survivor = one = SurvivorPod(world, "claim", "pod", "checksum")
    one._process = "process 1, started at 1"
    async with world.survivor_pod(never) as same:
        assert same is one
    assert world._survivor is one
    with pytest.raises(CaseFailure):
        async with world.survivor_pod(never):
            raise CaseFailure("the container has ended")
    assert world._survivor is None
    assert world._known == {(PersistentVolumeClaim, "claim"), (Pod, "pod")}  # so it is removed with the case


@pytest.mark.root
async def test_a_directory_that_is_not_removed_because_of_a_mount_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "run"
    async with driver_run.working_directory(place):
        (place / "m").mkdir(parents=True)
        mounts.bind(str(tmp_path), str(place / "m"), readonly=False, recursive=False)
    assert place.is_dir()
    assert f"{place} was not removed: still mounted: {place / 'm'}" in caplog.text
    mounts.unmount(str(place / "m"))
    await asyncio.to_thread(driver_run._remove_directory, place)
    assert not place.exists()


@pytest.mark.root
async def test_what_a_call_was_to_unmount_is_looked_for_on_its_node(tmp_path: Path) -> None:
    world = composed(ClusterEnv, tmp_path / "w")
    first, second = (member.root for member in world.cluster.members)
    request = json.dumps({"volume_id": "v", "target_path": f"{KUBELET}/pods/a/mount"})
    target = first / "pods/a/mount"
    target.mkdir(parents=True)

    def ended(root: Path) -> bool:
        address = str(root / "plugins/x/csi.sock")
        return world._still_mounted(CsiCall(1, "NodeUnpublishVolume", "kubelet", address, request, 0.0))

    mounts.bind(str(tmp_path), str(target), readonly=False, recursive=False)
    try:
        assert ended(first)
        assert not ended(second)
    finally:
        mounts.unmount(str(target))
    assert not ended(first)


@pytest.mark.root
@pytest.mark.parametrize(("method", "field"), [("NodePublishVolume", "target_path")])
async def test_a_claim_is_deleted_only_when_nodes_have_unmounted_its_volume(
    tmp_path: Path, method: str, field: str
) -> None:
    """Also if the driver stages nothing: a killed node unpublishes after its restart."""
    world = composed(ProcessEnv, tmp_path / "w")
    root = world.cluster.members[0].root
    target = root / "pods/a/mount"
    target.mkdir(parents=True)
    request = json.dumps({"volume_id": "v", field: f"{KUBELET}/pods/a/mount"})
    world.tap.calls.append(CsiCall(1, method, "node", f"{root}/csi.sock", request, 1.0, end=2.0))
    mounts.mount("tmpfs", str(target), "tmpfs", ())
    try:
        waiting = asyncio.ensure_future(unmounts.wait_until_unmounted(world, {"v"}))
        await asyncio.wait({waiting}, timeout=3 * unmounts.INTERVAL)
        assert not waiting.done()
        await asyncio.wait_for(unmounts.wait_until_unmounted(world, {"another"}), 5)
    finally:
        mounts.unmount(str(target))
    await asyncio.wait_for(waiting, 30)


@pytest.mark.root
async def test_volumes_of_an_interrupted_case_are_detached_and_deleted(tmp_path: Path) -> None:
    async with SocketEnv(GUEST, tmp_path / "s") as env:
        await env.create_and_publish()
    ended = {call.method for call in env.tap.calls if call.code == "OK"}
    assert {"NodeUnpublishVolume", "ControllerUnpublishVolume", "DeleteVolume"} <= ended


@pytest.mark.root
async def test_volumes_that_cannot_be_removed_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SocketEnv(GUEST, tmp_path / "s", nodes=1) as env:
        kept = await env.create()
        await env.create()
        id = kept.id
        await kept.attach(env.nodes[0])
        kept.attached.clear()  # not known to the environment, so that it is not detached before it is deleted
        [problem] = await env.clean()
        assert problem.startswith("DeleteVolume: rpc error: code = FailedPrecondition")
        assert await env.clean() == []  # what has failed is not tried again after each case, but at the end
    [text] = [record.getMessage() for record in caplog.records if "not all removed" in record.getMessage()]
    assert text == f"the driver's volumes are not all removed: volume {id}; {problem}"
