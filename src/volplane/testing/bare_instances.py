"""EC2 instances for a driver that runs outside of a cluster, as a node of a cluster has them.

Each instance has its metadata service and a /dev with its own disks; the disk service is one for all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from volplane import web
from volplane.cloud import CloudInstance, CloudOptions, serve_endpoint
from volplane.cluster.data_directory import REGION, instance_of
from volplane.cluster.external_driver import caller_environment
from volplane.host import DeviceDirectory, Host, NodePaths
from volplane.host.paths import DEVICES
from volplane.node.instance_metadata import VARIABLE, InstanceMetadata
from volplane.node.options import NodeOptions
from volplane.store.memory import MemoryStore

INSTANCE_TYPE, ZONE = "m5.large", f"{REGION}a"
# Words with which drivers of AWS say that they find no instance, neither by its metadata nor by their Node.
SIGNS = ("IMDS", "169.254.169.254", "instance metadata", "providerID")


class BareInstances:
    """`async with BareInstances(…) as instances`: with `environment` and `binds` for its processes."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        """An instance for each name; its /dev is below `directory`."""
        self._directory, self._names, self._host = directory, names, Host()
        self._stack = AsyncExitStack()
        self._variables: dict[str, str] = {}
        self._metadata: dict[str, str] = {}  # address of the metadata service
        self._devices: dict[str, str] = {}

    def environment(self, name: str) -> dict[str, str]:
        """Without the disk service, if the caller has chosen an account or an endpoint of AWS."""
        chosen = caller_environment.select_variables(os.environ)
        return {**caller_environment.add_cloud(chosen, self._variables), VARIABLE: self._metadata[name]}

    def binds(self, name: str) -> dict[str, str]:
        """The directory that is the instance's /dev, unless devices do not work there."""
        return {DEVICES: self._devices[name]} if self._devices[name] != DEVICES else {}

    async def __aenter__(self) -> BareInstances:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self._stack.push_async_callback(self._host.close)
        keys = [os.urandom(16).hex() for _ in range(2)]
        # Not below the directory of the run: that is the machine of the driver, and may start again without
        # its loop devices.
        disks = await self._host.call(tempfile.mkdtemp, prefix="vtd-disks-")
        self._stack.push_async_callback(self._host.call, shutil.rmtree, disks, True)
        self._stack.push_async_callback(self._host.call, shutil.rmtree, self._directory, True)
        options = CloudOptions(
            data_dir=disks,
            access_key=keys[0],
            secret_key=keys[1],
            zones=(ZONE,),
            instances=tuple(
                CloudInstance(instance_of(name), ZONE, self._paths(name).dev, name) for name in self._names
            ),
        )
        url = await self._stack.enter_async_context(serve_endpoint(options, self._host, MemoryStore()))
        self._variables = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": keys[0],
            "AWS_SECRET_ACCESS_KEY": keys[1],
            "AWS_REGION": REGION,
        }
        for name in self._names:
            await self._start_instance(name)

    async def _start_instance(self, name: str) -> None:
        settings = NodeOptions(
            hostname_override=name,
            instance_id=instance_of(name),
            instance_type=INSTANCE_TYPE,
            zone=ZONE,
            region=REGION,
        )
        metadata = await web.serve(InstanceMetadata(settings, name).handle)
        self._stack.push_async_callback(metadata.close, 0.0)
        self._metadata[name] = f"http://127.0.0.1:{metadata.port}"
        devices = DeviceDirectory(self._host, self._paths(name))
        await devices.fill()
        self._devices[name] = devices.find(DEVICES)

    def _paths(self, name: str) -> NodePaths:
        return NodePaths(str(self._directory / name))


def asks_for_instance(text: str) -> bool:
    """Whether the end of a driver's log names the instance metadata that it did not find."""
    return any(sign in text for sign in SIGNS)
