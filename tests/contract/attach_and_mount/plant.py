"""The attaching half of a cluster: the API server, the attach/detach controller, the attacher and a driver.

The server is on HTTPS and the driver on a real socket; in virtual time both are in memory. The test plays the
nodes: it says what they have in use and whether they are ready. A role that is to die is a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.controllers.objects import account, claim, node, pod, volume
from tests.loops.inprocess import InProcessEnv, running, until, world
from tests.support import role_processes, scripted
from tests.support.https_apiserver import HttpsApiServer, https_apiserver
from tests.support.scripted import NAME
from tests.support.scripted.features import Attach
from tests.support.timing import is_virtual
from volplane import sdk
from volplane.api import names
from volplane.api.core import Event, Node, PersistentVolumeClaim, Pod
from volplane.api.meta import ObjectMeta
from volplane.api.storage import CSINode, CSINodeDriver, CSINodeSpec, VolumeAttachment
from volplane.base import clock
from volplane.client.client import Client
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.podgc.controller import PodGarbage
from volplane.csi import v1
from volplane.csi.client import Caller, CsiChannel
from volplane.sidecars.attacher import service as attacher
from volplane.sidecars.attacher.settings import AttacherOptions

ONLY = "--controllers=persistentvolume-attach-detach-controller"
FINALIZER = "external-attacher/test-csi-example-com"
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
LONG = 60.0  # seconds that a busy machine may need


class Sharing(Attach):
    """A driver whose volumes many nodes may have at once."""

    async def controller_publish_volume(
        self, request: v1.ControllerPublishVolumeRequest
    ) -> v1.ControllerPublishVolumeResponse:
        def work() -> v1.ControllerPublishVolumeResponse:
            self.publications[request.volume_id].add(request.node_id)
            return v1.ControllerPublishVolumeResponse()

        reply: v1.ControllerPublishVolumeResponse = await self._do("ControllerPublishVolume", request, work)
        return reply


class Plant:
    def __init__(
        self, around: InProcessEnv | HttpsApiServer, driver: scripted.ScriptedDriver, caller: Caller
    ) -> None:
        self.around, self.client = around, around.client
        self.driver, self.caller = driver, caller
        self.controller: AttachDetach | None = None
        self.socket = ""  # of the driver, where it has one
        self._roles: dict[str, AsyncExitStack] = {}

    # --- roles, which may be ended at any time

    async def start_controller(self, **options: Any) -> None:
        self.controller = AttachDetach(self.around.separate_client("attachdetach"), **options)
        await self._start("controller", self.controller.run(), self.controller.client)

    async def start_attacher(
        self, *, name: str = "attacher", caller: Caller | None = None, **settings: Any
    ) -> None:
        client = self.around.separate_client("csi-attacher")
        work = attacher.run(client, AttacherOptions(**settings), caller=caller or self.caller, identity=name)
        await self._start(name, work, client)

    async def start_pod_garbage(self) -> None:
        client = self.around.separate_client("podgc")
        await self._start("podgc", PodGarbage(client).run(), client)

    async def _start(self, name: str, work: Any, client: Client) -> None:
        stack = self._roles[name] = AsyncExitStack()
        stack.push_async_callback(client.close)
        await stack.enter_async_context(running(work))

    async def stop(self, role: str) -> None:
        await self._roles.pop(role).aclose()

    async def close(self) -> None:
        for role in list(self._roles):
            await self.stop(role)

    def controller_process(self, directory: Path, *flags: str, die: str = "") -> role_processes.Role:
        """The controller as a process of its own, which a test can kill."""
        return self._process(directory, "controller-manager", ONLY, *flags, die=die)

    def attacher_process(self, directory: Path, *flags: str, die: str = "") -> role_processes.Role:
        return self._process(directory, "attacher", f"--csi-address={self.socket}", *flags, die=die)

    def _process(self, directory: Path, *arguments: str, die: str) -> role_processes.Role:
        assert isinstance(self.around, HttpsApiServer)
        return role_processes.Role(
            role_processes.Server(directory, self.around.kubeconfig, self.client), arguments, die
        )

    # --- objects

    async def node(self, name: str) -> None:
        await self.client.create(node(name))
        drivers = (CSINodeDriver(name=NAME, node_id=name),)
        await self.client.create(CSINode(metadata=ObjectMeta(name=name), spec=CSINodeSpec(drivers=drivers)))

    async def volume(self, name: str = "data", *, bound: bool = True, **spec: Any) -> None:
        """A claim and its volume `pv-<name>` with handle `vol-<name>`."""
        csi = {"driver": NAME, "volumeHandle": f"vol-{name}", **spec.pop("csi", {})}
        modes = spec.pop("accessModes", ["ReadWriteOnce"])
        mine = await self.client.create(claim(name, volumeName=f"pv-{name}", accessModes=modes))
        reference = {"namespace": "default", "name": name, "uid": mine.uid}
        made = volume(f"pv-{name}", claimRef=reference, csi=csi, accessModes=modes, **spec)
        await self.client.create(made)
        if bound:
            await self.bind(name)

    async def bind(self, name: str = "data") -> None:
        await self.client.patch(
            PersistentVolumeClaim, name, "default", merge={"status": {"phase": "Bound"}}, subresource="status"
        )

    async def pod(self, name: str, *claims: str, on: str) -> None:
        await self.client.create(pod(name, *(claims or ("data",)), on=on))

    async def remove_pod(self, name: str) -> None:
        await self.client.delete(Pod, name, "default", grace=0)

    # --- nodes, as the test plays them

    async def status(self, on: str, **status: Any) -> None:
        await self.client.patch(Node, on, merge={"status": status}, subresource="status")

    async def uses(self, on: str, *volumes: str) -> None:
        await self.status(on, volumesInUse=[unique(v) for v in volumes])

    async def ready(self, on: str, status: str = "True") -> None:
        await self.status(on, conditions=[{"type": "Ready", "status": status}])

    async def fence(self, on: str) -> None:
        await self.client.patch(Node, on, merge={"spec": {"taints": [OUT_OF_SERVICE]}})

    # --- looking

    async def attachment(self, on: str, volume: str = "data") -> VolumeAttachment | None:
        return await self.client.find(VolumeAttachment, names.attachment_name(f"vol-{volume}", NAME, on))

    async def attached(self, on: str, volume: str = "data", seconds: float = LONG) -> VolumeAttachment:
        """Until the node is told that the volume is there."""

        async def there() -> VolumeAttachment | None:
            found = await self.client.find(Node, on)
            listed = found is not None and unique(volume) in [v.name for v in found.status.volumes_attached]
            return await self.attachment(on, volume) if listed else None

        made: VolumeAttachment = await until(there, seconds)
        assert made.status.attached
        return made

    async def detached(self, on: str, volume: str = "data", seconds: float = LONG) -> None:
        async def gone() -> bool:
            return await self.attachment(on, volume) is None

        await until(gone, seconds)

    async def published(self, volume: str = "data") -> set[str]:
        return set(self.driver.publications[f"vol-{volume}"])

    async def attachments(self) -> list[VolumeAttachment]:
        return await self.client.list(VolumeAttachment)

    async def events(self, reason: str, about: str = "") -> list[Event]:
        events = await self.client.list(Event, "default")
        return [e for e in events if e.reason == reason and about in ("", e.involved_object.name)]

    async def expect_event(self, reason: str, message: str, seconds: float = LONG) -> None:
        async def heard() -> bool:
            return any(e.message == message for e in await self.events(reason))

        await until(heard, seconds)

    def calls(self, method: str) -> int:
        return len(self.driver.requests_of(method))

    def wait_reasons(self, volume: str = "data") -> set[str]:
        """What the controller waits for."""
        assert self.controller is not None
        return {w.wait.reason for w in self.controller.waits if w.key == unique(volume)}

    def pause(self, volume: str = "data") -> float:
        """Seconds until the controller looks at the volume again by itself; 0 if it has no plan to."""
        assert self.controller is not None
        mine = [w.next_try for w in self.controller.waits if w.key == unique(volume) and w.next_try]
        return (min(mine) - clock.wall()).total_seconds() if mine else 0.0


def unique(volume: str = "data") -> str:
    return names.csi_volume_name(NAME, f"vol-{volume}")


async def quiet(seconds: float = 0.1) -> None:
    """Time for something that must not happen to happen anyway."""
    await asyncio.sleep(seconds)


@asynccontextmanager
async def plant(
    *nodes: str,
    driver: Any = None,
    working: tuple[str, ...] = ("controller", "attacher"),
    controller: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> AsyncIterator[Plant]:
    """With its controller and its attacher at work, or those of them that the test asks for."""
    driver = driver or scripted.driver("attach", "readonly")
    async with AsyncExitStack() as stack:
        around: InProcessEnv | HttpsApiServer
        if is_virtual():
            around = await stack.enter_async_context(world())
        else:
            around = await stack.enter_async_context(https_apiserver())
        await around.client.create(account())
        caller, socket = await _caller(stack, driver)
        made = Plant(around, driver, caller)
        made.socket = socket
        stack.push_async_callback(made.close)
        for name in nodes:
            await made.node(name)
        if "controller" in working:
            await made.start_controller(**(controller or {}))
        if "attacher" in working:
            await made.start_attacher(**({"retry_interval_start": 0.05} if settings is None else settings))
        yield made


@asynccontextmanager
async def beside(driver: Any) -> AsyncIterator[Caller]:
    """Another driver, on its own socket."""
    async with AsyncExitStack() as stack:
        caller, _ = await _caller(stack, driver)
        yield caller


async def _caller(stack: AsyncExitStack, driver: Any) -> tuple[Caller, str]:
    if is_virtual():
        local = sdk.Local(driver, component="csi-attacher")
        stack.push_async_callback(local.close)
        return local, ""
    socket = await stack.enter_async_context(scripted.on_socket(driver))
    channel = CsiChannel(socket.path, component="csi-attacher")
    return await stack.enter_async_context(channel), socket.path
