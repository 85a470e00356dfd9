"""The CRI runtime: containers of containerd or another runtime, in the sandboxes of their pods.

The runtime is shared and outlives this process. What this node has there is found by its labels, once; after
that, only this process changes it, and exits are noticed by `ContainerWatch`. A runtime that does not answer
never counts as an exit: a stop waits until the runtime has carried it out, because the container may use a
volume.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from volplane.base import clock, failpoint
from volplane.base.tasks import KeyedTasks, cancel_and_wait, ignore_error
from volplane.host import Host
from volplane.node.containers.base import (
    KILLED,
    START_ERROR,
    ContainerNotRunning,
    ContainerRunState,
    ContainerSpec,
    CreationFailed,
    NoSuchContainer,
    StartFailed,
    make_ended_state,
    signal_number,
)
from volplane.node.containers.cri import cgroups, labels, v1
from volplane.node.containers.cri.client import (
    CHECK_TIMEOUT,
    CriClient,
    CriError,
    NotFoundInRuntime,
    RuntimeUnavailable,
    insist,
)
from volplane.node.containers.cri.container_config import make_container_config
from volplane.node.containers.cri.container_watch import ContainerWatch
from volplane.node.containers.cri.first_process import FirstProcess
from volplane.node.containers.cri.image_volume_metrics import count_image_volumes
from volplane.node.containers.cri.image_volumes import IMAGES, describe_lack, find_missing_mounts
from volplane.node.containers.cri.runtime_info import RuntimeInfo
from volplane.node.containers.cri.sandboxes import PodSandboxes
from volplane.node.containers.cri.streaming import CriAttach, CriExec, open_attach, open_exec

log = logging.getLogger(__name__)

CANCELLED = "the start was cancelled"


class CriContainer:
    """A container of this node in the runtime."""

    def __init__(
        self,
        cri_id: str,
        state: ContainerRunState,
        *,
        tty: bool = False,
        log_path: str = "",
        process: FirstProcess | None = None,
        stop_signal: str = "",
    ) -> None:
        """`stop_signal`: its own, if the runtime does not send it."""
        self.log_path, self.stop_signal = log_path, stop_signal
        self.cri_id, self.state, self.tty, self.process = cri_id, state, tty, process
        self.done = asyncio.Event()
        if not state.running:
            self.done.set()

    def finish(self, state: ContainerRunState) -> None:
        self.state = state
        self.done.set()
        self.release()

    def release(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None


class CriRuntime:
    def __init__(
        self, cri: CriClient, info: RuntimeInfo, sandboxes: PodSandboxes, host: Host, *, root: str
    ) -> None:
        """`root`: the node's directory, by which it finds its own containers."""
        self.cri, self.info, self._sandboxes, self._host, self._root = cri, info, sandboxes, host, root
        self._cgroup_v2 = cgroups.has_version_2()
        self._containers: dict[str, CriContainer] = {}
        self._starting: KeyedTasks[str, ContainerRunState] = KeyedTasks(ignore_error)
        self._cancelled: set[str] = set()  # starts that are to be given up
        self._uncertain: set[str] = set()  # ids of which the runtime may or may not have a container
        self._adoption: asyncio.Task[None] | None = None
        self._watch = ContainerWatch(cri, labels.node_labels(root), self._containers, self._note_exit)

    # --- what an earlier process has left

    async def _adopt(self) -> None:
        if self._adoption is None:
            self._adoption = asyncio.create_task(insist(self._load), name="containers of the runtime")
        await asyncio.shield(self._adoption)

    async def _load(self) -> None:
        await self.info.read(self.cri)
        for found in await self.cri.list_containers(labels.node_labels(self._root)):
            await self._adopt_container(found)

    async def _adopt_container(self, found: v1.Container) -> None:
        """Track a container that exists; one that was created and not started is removed."""
        id = found.labels[labels.CONTAINER_ID]
        try:
            if found.state == v1.CONTAINER_CREATED:
                await self.cri.remove_container(found.id)
                return
            if found.state == v1.CONTAINER_UNKNOWN:  # it may run
                await self.cri.stop_container(found.id, 0)
            reply = await self.cri.container_status(found.id)
        except NotFoundInRuntime:
            return
        self._track(id, reply)

    def _track(self, id: str, reply: v1.ContainerStatusResponse) -> CriContainer:
        state = self._state(id, reply.status)
        process = FirstProcess.open(read_pid(reply.info)) if state.running else None
        made = CriContainer(
            reply.status.id,
            state,
            tty=read_terminal(reply.info),
            log_path=reply.status.log_path,
            process=process,
            stop_signal=find_unknown_stop_signal(reply.status),
        )
        self._containers[id] = made
        if state.running:
            self._watch.add(id, made)
        return made

    def _state(self, id: str, status: v1.ContainerStatus) -> ContainerRunState:
        running = status.state == v1.CONTAINER_RUNNING
        state = ContainerRunState(
            id=id,
            running=running,
            started_at=_stamp(status.started_at),
            runtime_id=f"{self.info.name}://{status.id}",
            image=status.image.user_specified_image or status.image.image,
            image_id=status.image_ref,
            recursive_mounts=frozenset(m.container_path for m in status.mounts if m.recursive_read_only),
        )
        if running:
            return state
        code = status.exit_code
        reason = status.reason if status.reason not in ("", "Unknown") else ""
        return make_ended_state(state, _stamp(status.finished_at), code, status.message, reason)

    # --- start

    async def start(self, spec: ContainerSpec) -> ContainerRunState:
        await self._adopt()
        if (known := self._containers.get(spec.id)) is not None:
            return known.state
        starting = self._starting.get_or_start(spec.id, lambda: self._start(spec), f"start of {spec.id}")
        return await asyncio.shield(starting)

    async def _start(self, spec: ContainerSpec) -> ContainerRunState:
        if spec.id in self._uncertain:  # an earlier call had no answer
            await self._settle(spec.id)
            if (known := self._containers.get(spec.id)) is not None:
                return known.state
        try:
            with failpoint.around("container:start"):
                return (await self._create_and_start(spec)).state
        except CriError as error:
            # Also if it was refused: the runtime may still be busy with an earlier call of the same name.
            self._uncertain.add(spec.id)
            failure = CreationFailed if error.method == "CreateContainer" else StartFailed
            raise failure(str(error)) from error

    async def _create_and_start(self, spec: ContainerSpec) -> CriContainer:
        sandbox = self._sandboxes.get(spec.pod_uid)
        if sandbox is None:
            raise StartFailed("the pod has no sandbox")
        await self._host.call(os.makedirs, os.path.dirname(spec.log_path), 0o755, True)
        config = make_container_config(
            spec,
            root=self._root,
            log_directory=sandbox.config.log_directory,
            target=self._find_target(spec),
            cgroup_v2=self._cgroup_v2,
        )
        with count_image_volumes(spec.mounts):
            cri_id = await self.cri.create_container(sandbox.id, config, sandbox.config)
            await self._check_image_volumes(spec, cri_id)
        if spec.id in self._cancelled:
            await self.cri.remove_container(cri_id)
            raise StartFailed(CANCELLED)
        try:
            await self.cri.start_container(cri_id)
        except RuntimeUnavailable:
            raise
        except CriError as error:
            return await self._note_failed_start(spec.id, cri_id, error)
        return self._track(spec.id, await self.cri.container_status(cri_id))

    async def _check_image_volumes(self, spec: ContainerSpec, cri_id: str) -> None:
        """Remove a container that the runtime has created without its images."""
        if not any(mount.image for mount in spec.mounts):
            return
        missing = find_missing_mounts(spec.mounts, await self.cri.container_status(cri_id))
        if not missing:
            return
        await self.cri.remove_container(cri_id)
        names = ", ".join(f'"{mount.image_name}" at {mount.target}' for mount in missing)
        raise CreationFailed(describe_lack(f"image {names}", self.info.name, self.info.version, IMAGES))

    def has_recursive_readonly(self, pod: str) -> bool:
        """Whether the mounts of a pod's containers can be read-only with what is mounted below them."""
        sandbox = self._sandboxes.get(pod)
        return sandbox is not None and self.info.has_recursive_readonly(sandbox.handler)

    def _find_target(self, spec: ContainerSpec) -> str:
        """The runtime's id of the container whose processes it shall see."""
        if not spec.target:
            return ""
        for id, container in self._containers.items():
            if id.startswith(f"{spec.pod_uid}_{spec.target}_") and container.state.running:
                return container.cri_id
        raise StartFailed(f'target container "{spec.target}" of container "{spec.name}" is not running')

    async def _note_failed_start(self, id: str, cri_id: str, error: CriError) -> CriContainer:
        """Its command cannot be run: it counts as exited, as with other kubelets."""
        reply = await self.cri.container_status(cri_id)
        made = self._track(id, reply)
        now = clock.stamp()
        code = reply.status.exit_code or 128
        state = make_ended_state(made.state, made.state.finished_at or now, code, error.message, START_ERROR)
        made.finish(state)
        return made

    async def _settle(self, id: str) -> None:
        """Find out what has become of a start without an answer: no container, or one that is tracked."""

        async def find() -> list[v1.Container]:
            return await self.cri.list_containers({labels.CONTAINER_ID: id, **labels.node_labels(self._root)})

        for found in await insist(find):
            await insist(partial(self._adopt_container, found))
        self._uncertain.discard(id)

    async def unfinished_starts(self) -> list[str]:
        return list(dict.fromkeys((*self._starting, *self._uncertain)))

    async def cancel_start(self, id: str) -> None:
        if (starting := self._starting.get(id)) is not None:
            self._cancelled.add(id)
            try:
                await asyncio.wait({starting})
            finally:
                self._cancelled.discard(id)
        if id in self._uncertain:
            await self._settle(id)

    # --- stop

    async def stop(self, id: str, grace: float) -> ContainerRunState:
        await self.cancel_start(id)
        await self._adopt()
        container = self._get(id)
        if container.state.running:
            with failpoint.around("container:stop"):
                if container.stop_signal and grace > 0:
                    grace = await self._send_stop_signal(container, grace)
                await insist(lambda: self._stop(container, grace))
        await container.done.wait()
        return container.state

    async def _send_stop_signal(self, container: CriContainer, grace: float) -> float:
        """Do what the runtime should do; it would send the signal of the image. Returns the seconds left."""
        if container.process is None:
            log.warning("the runtime cannot send %s to %s", container.stop_signal, container.state.id)
            return grace
        container.process.send(signal_number(container.stop_signal))
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await container.process.wait()
        return 0.0

    async def _stop(self, container: CriContainer, grace: float) -> None:
        try:
            await self.cri.stop_container(container.cri_id, grace)
        except NotFoundInRuntime:
            return await self._lose(container)
        failpoint.hit("container:stop:asked")
        await self._note_exit(container.state.id, container)

    async def _note_exit(self, id: str, container: CriContainer) -> None:
        """Take over the exit that the runtime has recorded; nothing if it still runs. Raises CriError."""
        if not container.state.running:
            return
        try:
            reply = await self.cri.container_status(container.cri_id)
        except NotFoundInRuntime:
            return await self._lose(container)
        if reply.status.state in (v1.CONTAINER_EXITED, v1.CONTAINER_UNKNOWN):
            container.finish(self._state(id, reply.status))

    async def _lose(self, container: CriContainer) -> None:
        """The runtime does not have it any more: kill what is left of it. How it ended is unknown.

        A runtime that was replaced, or has lost its state, leaves processes that use the pod's volumes.
        """
        if container.process is not None:
            await container.process.kill()
        message = "The container could not be located in the container runtime"
        container.finish(
            make_ended_state(container.state, clock.stamp(), KILLED, message, "ContainerStatusUnknown")
        )

    async def state(self, id: str) -> ContainerRunState | None:
        await self._adopt()
        container = self._containers.get(id)
        return container.state if container is not None else None

    async def states(self) -> list[ContainerRunState]:
        await self._adopt()
        return [container.state for container in self._containers.values()]

    async def wait(self, id: str) -> ContainerRunState:
        await self._adopt()
        container = self._get(id)
        await container.done.wait()
        return container.state

    async def remove(self, id: str) -> None:
        await self.cancel_start(id)
        await self._adopt()
        container = self._containers.get(id)
        if container is None:
            return
        with failpoint.around("container:remove"):
            # The runtime kills it if it runs.
            await insist(lambda: self._remove(container))
        if container.state.running:
            await self._lose(container)
        self._containers.pop(id, None)
        await self._sandboxes.remove_if_empty(id.rsplit("_", 2)[0])

    async def _remove(self, container: CriContainer) -> None:
        with suppress(NotFoundInRuntime):
            await self.cri.remove_container(container.cri_id)

    async def close(self) -> None:
        """Release everything; the containers go on running."""
        await self._watch.close()
        if starting := self._starting.values():
            await asyncio.wait(starting, timeout=CHECK_TIMEOUT)
        await self._starting.close()
        await cancel_and_wait(self._adoption)
        for container in self._containers.values():
            container.release()

    def _get(self, id: str) -> CriContainer:
        if id not in self._containers:
            raise NoSuchContainer(id)
        return self._containers[id]

    # --- commands inside, and its own streams

    async def exec(
        self, id: str, command: tuple[str, ...], *, tty: bool = False, stdin: bool = False
    ) -> CriExec:
        return await open_exec(self.cri, (await self._get_running(id)).cri_id, command, tty=tty, stdin=stdin)

    async def exec_sync(self, id: str, command: tuple[str, ...], timeout: float) -> tuple[bytes, int]:
        """Run a command, which the runtime kills after `timeout` seconds (0: no limit).

        Returns its output and exit code. Raises TimeoutError, CriError.
        """
        container = await self._get_running(id)
        request = v1.ExecSyncRequest(container_id=container.cri_id, cmd=command, timeout=round(timeout))
        limit = timeout + CHECK_TIMEOUT if timeout else 24 * 3600.0
        try:
            reply: v1.ExecSyncResponse = await self.cri.call("ExecSync", request, limit)
        except RuntimeUnavailable as error:
            if "timeout" in error.message or "deadline" in error.message.lower():
                raise TimeoutError from None
            raise
        return reply.stdout + reply.stderr, reply.exit_code

    async def attach(self, id: str, *, stdin: bool = False) -> CriAttach:
        container = await self._get_running(id)
        return await open_attach(self.cri, container.cri_id, tty=container.tty, stdin=stdin)

    async def _get_running(self, id: str) -> CriContainer:
        await self._adopt()
        container = self._get(id)
        if not container.state.running:
            raise ContainerNotRunning(id)
        return container

    # --- for logs

    def running_containers(self) -> list[CriContainer]:
        return [container for container in self._containers.values() if container.state.running]


def find_unknown_stop_signal(status: v1.ContainerStatus) -> str:
    """The stopSignal that a container was created with, if the runtime does not know it."""
    return status.annotations.get(labels.STOP_SIGNAL, "") if not status.stop_signal else ""


def read_pid(info: Mapping[str, str]) -> int:
    """The pid of a container's first process in the runtime's verbose status; 0 if it does not tell."""
    pid = _info(info).get("pid", 0)
    return pid if isinstance(pid, int) else 0


def read_terminal(info: Mapping[str, str]) -> bool:
    """Whether a container has a terminal."""
    process = (_info(info).get("runtimeSpec") or {}).get("process") or {}
    return bool(process.get("terminal"))


def _info(info: Mapping[str, str]) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(info.get("info", "{}"))
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _stamp(nanoseconds: int) -> str:
    if nanoseconds <= 0:
        return ""
    return clock.stamp(datetime.fromtimestamp(nanoseconds / 1e9, UTC))
