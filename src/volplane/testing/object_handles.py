"""Handles of claims, snapshots and pods for pytest tests. Every method waits until it is done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.snapshot import VolumeSnapshot

if TYPE_CHECKING:
    from volplane.node.containers.base import ExecOutput
    from volplane.testing.sync_cluster import SyncCluster

WAIT_TIMEOUT = 60.0  # seconds that a test waits for anything
NAMESPACE = "default"
DATA = "/data"
DEVICE = "/dev/data"


class PodCommandFailed(AssertionError):
    """A command in a pod failed."""


async def _read_all(stream: ExecOutput | None) -> bytes:
    data = bytearray()
    while stream is not None and (part := await stream.read()):
        data += part
    return bytes(data)


class ClaimHandle:
    def __init__(self, handle: SyncCluster, name: str, *, block: bool = False) -> None:
        self._handle, self.name, self.block = handle, name, block

    @property
    def reference(self) -> dict[str, str]:
        return {"kind": "PersistentVolumeClaim", "name": self.name}

    def get(self) -> PersistentVolumeClaim:
        found = self._handle.find(PersistentVolumeClaim, self.name)
        assert found is not None, f"claim {self.name} is gone"
        return found

    def wait_until_bound(self) -> PersistentVolume:
        """Wait until it is bound, and return the PersistentVolume."""
        cache = self._handle.client.cache(PersistentVolumeClaim)

        def is_bound() -> bool:
            mine = cache.get(self.name, NAMESPACE)
            return mine is not None and mine.status.phase == "Bound"

        self._handle.until(PersistentVolumeClaim, is_bound, f"claim {self.name} is bound")
        volume = self._handle.find(PersistentVolume, self.get().spec.volume_name, "")
        assert volume is not None
        return volume

    def grow(self, size: str) -> None:
        """Expand the claim, and wait until it has that size."""
        patch = {"spec": {"resources": {"requests": {"storage": size}}}}
        client = self._handle.client
        self._handle.run(client.patch(PersistentVolumeClaim, self.name, NAMESPACE, merge=patch))
        cache = client.cache(PersistentVolumeClaim)

        def has_grown() -> bool:
            mine = cache.get(self.name, NAMESPACE)
            return mine is not None and mine.status.capacity.get("storage") == size

        self._handle.until(PersistentVolumeClaim, has_grown, f"claim {self.name} has grown to {size}")

    def snapshot(self) -> SnapshotHandle:
        """Create a snapshot, and wait until it is ready."""
        spec = {"source": {"persistentVolumeClaimName": self.name}}
        made = self._handle.make("snapshot.storage.k8s.io/v1", "VolumeSnapshot", "snapshot", spec=spec)
        cache = self._handle.client.cache(VolumeSnapshot)

        def is_ready() -> bool:
            mine = cache.get(made.name, NAMESPACE)
            return mine is not None and mine.status is not None and bool(mine.status.ready_to_use)

        self._handle.until(VolumeSnapshot, is_ready, f"snapshot {made.name} is ready")
        return SnapshotHandle(made.name)

    def delete(self) -> None:
        """Delete it, and wait until it and its volume are gone."""
        volume = self.get().spec.volume_name
        handle = self._handle
        handle.remove(PersistentVolumeClaim, self.name)
        if volume:
            cache = handle.client.cache(PersistentVolume)
            handle.until(PersistentVolume, lambda: cache.get(volume) is None, f"volume {volume} is gone")


class SnapshotHandle:
    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def reference(self) -> dict[str, str]:
        return {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": self.name}


class RunningPod:
    def __init__(self, handle: SyncCluster, name: str) -> None:
        self._handle, self.name = handle, name
        self._restarts = 0  # at the last wait

    def get(self) -> Pod:
        found = self._handle.find(Pod, self.name)
        assert found is not None, f"pod {self.name} is gone"
        return found

    @property
    def node(self) -> str:
        return self.get().spec.node_name

    def wait(self, timeout: float = WAIT_TIMEOUT) -> RunningPod:
        cache = self._handle.client.cache(Pod)

        def is_running() -> bool:
            mine = cache.get(self.name, NAMESPACE)
            return mine is not None and mine.status.phase == "Running"

        self._handle.until(Pod, is_running, f"pod {self.name} runs", timeout)
        self._restarts = self.restarts
        return self

    @property
    def restarts(self) -> int:
        """How often its container was restarted."""
        return sum(status.restart_count for status in self.get().status.container_statuses)

    def wait_for_restart(self, timeout: float = WAIT_TIMEOUT) -> RunningPod:
        """Wait until its container was restarted since the last wait, and runs."""
        cache = self._handle.client.cache(Pod)

        def has_restarted() -> bool:
            mine = cache.get(self.name, NAMESPACE)
            statuses = mine.status.container_statuses if mine is not None else ()
            runs = all(status.state is not None and status.state.running is not None for status in statuses)
            return runs and sum(status.restart_count for status in statuses) > self._restarts

        self._handle.until(Pod, has_restarted, f"the container of pod {self.name} is restarted", timeout)
        self._restarts = self.restarts
        return self

    def exec(self, *command: str, timeout: float = WAIT_TIMEOUT) -> str:
        """Run a command in the container and return its output; a single argument is a shell command.

        Raises PodCommandFailed.
        """
        words = ("sh", "-c", command[0]) if len(command) == 1 else command
        return self._handle.run(self._exec(words), timeout)

    async def _exec(self, command: tuple[str, ...]) -> str:
        pod = await self._handle.client.get(Pod, self.name, NAMESPACE)
        status = pod.status.container_statuses[0]
        runtimes = self._handle.cluster.nodes[pod.spec.node_name].runtimes
        running = await runtimes.exec(
            status.container_id.partition("://")[2], command, tty=False, stdin=False
        )
        try:
            # Both at once: a command that fills the pipe of one blocks until it is read.
            output, errors = await asyncio.gather(_read_all(running.stdout), _read_all(running.stderr))
            code = await running.wait()
        finally:
            await running.close()
        if code:
            message = errors.decode(errors="replace").strip()
            raise PodCommandFailed(f"`{' '.join(command)}` in pod {self.name} ended with {code}: {message}")
        return output.decode(errors="replace")

    def write(self, name: str, text: str) -> None:
        """Write a file of the volume, and sync it."""
        self.exec("sh", "-c", f'printf %s "$1" > {DATA}/{name} && sync {DATA}/{name}', "sh", text)

    def read(self, name: str) -> str:
        return self.exec("cat", f"{DATA}/{name}")

    def delete(self) -> None:
        """Delete it, and wait until its volume is unmounted."""
        self._handle.remove(Pod, self.name)
