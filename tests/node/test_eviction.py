"""A node whose disk is about to be full: its condition, the pods that leave, and those it does not take."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import until, world
from tests.node.node_env import NODE, NodeEnv
from volplane.api.core import Event, Node, NodeCondition, Pod

pytestmark = pytest.mark.root

SETTINGS: dict[str, Any] = {
    "eviction_hard": "nodefs.available<16Mi",
    "eviction_monitoring_period": 0.02,
    "eviction_pressure_transition_period": 0.1,
    "pod_network": "host",
}
SCRATCH = [{"name": "scratch", "emptyDir": {}}]
MOUNTS = [{"name": "scratch", "mountPath": "/scratch"}]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@asynccontextmanager
async def node_on(disk: Path) -> AsyncIterator[NodeEnv]:
    async with AsyncExitStack() as stack:
        made = NodeEnv(await stack.enter_async_context(world()), str(disk / "vp"), stack)
        stack.push_async_callback(made.close)
        (disk / "vp").mkdir()
        yield made


def fill(path: Path, mib: int) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, mib << 20)


def scratch(here: NodeEnv, pod: Pod) -> Path:
    path = here.paths.volume(pod.uid, "kubernetes.io/empty-dir", "scratch")
    return Path(here.paths.real(path)) / "file"


async def condition(here: NodeEnv, status: str) -> NodeCondition:
    async def reached() -> NodeCondition | None:
        node = await here.client.get(Node, NODE)
        return next(
            (c for c in node.status.conditions if c.type == "DiskPressure" and c.status == status), None
        )

    condition: NodeCondition = await until(reached, here.timeout)
    return condition


async def pod(here: NodeEnv, name: str) -> Pod:
    return await here.client.get(Pod, name, "default")


async def test_pods_that_use_most_of_a_disk_leave_it_until_there_is_space_again(disk: Path) -> None:
    async with node_on(disk) as here:
        await here.start(**SETTINGS)
        for name in ("modest", "greedy", "driver"):
            class_name: dict[str, Any] = (
                {"priorityClassName": "system-node-critical"} if name == "driver" else {}
            )
            await here.pod(name, volumes=SCRATCH, mounts=MOUNTS, **class_name)
        made = {name: await here.wait_until_ready(name) for name in ("modest", "greedy", "driver")}
        assert (await condition(here, "False")).message == "kubelet has no disk pressure"

        fill(scratch(here, made["driver"]), 20)
        fill(scratch(here, made["modest"]), 1)
        fill(scratch(here, made["greedy"]), 32)
        await here.wait_for_phase("Failed", "greedy")
        told = await condition(here, "True")
        assert (told.reason, told.message) == ("KubeletHasDiskPressure", "kubelet has disk pressure")
        evicted = await pod(here, "greedy")
        assert evicted.status.reason == "Evicted"
        assert evicted.status.message.startswith(
            "The node was low on resource: ephemeral-storage. Threshold quantity: 16Mi, available: "
        )
        target = next(c for c in evicted.status.conditions if c.type == "DisruptionTarget")
        assert (target.status, target.reason) == ("True", "TerminationByKubelet")
        events = {(e.involved_object.name, e.reason) for e in await _events(here)}
        assert ("greedy", "Evicted") in events

        # Its emptyDir has gone with it, and that is enough.
        await condition(here, "False")
        assert await here.phase("modest") == await here.phase("driver") == "Running"


async def test_a_node_under_pressure_refuses_pods_and_takes_critical_ones(disk: Path) -> None:
    async with node_on(disk) as here:
        filler = disk / "filler"
        fill(filler, 50)
        await here.start(**SETTINGS)
        await condition(here, "True")
        await here.pod("plain")
        await here.pod("driver", priorityClassName="system-node-critical")
        await here.wait_until_ready("driver")
        await here.wait_for_phase("Failed", "plain")
        refused = await pod(here, "plain")
        assert (refused.status.reason, refused.status.container_statuses) == ("Evicted", ())
        assert refused.status.message == "Pod was rejected: The node had condition: [DiskPressure]. "
        told = [e.message for e in await _events(here) if e.involved_object.name == "plain"]
        assert told == ["The node had condition: [DiskPressure]. "]

        filler.unlink()
        await condition(here, "False")
        await here.pod("later")
        await here.wait_until_ready("later")


async def test_a_pod_whose_empty_dir_is_over_its_limit_leaves(disk: Path) -> None:
    async with node_on(disk) as here:
        await here.start(**SETTINGS)
        limited = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
        await here.pod("limited", volumes=limited, mounts=MOUNTS)
        await here.pod("free", volumes=SCRATCH, mounts=MOUNTS)
        ready = [await here.wait_until_ready(name) for name in ("limited", "free")]
        for each in ready:
            fill(scratch(here, each), 2)
        await here.wait_for_phase("Failed", "limited")
        evicted = await pod(here, "limited")
        assert evicted.status.message == 'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". '
        assert await here.phase("free") == "Running"


async def _events(here: NodeEnv) -> list[Event]:
    assert here.role is not None
    await here.role.events.flush()
    return list(await here.client.list(Event, "default"))
