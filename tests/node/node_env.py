"""A kubelet over the real API server, with a driver on a real socket that makes real mounts.

The server is in process, or on HTTPS. The test plays the attach/detach controller and the binder: it binds
claims and attaches volumes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.loops.inprocess import InProcessEnv, until, world
from tests.support.https_apiserver import HttpsApiServer, https_apiserver
from tests.support.timing import is_virtual
from volplane.api import names
from volplane.api.codec import convert
from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount
from volplane.api.meta import ObjectMeta
from volplane.api.storage import CSIDriver, CSINode, VolumeAttachment
from volplane.base import clock
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.registration import RegistrationServer
from volplane.host import Host, NodePaths, mounts, network
from volplane.node.containers.task import TaskContext, TaskImage
from volplane.node.kubelet import Kubelet
from volplane.node.network.pod_network import bridge_name
from volplane.node.options import NodeOptions
from volplane.sdk import Driver, DriverServer, Local
from volplane.volumes import csi as volumes_csi

DRIVER = "disks.test"
NODE = "worker-1"

Hook = Callable[[Any], Awaitable[None]]


class FakeDiskDriver(Driver):
    """Stages a tmpfs, publishes a bind mount of it. Hooks before a method may fail, hang or inspect."""

    name, version = DRIVER, "1.0"

    def __init__(self, paths: NodePaths) -> None:
        super().__init__()
        self.paths = paths
        self.calls: list[tuple[str, Any]] = []
        self._moments: list[tuple[str, float]] = []  # when each call came
        self.hooks: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}
        self.devices: dict[str, str] = {}  # of block volumes, by handle

    def count_calls(self) -> Counter[str]:
        return Counter(name for name, _ in self.calls)

    def seconds_between_calls(self, name: str) -> list[float]:
        """Seconds between successive calls, by the driver's own clock."""
        return [later - earlier for earlier, later in pairwise(self.call_times(name))]

    def call_times(self, name: str) -> list[float]:
        return [moment for called, moment in self._moments if called == name]

    async def _enter(self, name: str, request: Any) -> None:
        self.calls.append((name, request))
        self._moments.append((name, clock.now()))
        if hook := self.hooks.get(name):
            await hook(request)

    async def _leave(self, name: str, request: Any) -> None:
        if hook := self.after.get(name):
            await hook(request)

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        topology = v1.Topology(segments={"topology.disks.test/zone": "a"})
        return v1.NodeGetInfoResponse(node_id="n-1", max_volumes_per_node=5, accessible_topology=topology)

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        await self._enter("stage", request)
        path = self.paths.real(request.staging_target_path)
        if request.volume_capability.HasField("mount") and not mounts.is_mount(path):
            mounts.mount("tmpfs", path, "tmpfs", [])
        await self._leave("stage", request)
        return v1.NodeStageVolumeResponse()

    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        await self._enter("unstage", request)
        mounts.unmount(self.paths.real(request.staging_target_path))
        return v1.NodeUnstageVolumeResponse()

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        await self._enter("publish", request)
        target = self.paths.real(request.target_path)
        if request.volume_capability.HasField("block"):
            self._publish_device(self.devices[request.volume_id], target)
        elif not mounts.is_mount(target):
            os.makedirs(target, exist_ok=True)
            source = self.paths.real(request.staging_target_path)
            if source:
                mounts.bind(source, target, readonly=request.readonly, recursive=False)
            else:  # an inline volume
                mounts.mount("tmpfs", target, "tmpfs", [])
        await self._leave("publish", request)
        return v1.NodePublishVolumeResponse()

    async def node_expand_volume(self, request: v1.NodeExpandVolumeRequest) -> v1.NodeExpandVolumeResponse:
        await self._enter("expand", request)
        return v1.NodeExpandVolumeResponse(capacity_bytes=request.capacity_range.required_bytes)

    def _publish_device(self, device: str, target: str) -> None:
        if not mounts.is_mount(target):
            Path(target).touch()
            mounts.bind(device, target, readonly=False, recursive=False)

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        await self._enter("unpublish", request)
        target = self.paths.real(request.target_path)
        mounts.unmount(target)
        with suppress(FileNotFoundError):
            _remove(target)
        return v1.NodeUnpublishVolumeResponse()


def _remove(target: str) -> None:
    os.rmdir(target) if os.path.isdir(target) else os.unlink(target)


async def forever(context: TaskContext) -> None:
    """A container that runs until it is stopped."""
    await context.stop.wait()


async def once(context: TaskContext) -> None:
    """A container that ends at once; its first argument is the exit code."""
    raise SystemExit(int(context.args[0]) if context.args else 0)


class NodeEnv:
    def __init__(self, api: InProcessEnv | HttpsApiServer, directory: str, stack: AsyncExitStack) -> None:
        self.api, self.client = api, api.client
        self.directory = directory
        self.paths = NodePaths(f"{directory}/n/1")
        self.disks = FakeDiskDriver(self.paths)
        self.images: dict[str, TaskImage] = {"forever": forever, "once": once}
        self.host = Host()
        self.role: Kubelet | None = None
        self.timeout = 30.0  # seconds for any wait
        self._stack = stack
        self._cleanups: list[Callable[[], Awaitable[Any]]] = []
        self._driver: AsyncExitStack | None = None
        self._server: DriverServer | None = None
        self.registrar: RegistrationServer | None = None

    # --- the node and its driver

    async def start(self, client: Client | None = None, **settings: Any) -> Kubelet:
        made = NodeOptions(
            hostname_override=NODE,
            root_dir=self.paths.root,
            zone="us-east-1a",
            region="us-east-1",
            instance_id="i-0123456789",
            instance_type="m5.large",
            **{
                "volume_plugin_dir": f"{self.directory}/exec",
                "enable_server": "tls_cert_file" in settings,  # else each test would make a certificate
                "port": 0,
                **settings,
            },
        )
        self.role = Kubelet(made, client or self.api.separate_client("kubelet"), self.host, self.images)
        await self.role.start()
        return self.role

    async def stop(self, *, drain: bool = True) -> None:
        role, self.role = self.role, None
        if role is not None:
            await role.stop(drain=drain)
            await role.client.close()

    async def start_driver(self) -> None:
        self._driver = stack = AsyncExitStack()
        socket = self.paths.real(self.paths.driver_socket(DRIVER))
        os.makedirs(os.path.dirname(socket), exist_ok=True)
        os.makedirs(self.paths.real(self.paths.registry), exist_ok=True)
        self._server = DriverServer(self.disks, socket, grace=0)
        await self._server.start()
        stack.push_async_callback(self.kill_driver)
        registry, socket = self.paths.real(self.paths.registry), self.paths.driver_socket(DRIVER)
        self.registrar = await stack.enter_async_context(RegistrationServer(registry, DRIVER, socket))

    def register_in_memory_driver(self) -> None:
        """Register the driver without a socket: for virtual time."""
        assert self.role is not None
        self.role.drivers.add(volumes_csi.RegisteredDriver(DRIVER, Local(self.disks, component="kubelet")))

    async def kill_driver(self) -> None:
        """The registrar goes on running."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def restart_driver(self) -> None:
        self._server = DriverServer(self.disks, self.paths.real(self.paths.driver_socket(DRIVER)), grace=0)
        await self._server.start()

    async def wait_until_registered(self) -> CSINode:
        found: CSINode = await until(self._find_registered, self.timeout)
        return found

    async def _find_registered(self) -> CSINode | None:
        found = await self.client.find(CSINode, NODE)
        return found if found is not None and found.spec.drivers else None

    async def stop_driver(self) -> None:
        if self._driver is not None:
            await self._driver.aclose()
            self._driver = None

    def add_cleanup(self, clean_up: Callable[[], Awaitable[Any]]) -> None:
        """Call it at the end, when nothing is mounted."""
        self._cleanups.append(clean_up)

    async def close(self) -> None:
        await self.stop()
        await self.stop_driver()
        network.remove_bridge(bridge_name(self.paths.root))  # left by a node that was not drained
        for entry in mounts.read_table().under(self.directory):
            mounts.unmount(entry.target, detach=True)
        for clean_up in self._cleanups:
            await clean_up()
        await self.host.close()
        shutil.rmtree(self.directory)

    # --- the rest of the cluster

    async def volume(self, name: str = "data", *, attached: bool = True, **spec: Any) -> PersistentVolume:
        """A claim `name` in `default` with its volume `pv-<name>`, bound, and attached if `attached`."""
        driver = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": True}}
        await self.client.create(convert(CSIDriver, driver), exists_ok=True)
        size, modes = {"storage": "1Gi"}, spec.pop("accessModes", ["ReadWriteOnce"])
        chosen = spec.get("storageClassName", "")
        claim = await self.client.create(
            convert(
                PersistentVolumeClaim,
                {
                    "metadata": {"name": name, "namespace": "default"},
                    "spec": {
                        "accessModes": modes,
                        "resources": {"requests": size},
                        "volumeName": f"pv-{name}",
                        "storageClassName": chosen,
                        "volumeMode": spec.get("volumeMode", "Filesystem"),
                    },
                },
            )
        )
        volume = await self.client.create(
            convert(
                PersistentVolume,
                {
                    "metadata": {"name": f"pv-{name}"},
                    "spec": {
                        "capacity": size,
                        "accessModes": modes,
                        "claimRef": {"namespace": "default", "name": name, "uid": claim.uid},
                        "csi": {"driver": DRIVER, "volumeHandle": f"vol-{name}", "fsType": "ext4"},
                        **spec,
                    },
                },
            )
        )
        await self.client.patch(
            PersistentVolumeClaim, name, "default", merge={"status": {"phase": "Bound"}}, subresource="status"
        )
        if attached:
            await self.attach(name)
        return volume

    async def attach(self, name: str = "data", *, metadata: Mapping[str, str] | None = None) -> None:
        attachment = names.attachment_name(f"vol-{name}", DRIVER, NODE)
        spec = {"attacher": DRIVER, "nodeName": NODE, "source": {"persistentVolumeName": f"pv-{name}"}}
        body = {"metadata": {"name": attachment}, "spec": spec}
        await self.client.create(convert(VolumeAttachment, body), exists_ok=True)
        told = {"devicePath": f"/dev/{name}"} if metadata is None else metadata
        status = {"attached": True, "attachmentMetadata": told}
        await self.client.patch(VolumeAttachment, attachment, merge={"status": status}, subresource="status")
        node = await self.client.get(Node, NODE)
        listed = [{"name": v.name, "devicePath": ""} for v in node.status.volumes_attached]
        listed.append({"name": unique_name(name), "devicePath": ""})
        await self.client.patch(
            Node, NODE, merge={"status": {"volumesAttached": listed}}, subresource="status"
        )

    async def pod(
        self,
        name: str = "app",
        *,
        claim: str = "",
        readonly: bool = False,
        device: str = "",
        volumes: list[dict[str, Any]] | None = None,
        mounts: list[dict[str, Any]] | None = None,
        container: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> Pod:
        sources, places = list(volumes or []), list(mounts or [])
        if claim:
            wanted = {"claimName": claim, "readOnly": readonly}
            sources.append({"name": "data", "persistentVolumeClaim": wanted})
        if claim and not device:
            places.append({"name": "data", "mountPath": "/data"})
        account = ServiceAccount(
            metadata=ObjectMeta(name="default", namespace="default"), automount_service_account_token=False
        )
        await self.client.create(account, exists_ok=True)
        main = {"name": "main", "image": "forever", "volumeMounts": places, **(container or {})}
        if device:
            main["volumeDevices"] = [{"name": "data", "devicePath": device}]
        body = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": NODE, "containers": [main], "volumes": sources, **spec},
        }
        return await self.client.create(convert(Pod, body))

    async def delete(self, name: str = "app", **options: Any) -> None:
        await self.client.delete(Pod, name, "default", **options)

    # --- reading the state

    async def phase(self, name: str = "app") -> str:
        found = await self.client.find(Pod, name, "default")
        return found.status.phase if found else "gone"

    async def wait_for_phase(self, phase: str, name: str = "app") -> None:
        async def reached() -> bool:
            return await self.phase(name) == phase

        await until(reached, self.timeout)

    async def wait_until_ready(self, name: str = "app") -> Pod:
        async def ready() -> Pod | None:
            found = await self.client.get(Pod, name, "default")
            fit = any(c.type == "Ready" and c.status == "True" for c in found.status.conditions)
            return found if fit else None

        pod: Pod = await until(ready, self.timeout)
        return pod

    async def list_event_messages(self) -> list[str]:
        """The messages of all events of the node."""
        assert self.role is not None
        await self.role.events.flush()
        return [e.message for e in await self.client.list(Event, "default")]

    async def wait_for_event(self, part: str) -> str:
        async def find_message() -> str | None:
            return next((m for m in await self.list_event_messages() if part in m), None)

        message: str = await until(find_message, self.timeout)
        return message

    async def in_use(self) -> list[str]:
        return list((await self.client.get(Node, NODE)).status.volumes_in_use)

    def list_mounts(self) -> list[str]:
        """Mounts below the node's root, with paths as drivers see them."""
        found = (e.target for e in mounts.read_table().under(self.paths.root))
        return sorted(self.paths.wire(t) for t in found if t != self.paths.root)


def unique_name(name: str = "data") -> str:
    return names.csi_volume_name(DRIVER, f"vol-{name}")


@asynccontextmanager
async def node_env(*, https: bool = False) -> AsyncIterator[NodeEnv]:
    async with AsyncExitStack() as stack:
        api: InProcessEnv | HttpsApiServer
        if https and not is_virtual():
            api = await stack.enter_async_context(https_apiserver())
        else:
            api = await stack.enter_async_context(world())
        made = NodeEnv(api, tempfile.mkdtemp(prefix="vp-"), stack)
        stack.push_async_callback(made.close)
        yield made


async def wait_briefly(seconds: float = 0.05) -> None:
    """Give something that must not happen time to happen."""
    await asyncio.sleep(seconds)


def path_exists(path: str | Path) -> bool:
    return Path(path).exists()


def write(path: str | Path, text: str) -> None:
    Path(path).write_text(text)


def read(path: str | Path) -> str:
    return Path(path).read_text()
