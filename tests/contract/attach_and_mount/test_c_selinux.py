"""Section C8, SELinux: one label for all of a volume as an option of its mount, on a driver's real socket.

The machine is one that says it has SELinux; what the driver is told is looked at, and its mounts are plain.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.loops.inprocess import until
from tests.node.node_env import DRIVER, NodeEnv
from volplane.api.codec import convert
from volplane.api.core import Pod
from volplane.api.storage import CSIDriver
from volplane.host import Host
from volplane.rules.selinux import SELinuxPolicy

pytestmark = pytest.mark.root

ONE_POD = ["ReadWriteOncePod"]
FIRST, SECOND = "s0:c15,c25", "s0:c1,c2"
RECORD = "seLinuxMountContext"


class Labelled(Host):
    policy: SELinuxPolicy | None = SELinuxPolicy(
        "system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0"
    )

    async def selinux(self) -> SELinuxPolicy | None:
        return self.policy


def label(level: str = FIRST) -> str:
    return f"system_u:object_r:container_file_t:{level}"


def options(level: str = FIRST, **more: Any) -> dict[str, Any]:
    return {"seLinuxOptions": {"level": level}, **more}


async def ready(here: NodeEnv, *, host: type[Host] = Labelled, can: bool = True, **settings: Any) -> None:
    await here.host.close()
    here.host = host()
    spec = {"attachRequired": True, "seLinuxMount": can}
    await here.client.create(convert(CSIDriver, {"metadata": {"name": DRIVER}, "spec": spec}))
    await here.start(**settings)
    await here.start_driver()
    await here.wait_until_registered()


async def mounted(here: NodeEnv, name: str = "app", **security: Any) -> Pod:
    await here.pod(name, claim="data", securityContext=security)
    return await here.wait_until_ready(name)


def flags(here: NodeEnv, method: str) -> list[list[str]]:
    asked = [request for name, request in here.disks.calls if name == method]
    return [list(request.volume_capability.mount.mount_flags) for request in asked]


def recorded(here: NodeEnv, pod: Pod) -> tuple[str | None, str | None]:
    """In the metadata of the staged and of the published volume."""
    paths = (here.paths.staging_data(DRIVER, "vol-data"), here.paths.csi_data(pod.uid, "pv-data"))
    known = [json.loads(Path(here.paths.real(path)).read_text()) for path in paths]
    return known[0].get(RECORD), known[1].get(RECORD)


async def test_the_label_is_a_mount_option_of_stage_and_publish_and_is_recorded() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume(accessModes=ONE_POD, mountOptions=["noatime"])
        pod = await mounted(here, **options())
        assert flags(here, "stage") == flags(here, "publish") == [["noatime", f'context="{label()}"']]
        assert recorded(here, pod) == (label(), label())


WITHOUT: dict[str, tuple[dict[str, Any], list[str], dict[str, Any]]] = {
    "the machine has no SELinux": ({"host": Host}, ONE_POD, options()),
    "the driver does not say it can": ({"can": False}, ONE_POD, options()),
    "the volume may have several pods": ({}, ["ReadWriteOnce"], options()),
    "the pod has declined": ({}, ONE_POD, options(seLinuxChangePolicy="Recursive")),
    "the pod names no level": ({}, ONE_POD, {"seLinuxOptions": {"type": "container_t"}}),
    "the pod asks for nothing": ({}, ONE_POD, {}),
}


@pytest.mark.parametrize(("machine", "modes", "security"), WITHOUT.values(), ids=WITHOUT)
async def test_without_a_label(machine: dict[str, Any], modes: list[str], security: dict[str, Any]) -> None:
    async with node_world() as here:
        await ready(here, **machine)
        await here.volume(accessModes=modes)
        pod = await mounted(here, **security)
        assert flags(here, "stage") == flags(here, "publish") == [[]]
        assert recorded(here, pod) == (None, None)


async def test_with_the_gate_open_every_access_mode_has_its_label() -> None:
    async with node_world() as here:
        await ready(here, feature_gates={"SELinuxMount": True})
        await here.volume(accessModes=["ReadWriteMany"])
        await mounted(here, "one", **options())
        await mounted(here, "two", **options())
        assert flags(here, "stage") == [[f'context="{label()}"']]
        assert flags(here, "publish") == [[f'context="{label()}"']] * 2


async def test_containers_with_different_labels_cannot_share_a_volume() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume(accessModes=ONE_POD)
        await here.pod(
            claim="data",
            securityContext=options(),
            initContainers=[
                {
                    "name": "first",
                    "image": "once",
                    "securityContext": options(SECOND),
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
        )
        reported = await here.wait_for_event("multiple SELinux labels found")
        assert reported.startswith("Unable to attach or mount volumes: unmounted volumes=[data]")
        assert reported.endswith(f"multiple SELinux labels found: {label(SECOND)},{label()}")
        assert not here.disks.calls


async def test_a_different_label_waits_for_the_full_unmount_of_the_first() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume(accessModes=ONE_POD)
        await mounted(here, "one", **options())
        await here.pod("two", claim="data", securityContext=options(SECOND))
        reported = await here.wait_for_event("conflicting SELinux labels")
        assert reported.endswith(
            f'conflicting SELinux labels of volume pv-data: "{label()}" and "{label(SECOND)}"'
        )
        await here.delete("one")
        second = await here.wait_until_ready("two")
        order = [name for name, _ in here.disks.calls]
        assert order == ["stage", "publish", "unpublish", "unstage", "stage", "publish"]
        assert flags(here, "stage") == [[f'context="{label()}"'], [f'context="{label(SECOND)}"']]
        assert recorded(here, second) == (label(SECOND), label(SECOND))


async def test_after_a_restart_the_label_comes_back_from_the_disk() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume(accessModes=ONE_POD)
        pod = await mounted(here, **options())
        await here.stop(drain=False)
        # The policy is another one now, and the pod that runs has its files under the old label.
        assert isinstance(here.host, Labelled)
        here.host.policy = None
        here.disks.calls.clear()
        await here.start()

        async def published() -> bool:
            return bool(here.disks.count_calls()["publish"])

        await until(published)
        await here.wait_until_ready()
        assert flags(here, "stage") == flags(here, "publish") == [[f'context="{label()}"']]
        assert recorded(here, pod) == (label(), label())


async def test_after_a_restart_another_label_waits_for_what_was_found() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume(accessModes=ONE_POD)
        await mounted(here, "one", **options())
        await here.stop(drain=False)
        await here.delete("one", grace=0)
        await here.pod("two", claim="data", securityContext=options(SECOND))
        here.disks.calls.clear()
        await here.start()
        await here.wait_until_ready("two")
        assert [name for name, _ in here.disks.calls] == ["unpublish", "unstage", "stage", "publish"]
        assert flags(here, "stage") == [[f'context="{label(SECOND)}"']]
