"""Built-in images: the sidecars and drivers this program brings, each a coroutine of the node.

To the node a task looks like any container: it starts, logs, fails, is restarted. What it logs, in any room,
goes to its own log, because the log's sink is a context variable of its task. It ends with this process.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

from msgspec import Struct

from volplane.base import clock, log
from volplane.host import NodePaths
from volplane.node.containers.base import (
    KILLED,
    Attached,
    AttachRefused,
    ContainerSpec,
    Exec,
    ExecRefused,
    NoSuchContainer,
    NotRunning,
    StartFailed,
    State,
    ended,
)
from volplane.node.containers.logs import LogFile

DEAF = 5.0  # seconds between two cancellations of a coroutine that swallows them


class TaskContext(Struct, frozen=True):
    """What a built-in image finds around it instead of argv, environment and file system."""

    spec: ContainerSpec
    node: NodePaths
    stop: asyncio.Event  # set when the container is asked to end
    ports: dict[int, int] = {}  # by the port it was to open: the one it has instead

    @property
    def env(self) -> Mapping[str, str]:
        return self.spec.env

    @property
    def args(self) -> tuple[str, ...]:
        return self.spec.args

    def path(self, container_path: str) -> str:
        """The real path behind a path of the container: through its mounts, else the node's own."""
        for mount in sorted(self.spec.mounts, key=lambda m: -len(m.target)):
            target = mount.target.rstrip("/")
            if container_path == target or container_path.startswith(target + "/"):
                return mount.source.rstrip("/") + container_path[len(target) :]
        return self.node.real(container_path)


TaskImage = Callable[[TaskContext], Awaitable[None]]


class _Container:
    def __init__(self, spec: ContainerSpec, node: NodePaths) -> None:
        self.context = TaskContext(spec, node, asyncio.Event(), {})
        self.state = State(spec.id, running=True, started_at=clock.stamp(), spec=spec)
        self.done = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def main(self, image: TaskImage) -> None:
        # A short append to the page cache: cheaper than handing the line to another thread.
        file = LogFile(self.context.spec.log_path)
        log.sink.set(file.write)
        try:
            code, message = await self._run(image, file)
            self.state = ended(self.state, clock.stamp(), code, message)
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
    def __init__(self, images: Mapping[str, TaskImage], node: NodePaths) -> None:
        self._images = images
        self._node = node
        self._containers: dict[str, _Container] = {}

    def runs(self, image: str) -> bool:
        return image in self._images

    async def start(self, spec: ContainerSpec) -> State:
        if known := self._containers.get(spec.id):
            return known.state
        if (image := self._images.get(spec.image)) is None:
            raise StartFailed(f'image "{spec.image}" is not built in')
        container = _Container(spec, self._node)
        container.task = asyncio.create_task(container.main(image), name=f"container {spec.name}")
        self._containers[spec.id] = container
        return container.state

    async def starts(self) -> list[str]:
        return []  # nothing can hold one up

    async def cancel_start(self, id: str) -> None:
        pass

    async def stop(self, id: str, grace: float) -> State:
        container = self._known(id)
        container.context.stop.set()
        try:
            async with asyncio.timeout(grace):
                await container.done.wait()
        except TimeoutError:
            await self._cancel(container)
        return container.state

    async def _cancel(self, container: _Container) -> None:
        while container.task is not None and not container.task.done():
            container.task.cancel()
            await asyncio.wait({container.task}, timeout=DEAF)

    def port(self, pod: str, port: int) -> int:
        """Where what a pod's tasks serve at that port is really found: all of them share one machine."""
        of_pod = [c for id, c in self._containers.items() if id.startswith(f"{pod}_") and c.state.running]
        return next((c.context.ports[port] for c in of_pod if port in c.context.ports), port)

    async def state(self, id: str) -> State | None:
        container = self._containers.get(id)
        return container.state if container else None

    async def states(self) -> list[State]:
        return [container.state for container in self._containers.values()]

    async def wait(self, id: str) -> State:
        container = self._known(id)
        await container.done.wait()
        return container.state

    async def exec(
        self, id: str, command: tuple[str, ...], *, tty: bool = False, stdin: bool = False
    ) -> Exec:
        self._refuse(id)

    async def attach(self, id: str, *, stdin: bool = False) -> Attached:
        name = self._known(id).context.spec.name
        raise AttachRefused(f'container "{name}" is built into the node: it has no input and no terminal')

    def _refuse(self, id: str) -> NoReturn:
        container = self._known(id)
        if not container.state.running:
            raise NotRunning(id)
        name = container.context.spec.name
        raise ExecRefused(f'container "{name}" is built into the node: it has no process to run a command in')

    async def remove(self, id: str) -> None:
        if id in self._containers:
            await self._cancel(self._containers[id])
            self._containers.pop(id, None)

    async def close(self) -> None:
        """Ends all tasks: they cannot outlive this process."""
        await asyncio.gather(*(self._cancel(container) for container in self._containers.values()))

    def _known(self, id: str) -> _Container:
        if id not in self._containers:
            raise NoSuchContainer(id)
        return self._containers[id]
