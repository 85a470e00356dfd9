"""The lifecycle of one volume as a user runs it: write on one node, read on another, delete everything.

Every step may be repeated, because the response may be lost with the server. The user is a
program over HTTPS that retries while the API server does not respond, and so survives a crash.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from volplane.api.core import (
    Container,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
    VolumeResourceRequirements,
)
from volplane.api.errors import Timeout, Unavailable
from volplane.api.meta import ObjectMeta
from volplane.api.storage import VolumeAttachment
from volplane.client import kubeconfig
from volplane.client.client import Client

T = TypeVar("T")

LINE = "what was written stays written"
SUM = hashlib.sha256(f"{LINE}\n".encode()).hexdigest()
LOOK = 0.03  # seconds between two looks
PATIENCE = 60.0  # seconds for one step, a restart included

# A line and its checksum, by two files that are both on the disk before the pod is ready. Said twice, it adds
# a second line: a container may be run again after a crash.
WRITE = f"echo '{LINE}' >> /data/lines && sync /data/lines && echo '{SUM}' > /data/sum && sync -f /data"
READ = (
    "test -s /data/lines && while IFS= read -r line; do "
    'test "$(printf "%s\\n" "$line" | sha256sum | cut -d" " -f1)" = "$(cat /data/sum)" || exit 1; '
    "done < /data/lines"
)


class Stuck(AssertionError):
    """A step did not finish."""


class Journey:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.step = "the API server is not there yet"
        self.on_step: Callable[[str], None] = lambda step: None
        self.nodes: list[str] = []  # that ran a pod, in order
        self._client: Client | None = None

    # --- steps

    async def write(self) -> None:
        await self._say("create the claim", lambda c: c.create(claim(), exists_ok=True))
        await self._run("writer", WRITE)

    async def move(self) -> None:
        await self._remove("writer")
        await self._until("its attachment is gone", self._none(VolumeAttachment))
        await self._say("cordon", lambda c: c.patch(Node, self.nodes[0], merge=_cordon_patch(True)))
        await self._run("reader", READ)
        assert self.nodes[0] != self.nodes[1], "the pod did not move"

    async def clean_up(self) -> None:
        """Delete everything that the user has created."""
        for name in ("writer", "reader"):
            await self._remove(name)
        await self._say(
            "delete the claim", lambda c: c.delete(PersistentVolumeClaim, "data", "default", missing_ok=True)
        )
        for kind in (PersistentVolumeClaim, PersistentVolume, VolumeAttachment):
            await self._until(f"no {kind.__name__} is left", self._none(kind))
        await self._say("uncordon", lambda c: c.patch(Node, self.nodes[0], merge=_cordon_patch(False)))
        await self._until("no node speaks of volumes", self._no_volumes_on_nodes)

    async def run(self) -> None:
        await self.write()
        await self.move()
        await self.clean_up()

    async def pods(self) -> set[str]:
        """The uids of all pods."""
        return {found.uid for found in await self._say("list the pods", lambda c: c.list(Pod))}

    # --- parts of the steps

    async def _run(self, name: str, command: str) -> None:
        await self._say(f"create pod {name}", lambda c: c.create(pod(name, command), exists_ok=True))

        async def running(client: Client) -> str:
            found = await client.get(Pod, name, "default")
            assert found.status.phase not in ("Failed", "Succeeded"), f"pod {name}: {found.status}"
            ready = any(c.type == "Ready" and c.status == "True" for c in found.status.conditions)
            return found.spec.node_name if ready else ""

        self.nodes.append(await self._until(f"pod {name} is ready", running))

    async def _remove(self, name: str) -> None:
        await self._say(f"delete pod {name}", lambda c: c.delete(Pod, name, "default", missing_ok=True))

        async def is_gone(client: Client) -> bool:
            return await client.find(Pod, name, "default") is None

        await self._until(f"pod {name} is gone", is_gone)

    @staticmethod
    def _none(kind: type) -> Callable[[Client], Awaitable[bool]]:
        async def none(client: Client) -> bool:
            return not await client.list(kind)

        return none

    @staticmethod
    async def _no_volumes_on_nodes(client: Client) -> bool:
        nodes = await client.list(Node)
        return not any(n.status.volumes_in_use or n.status.volumes_attached for n in nodes)

    # --- retries

    async def _say(self, step: str, act: Callable[[Client], Awaitable[T]]) -> T:
        if step != self.step:
            self.step = step
            self.on_step(step)
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        return await act(await self.client())
                    except (Unavailable, Timeout):
                        await asyncio.sleep(LOOK)
        except TimeoutError:
            raise Stuck(f"{step}: not within {PATIENCE:g} s") from None

    async def _until(self, step: str, test: Callable[[Client], Awaitable[T]]) -> T:
        end = asyncio.get_running_loop().time() + PATIENCE
        while not (found := await self._say(step, test)):
            if asyncio.get_running_loop().time() > end:
                raise Stuck(f"{step}: not within {PATIENCE:g} s")
            await asyncio.sleep(LOOK)
        return found

    async def client(self) -> Client:
        while self._client is None:
            try:
                self._client = Client(kubeconfig.load(self.directory / "kubeconfig"))
            except kubeconfig.BadKubeconfig:
                await asyncio.sleep(LOOK)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            await self._client.transport.close()


@asynccontextmanager
async def journey(directory: Path) -> AsyncIterator[Journey]:
    made = Journey(directory)
    try:
        yield made
    finally:
        await made.close()


def claim(storage_class: str = "gp3") -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name="data", namespace="default"),
        spec=PersistentVolumeClaimSpec(
            access_modes=("ReadWriteOnce",),
            storage_class_name=storage_class,
            resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
        ),
    )


def pod(name: str, command: str) -> Pod:
    """A pod that is Ready when `command` has succeeded, then idle."""
    mounts = (VolumeMount(name="data", mount_path="/data"),)
    source = PersistentVolumeClaimVolumeSource(claim_name="data")
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=PodSpec(
            init_containers=(
                Container(name="work", image="busybox", command=("sh", "-c", command), volume_mounts=mounts),
            ),
            containers=(
                Container(name="idle", image="busybox", command=("sleep", "infinity"), volume_mounts=mounts),
            ),
            restart_policy="Never",
            volumes=(Volume(name="data", persistent_volume_claim=source),),
        ),
    )


def _cordon_patch(value: bool) -> dict[str, object]:
    return {"spec": {"unschedulable": value or None}}
