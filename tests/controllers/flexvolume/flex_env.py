"""The controllers that call FlexVolume drivers, with the real API server and a driver that is an executable.

The test plays the nodes: it says what they mount.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.controllers.objects import account, claim, node, storage_class, volume
from tests.loops.inprocess import InProcessEnv, running, until, world
from tests.support.flex_script import DRIVER, FlexScript
from volplane.api import codec
from volplane.api.core import AttachedVolume, Event, Node, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.client.client import Client
from volplane.controllers.attachdetach.controller import AttachDetach
from volplane.controllers.expand.controller import Expansion
from volplane.controllers.flexvolume.controller import FlexAttachments
from volplane.host import Host
from volplane.volumes.flex.prober import FlexProber

NAME = f"{DRIVER}/pv"  # the unique name of the PersistentVolume `pv`


CLASS = "manual"


class FlexEnv:
    def __init__(self, around: InProcessEnv, directory: Path) -> None:
        self.around, self.client, self.directory = around, around.client, directory
        self.plugins = directory / "exec"
        self.script = FlexScript(self.plugins, directory / "disks")
        self.sync_period = 60.0

    @asynccontextmanager
    async def controllers(self, client: Client | None = None) -> AsyncIterator[None]:
        """One process with the controllers; a second one continues what the first has left."""
        host, client = Host(), client or self.around.role("controllers")
        prober = FlexProber(str(self.plugins), host)
        try:
            async with running(
                prober.run(),
                self._run_controllers(client, prober),
            ):
                yield
        finally:
            await host.close()

    async def _run_controllers(self, client: Client, prober: FlexProber) -> None:
        """As the controller manager does."""
        await prober.wait_scanned()
        async with asyncio.TaskGroup() as group:
            for each in (
                AttachDetach(client, flex_prober=prober),
                FlexAttachments(client, prober, sync_period=self.sync_period),
                Expansion(client, flex_prober=prober),
            ):
                group.create_task(each.run())

    # --- what the user does

    async def pair(
        self, name: str = "pv", claim_name: str = "data", mode: str = "Filesystem", **flex: Any
    ) -> None:
        """A claim bound to a FlexVolume."""
        own = await self.client.create(claim(claim_name, cls=CLASS, volumeName=name, volumeMode=mode))
        reference = {"namespace": "default", "name": claim_name, "uid": own.uid}
        source = {"driver": DRIVER, "fsType": "ext4", **flex}
        spec: dict[str, Any] = {
            "claimRef": reference,
            "csi": None,
            "flexVolume": source,
            "volumeMode": mode,
        }
        await self.client.create(volume(name, cls=CLASS, **spec))
        status = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
        await self.client.patch(
            PersistentVolumeClaim, claim_name, "default", merge={"status": status}, subresource="status"
        )

    async def kill(self, pod: str) -> None:
        await self.client.delete(Pod, pod, "default", grace=0)

    async def grow(self, size: str) -> None:
        spec = {"resources": {"requests": {"storage": size}}}
        await self.client.patch(PersistentVolumeClaim, "data", "default", merge={"spec": spec})

    # --- what the node does

    async def use(self, on: str, *names: str) -> None:
        status = {"volumesInUse": list(names)}
        await self.client.patch(Node, on, merge={"status": status}, subresource="status")

    # --- what is seen

    async def listed(self, on: str, *names: str) -> list[AttachedVolume]:
        """`volumesAttached` of a node, once it has these volumes and no others."""

        async def is_shown() -> list[AttachedVolume] | None:
            found = (await self.client.get(Node, on)).status.volumes_attached
            return [*found, AttachedVolume()] if [v.name for v in found] == list(names) else None

        found: list[AttachedVolume] = await until(is_shown)
        return found[:-1]

    async def attachments(self, count: int) -> list[VolumeAttachment]:
        async def are_there() -> list[VolumeAttachment | None] | None:
            found = await self.client.list(VolumeAttachment)
            return [*found, None] if len(found) == count else None

        found: list[VolumeAttachment] = await until(are_there)
        return found[:-1]

    async def error(self, text: str) -> VolumeAttachment:
        """The attachment, once its attachError or detachError has this text."""

        async def has_failed() -> VolumeAttachment | None:
            for each in await self.client.list(VolumeAttachment):
                error = each.status.detach_error or each.status.attach_error
                if error is not None and text in error.message:
                    return each
            return None

        found: VolumeAttachment = await until(has_failed)
        return found

    async def event(self, reason: str, text: str) -> Event:
        async def is_recorded() -> Event | None:
            events = await self.client.list(Event, "default")
            return next((e for e in events if e.reason == reason and text in e.message), None)

        found: Event = await until(is_recorded)
        return found

    async def called(self, command: str, times: int = 1) -> list[list[str]]:
        async def are_recorded() -> list[list[str]] | None:
            found = [call for call in self.script.calls if call[0] == command]
            return found if len(found) >= times else None

        found: list[list[str]] = await until(are_recorded)
        return found

    async def wait_for_claim(self, **status: Any) -> PersistentVolumeClaim:
        async def is_shown() -> PersistentVolumeClaim | None:
            found = await self.client.get(PersistentVolumeClaim, "data", "default")
            shown = codec.to_dict(found).get("status", {})
            return found if all(shown.get(key) == value for key, value in status.items()) else None

        found: PersistentVolumeClaim = await until(is_shown)
        return found

    # --- what a driver does

    def hang(self, command: str) -> Path:
        """The command does not end before the returned file is opened for writing."""
        fifo = self.directory / f"{command}.hang"
        os.mkfifo(fifo)
        self.script.on(command, f"touch {fifo}s; cat {fifo} > /dev/null")
        return fifo

    async def wait_until_hanging(self, fifo: Path) -> None:
        """A call is recorded before it does what `hang` has told it."""

        async def is_hanging() -> bool:
            return self._has_begun(fifo)

        await until(is_hanging)

    def _has_begun(self, fifo: Path) -> bool:
        return os.path.exists(f"{fifo}s")

    def release(self, fifo: Path) -> None:
        self.script.work(fifo.stem)
        os.close(os.open(fifo, os.O_WRONLY))


@asynccontextmanager
async def flex_env(
    directory: Path, *nodes: str, install: bool = True, **capabilities: bool
) -> AsyncIterator[FlexEnv]:
    async with world() as around:
        await around.client.create(account())
        await around.client.create(storage_class(CLASS, allowVolumeExpansion=True))
        for name in nodes:
            await around.client.create(node(name))
        env = FlexEnv(around, directory)
        if install:
            env.script.install(**capabilities)
        yield env
