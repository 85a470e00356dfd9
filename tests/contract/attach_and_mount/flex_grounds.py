"""Where the node's half of section F is played: a node with a FlexVolume driver that is a real executable.

The test plays the attach/detach controller: it lists volumes in volumesAttached with the driver's device.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.contract.attach_and_mount.grounds import node_world
from tests.loops.inprocess import until
from tests.node.node_env import NODE, NodeEnv
from tests.support.flex_script import DRIVER, FlexScript
from volplane.api.codec import convert
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod

DEVICE = "/dev/told"


@asynccontextmanager
async def flex_world(**capabilities: bool) -> AsyncIterator[tuple[NodeEnv, FlexScript]]:
    """A started node whose driver is loaded."""
    async with node_world() as here:
        script = make_script(here)
        script.install(**capabilities)
        await here.start()
        await wait_loaded(here, script)
        yield here, script


def make_script(here: NodeEnv, driver: str = DRIVER) -> FlexScript:
    return FlexScript(f"{here.directory}/exec", f"{here.directory}/{driver.replace('/', '~')}", driver)


async def wait_loaded(here: NodeEnv, script: FlexScript) -> None:
    async def is_loaded() -> bool:
        assert here.role is not None
        return script.driver in here.role.plugins.flex.drivers

    await until(is_loaded)


async def flex_claim(here: NodeEnv, name: str = "data", **spec: Any) -> PersistentVolume:
    """A claim `name` bound to a PersistentVolume `pv-<name>` of the driver."""
    size, flex = {"storage": "1Gi"}, {"driver": DRIVER, "fsType": "ext4", **spec.pop("flexVolume", {})}
    claim_spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": size},
        "volumeName": f"pv-{name}",
        "storageClassName": "",
        "volumeMode": spec.get("volumeMode", "Filesystem"),
    }
    metadata = {"name": name, "namespace": "default"}
    body = {"metadata": metadata, "spec": claim_spec}
    claim = await here.client.create(convert(PersistentVolumeClaim, body))
    reference = {**metadata, "uid": claim.uid}
    volume_spec = {
        "capacity": size,
        "accessModes": ["ReadWriteOnce"],
        "claimRef": reference,
        "flexVolume": flex,
        **spec,
    }
    made = await here.client.create(
        convert(PersistentVolume, {"metadata": {"name": f"pv-{name}"}, "spec": volume_spec})
    )
    status = {"phase": "Bound", "capacity": size}
    await here.client.patch(
        PersistentVolumeClaim, name, "default", merge={"status": status}, subresource="status"
    )
    return made


async def list_attached(here: NodeEnv, *names: str, device: str = DEVICE) -> None:
    """As the attach/detach controller does after the driver's `attach`."""
    listed = [{"name": f"{DRIVER}/{name}", "devicePath": device} for name in names]
    await here.client.patch(Node, NODE, merge={"status": {"volumesAttached": listed}}, subresource="status")


def inline(name: str = "data", *, driver: str = DRIVER, **source: Any) -> dict[str, Any]:
    """Arguments for a pod with an inline FlexVolume."""
    return {
        "volumes": [{"name": name, "flexVolume": {"driver": driver, **source}}],
        "mounts": [{"name": name, "mountPath": f"/{name}"}],
    }


def options(name: str, **more: str) -> dict[str, str]:
    """The options that every call has."""
    return {
        "kubernetes.io/fsType": "ext4",
        "kubernetes.io/readwrite": "rw",
        "kubernetes.io/pvOrVolumeName": name,
        **more,
    }


def decode(call: list[str]) -> list[Any]:
    """Arguments of a call, with JSON decoded."""
    return [json.loads(argument) if argument.startswith("{") else argument for argument in call]


async def wait_until_unused(here: NodeEnv) -> None:
    async def unused() -> bool:
        return not await here.in_use() and not here.list_mounts()

    await until(unused, here.timeout)


def pod_path(here: NodeEnv, pod: Pod, name: str = "pv-data") -> str:
    return here.paths.real(here.paths.volume(pod.uid, DRIVER, name))


def device_path(here: NodeEnv, name: str = "pv-data") -> str:
    return here.paths.real(f"{here.paths.plugins}/kubernetes.io/flexvolume/{DRIVER}/mounts/{name}")


async def run_pod(here: NodeEnv, name: str = "app", **pod: Any) -> Pod:
    await here.pod(name, **pod)
    return await here.wait_until_ready(name)


async def run_attached_pod(here: NodeEnv, **pod: Any) -> Pod:
    await flex_claim(here)
    await list_attached(here, "pv-data")
    return await run_pod(here, claim="data", **pod)


async def end_pod(here: NodeEnv, name: str = "app") -> None:
    """Until it is deleted, which waits for its unmounts."""
    await here.delete(name)
    await here.wait_for_phase("gone", name)


async def disk_of(here: NodeEnv, size: int = 64 << 20) -> str:
    """A blank loop device."""
    file = f"{here.directory}/disk"
    with open(file, "wb") as created:  # noqa: ASYNC230
        created.truncate(size)
    device = await here.host.loop_attach(file)
    here.add_cleanup(lambda: here.host.loop_detach(device))
    return device
