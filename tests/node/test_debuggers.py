"""Ephemeral containers: added to a pod that runs, with its volumes, and gone with it."""

from __future__ import annotations

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NodeEnv, node_env, path_exists, read, write
from volplane.api.core import ContainerStatus, Pod

pytestmark = pytest.mark.root


async def debug(here: NodeEnv, name: str, script: str) -> None:
    """As `kubectl debug` does."""
    container = {
        "name": name,
        "image": "busybox",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/mnt"}],
    }
    await here.client.patch(
        Pod,
        "app",
        "default",
        strategic={"spec": {"ephemeralContainers": [container]}},
        subresource="ephemeralcontainers",
    )


async def status(here: NodeEnv, name: str) -> ContainerStatus | None:
    pod = await here.client.get(Pod, "app", "default")
    return next((s for s in pod.status.ephemeral_container_statuses if s.name == name), None)


async def until_ended(here: NodeEnv, name: str) -> int:
    async def ended() -> ContainerStatus | None:
        found = await status(here, name)
        return found if found is not None and found.state.terminated is not None else None

    found: ContainerStatus = await until(ended, 60)
    assert found.state.terminated is not None
    return found.state.terminated.exit_code


async def until_running(here: NodeEnv, name: str) -> None:
    async def runs() -> bool:
        found = await status(here, name)
        return found is not None and found.state.running is not None

    await until(runs, 60)


async def ready(here: NodeEnv) -> str:
    await here.start()
    await here.start_driver()
    await here.wait_until_registered()
    await here.volume()
    pod = await here.pod(claim="data", terminationGracePeriodSeconds=1, hostNetwork=True)
    await here.wait_until_ready()
    return here.paths.real(here.paths.csi_target(pod.uid, "pv-data"))


async def test_it_sees_the_volumes_runs_once_and_changes_nothing_for_its_pod() -> None:
    async with node_env() as here:
        volume = await ready(here)
        write(f"{volume}/line", "from the pod")
        await debug(here, "look", "cp /mnt/line /mnt/copy; exit 5")
        assert await until_ended(here, "look") == 5
        assert read(f"{volume}/copy") == "from the pod"
        pod = await here.wait_until_ready()
        assert pod.status.phase == "Running"
        found = await status(here, "look")
        assert found is not None
        assert (found.restart_count, found.ready) == (0, False)
        await debug(here, "again", "exit 0")
        assert await until_ended(here, "again") == 0


async def test_it_ends_with_its_pod_before_the_volumes_go() -> None:
    async with node_env() as here:
        await ready(here)
        await debug(here, "stays", "exec sleep 1000")
        await until_running(here, "stays")
        await here.delete()
        await here.wait_for_phase("gone")

        async def clean() -> bool:
            return here.list_mounts() == []

        await until(clean, 60)


async def test_it_outlives_the_node_and_is_found_again() -> None:
    async with node_env() as here:
        volume = await ready(here)
        await debug(here, "stays", "touch /mnt/once; while [ ! -e /mnt/end ]; do sleep 0.1; done; exit 4")
        await until_running(here, "stays")
        await here.stop(drain=False)
        await here.start()
        await here.wait_until_ready()
        assert path_exists(f"{volume}/once")
        write(f"{volume}/end", "")
        assert await until_ended(here, "stays") == 4
        found = await status(here, "stays")
        assert found is not None
        assert found.restart_count == 0
