"""The task runtime: runs built-in images (our sidecars and drivers) as coroutines of the node.

To the node a task looks like any container: it starts, logs, fails, is restarted. What it logs, in any
module, goes to its own log, because the log's sink is a context variable of its task. It ends with this
process.

A task runs with the node's privileges, so it must not lend them to any pod that names its image. It opens
files only below its container's volume mounts. An image that can do more than its container could (it holds
the cloud account, or mounts file systems of the machine) is a `RestrictedImage`, which starts only for
service accounts that may use it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import stat
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from msgspec import Struct

from volplane.base import clock, log
from volplane.host import NodePaths, files
from volplane.node.containers.base import (
    KILLED,
    AttachRefused,
    AttachSession,
    ContainerNotRunning,
    ContainerRunState,
    ContainerSpec,
    ExecRefused,
    ExecSession,
    ImageNotAllowed,
    NoSuchContainer,
    StartFailed,
    make_ended_state,
)
from volplane.node.containers.logs import LogFile

CANCEL_INTERVAL = 5.0  # seconds between two cancellations of a coroutine that ignores them
MAX_FILE_SIZE = 1 << 20  # bytes of a file that a task reads


class NotMounted(SystemExit):
    """A path of the container that is not on one of its volumes, or leads out of one. Ends the container."""


class TaskContext(Struct, frozen=True):
    """What a built-in image gets instead of argv, environment and file system."""

    spec: ContainerSpec
    node: NodePaths
    stop: asyncio.Event  # set when the container is to stop
    ports: dict[int, int] = {}  # requested port → the port it listens on instead

    @property
    def env(self) -> Mapping[str, str]:
        return self.spec.env

    @property
    def args(self) -> tuple[str, ...]:
        return self.spec.args

    def path(self, container_path: str) -> str:
        """The real path behind a path of the container. Raises NotMounted.

        Links are followed inside the volume only: a link of the pod must not lead a task, which has the
        node's privileges, to files of the machine.
        """
        root, below = self._find_mount(container_path)
        root = os.path.realpath(root)
        resolved = os.path.realpath(os.path.join(root, below))
        if resolved != root and not resolved.startswith(root.rstrip("/") + "/"):
            raise NotMounted(f'path "{container_path}" leads out of its volume')
        return resolved

    @contextmanager
    def open_directory(self, container_path: str) -> Iterator[str]:
        """A path that leads to this directory even if the pod replaces it meanwhile."""
        with self._open(container_path) as descriptor:
            yield f"/proc/self/fd/{descriptor}"

    @contextmanager
    def open_socket(self, container_path: str) -> Iterator[str]:
        """A path that leads to this socket even if the pod replaces it meanwhile.

        Raises OSError if there is no socket, or if its path leads out of the volume.
        """
        root, below = self._find_mount(container_path)
        with files.open_below(root, below) as descriptor:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK), container_path)
            yield f"/proc/self/fd/{descriptor}"

    def read(self, container_path: str) -> bytes:
        """The content of a regular file. Raises NotMounted, OSError."""
        with self._open(container_path) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotMounted(f'"{container_path}" is not a regular file')
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                return file.read(MAX_FILE_SIZE)

    @contextmanager
    def _open(self, container_path: str) -> Iterator[int]:
        root, below = self._find_mount(container_path)
        try:
            with files.open_below(root, below) as descriptor:
                yield descriptor
        except files.PathEscapesVolume as error:
            raise NotMounted(f'path "{container_path}" leads out of its volume') from error

    def _find_mount(self, container_path: str) -> tuple[str, str]:
        """The source of the mount that contains the path, and the path below it."""
        path = posixpath.normpath(container_path)
        for mount in sorted(self.spec.mounts, key=lambda m: -len(m.target)):
            target = mount.target.rstrip("/")
            if path == target or path.startswith(target + "/"):
                return mount.source, path[len(target) :].lstrip("/")
        raise NotMounted(
            f'path "{container_path}" is not below a volume mount of container "{self.spec.name}": '
            f"a built-in image has no other files"
        )


TaskImage = Callable[[TaskContext], Awaitable[None]]
# (namespace and name of a service account, name of an image) → why it may not use the image, "" if it may
ImageAccessCheck = Callable[[str, str, str], Awaitable[str]]


class RestrictedImage(Struct, frozen=True):
    """A built-in image that can do more than its container could."""

    name: str  # the resource name in RBAC rules
    run: TaskImage
    touches_host: Callable[[ContainerSpec], bool]  # whether a container of it must be privileged

    def __call__(self, context: TaskContext) -> Awaitable[None]:
        return self.run(context)


async def _refuse_all(namespace: str, account: str, image: str) -> str:
    return f'the built-in image "{image}" is not allowed on this node'


class _TaskContainer:
    def __init__(self, spec: ContainerSpec, node: NodePaths) -> None:
        self.context = TaskContext(spec, node, asyncio.Event(), {})
        self.state = ContainerRunState(spec.id, running=True, started_at=clock.stamp(), spec=spec)
        self.done = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def main(self, image: TaskImage) -> None:
        # A short append to the page cache: cheaper than handing the line to another thread.
        spec = self.context.spec
        file = LogFile(spec.log_path, max_size=spec.log_max_size, max_files=spec.log_max_files)
        log.sink.set(file.write)
        try:
            code, message = await self._run(image, file)
            self.state = make_ended_state(self.state, clock.stamp(), code, message)
        finally:
            log.sink.set(None)
            file.close()
            self.done.set()

    async def _run(self, image: TaskImage, file: LogFile) -> tuple[int, str]:
        try:
            await image(self.context)
        except asyncio.CancelledError:
            return KILLED, ""
        except SystemExit as end:
            if isinstance(end.code, str):
                file.write(end.code)
            return (end.code if isinstance(end.code, int) else int(end.code is not None)), ""
        except Exception as error:
            file.write(traceback.format_exc().rstrip())
            return 1, f"{type(error).__name__}: {error}"
        return 0, ""


class TaskRuntime:
    def __init__(
        self, images: Mapping[str, TaskImage], node: NodePaths, why_not: ImageAccessCheck = _refuse_all
    ) -> None:
        """`why_not` decides who may use restricted images."""
        self._images = images
        self._node = node
        self._why_not = why_not
        self._containers: dict[str, _TaskContainer] = {}

    def has_image(self, image: str) -> bool:
        return image in self._images

    async def start(self, spec: ContainerSpec) -> ContainerRunState:
        if known := self._containers.get(spec.id):
            return known.state
        if (image := self._images.get(spec.image)) is None:
            raise StartFailed(f'image "{spec.image}" is not built in')
        if isinstance(image, RestrictedImage):
            await self._check_access(image, spec)
        container = _TaskContainer(spec, self._node)
        container.task = asyncio.create_task(container.main(image), name=f"container {spec.name}")
        self._containers[spec.id] = container
        return container.state

    async def unfinished_starts(self) -> list[str]:
        return []  # a task starts at once

    async def cancel_start(self, id: str) -> None:
        pass

    async def _check_access(self, image: RestrictedImage, spec: ContainerSpec) -> None:
        if why_not := await self._why_not(spec.namespace, spec.service_account, image.name):
            raise ImageNotAllowed(why_not)
        if image.touches_host(spec) and not spec.privileged:
            raise ImageNotAllowed(
                f'the built-in image "{image.name}" mounts file systems of the machine, '
                f'and container "{spec.name}" is not privileged: set securityContext.privileged'
            )

    async def stop(self, id: str, grace: float) -> ContainerRunState:
        container = self._get_container(id)
        container.context.stop.set()
        try:
            async with asyncio.timeout(grace):
                await container.done.wait()
        except TimeoutError:
            await self._cancel(container)
        return container.state

    async def _cancel(self, container: _TaskContainer) -> None:
        while container.task is not None and not container.task.done():
            container.task.cancel()
            await asyncio.wait({container.task}, timeout=CANCEL_INTERVAL)

    def port(self, pod: str, port: int) -> int:
        """The port that a task of the pod listens on instead of `port`: all tasks share one machine."""
        of_pod = [c for id, c in self._containers.items() if id.startswith(f"{pod}_") and c.state.running]
        return next((c.context.ports[port] for c in of_pod if port in c.context.ports), port)

    async def state(self, id: str) -> ContainerRunState | None:
        container = self._containers.get(id)
        return container.state if container else None

    async def states(self) -> list[ContainerRunState]:
        return [container.state for container in self._containers.values()]

    async def wait(self, id: str) -> ContainerRunState:
        container = self._get_container(id)
        await container.done.wait()
        return container.state

    async def exec(
        self, id: str, command: tuple[str, ...], *, tty: bool = False, stdin: bool = False
    ) -> ExecSession:
        self._refuse_exec(id)

    async def attach(self, id: str, *, stdin: bool = False) -> AttachSession:
        name = self._get_container(id).context.spec.name
        raise AttachRefused(f'container "{name}" is built into the node: it has no input and no terminal')

    def _refuse_exec(self, id: str) -> NoReturn:
        container = self._get_container(id)
        if not container.state.running:
            raise ContainerNotRunning(id)
        name = container.context.spec.name
        raise ExecRefused(f'container "{name}" is built into the node: it has no process to run a command in')

    async def remove(self, id: str) -> None:
        if id in self._containers:
            await self._cancel(self._containers[id])
            self._containers.pop(id, None)

    async def close(self) -> None:
        """End all tasks: they cannot outlive this process."""
        await asyncio.gather(*(self._cancel(container) for container in self._containers.values()))

    def _get_container(self, id: str) -> _TaskContainer:
        if id not in self._containers:
            raise NoSuchContainer(id)
        return self._containers[id]
