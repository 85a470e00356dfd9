"""Choose the runtime of a container: built-in images run as tasks, everything else as processes or, on a node
with a container runtime, in that.

A container's own command replaces the command of the image, built-in or not.

A container's id contains its pod, its name and its attempt, so that after a restart a container can be
matched to its pod.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import Protocol

from volplane.api.core import Container
from volplane.node.containers.base import (
    AttachSession,
    ContainerRunState,
    ContainerSpec,
    ExecOutput,
    ExecSession,
    NoSuchContainer,
    Runtime,
)
from volplane.node.containers.cri.runtime import CriRuntime
from volplane.node.containers.task import TaskRuntime
from volplane.node.pods.records import ContainerAttempt

TASK, PROCESS = "task", "process"
LONGEST_OUTPUT = 10 * 1024  # bytes of a probe's or hook's command


def container_id(pod: str, name: str, attempt: int) -> str:
    # Neither uids nor container names contain an underscore.
    return f"{pod}_{name}_{attempt}"


def parse_container_id(id: str) -> tuple[str, str, int]:
    pod, name, attempt = id.rsplit("_", 2)
    return pod, name, int(attempt)


class ImageAndCommand(Protocol):
    """The image and command of a container, from the API or from a runtime's spec."""

    @property
    def image(self) -> str: ...
    @property
    def command(self) -> tuple[str, ...]: ...


class Runtimes:
    def __init__(self, tasks: TaskRuntime, processes: Runtime) -> None:
        self._tasks, self._processes = tasks, processes

    def is_builtin(self, container: ImageAndCommand) -> bool:
        return not container.command and self._tasks.has_image(container.image)

    def port(self, id: str, port: int) -> int:
        """The port that a task in the container's pod listens on instead of `port`."""
        return self._tasks.port(parse_container_id(id)[0], port)

    def scheme(self, container: ImageAndCommand) -> str:
        return TASK if self.is_builtin(container) else PROCESS

    def has_recursive_readonly(self, pod: str) -> bool:
        """Whether recursiveReadOnly can be carried out for containers of the pod."""
        return not isinstance(self._processes, CriRuntime) or self._processes.has_recursive_readonly(pod)

    async def start(self, spec: ContainerSpec) -> ContainerRunState:
        runtime: Runtime = self._tasks if self.is_builtin(spec) else self._processes
        return await runtime.start(spec)

    async def unfinished_starts(self) -> list[str]:
        return [*await self._tasks.unfinished_starts(), *await self._processes.unfinished_starts()]

    async def cancel_starts(self, pod: str) -> None:
        """Cancel all unfinished starts of this pod; afterwards none of them can run a command."""
        for id in await self.unfinished_starts():
            if id.startswith(f"{pod}_"):
                await self._processes.cancel_start(id)

    async def cancel_start(self, id: str) -> ContainerRunState | None:
        """Cancel an unfinished start. Return the container's state if it was started before."""
        await self._processes.cancel_start(id)
        return await self._tasks.state(id) or await self._processes.state(id)

    async def states(self) -> list[ContainerRunState]:
        return [*await self._tasks.states(), *await self._processes.states()]

    async def states_of_pod(self, pod: str, *, builtin: bool = False) -> list[ContainerRunState]:
        """`builtin`: the pod has built-in images only, and does not wait for a runtime that is away."""
        states = await (self._tasks.states() if builtin else self.states())
        return [s for s in states if s.id.startswith(f"{pod}_")]

    async def wait(self, id: str) -> ContainerRunState:
        return await (await self._runtime(id)).wait(id)

    async def stop(self, id: str, grace: float) -> ContainerRunState:
        return await (await self._runtime(id)).stop(id, grace)

    async def remove(self, id: str) -> None:
        runtime = self._tasks if await self._tasks.state(id) is not None else self._processes
        await runtime.remove(id)

    async def exec(self, id: str, command: tuple[str, ...], *, tty: bool, stdin: bool) -> ExecSession:
        return await (await self._runtime(id)).exec(id, command, tty=tty, stdin=stdin)

    async def exec_sync(self, id: str, command: tuple[str, ...], timeout: float | None) -> tuple[bytes, int]:
        """Run a command, kill it after the timeout, and return its output and exit code.

        Raises ContainerError, TimeoutError.
        """
        runtime = await self._runtime(id)
        if isinstance(runtime, CriRuntime):  # closing a session does not kill its command there
            return await runtime.exec_sync(id, command, timeout or 0)
        async with asyncio.timeout(timeout):
            running = await runtime.exec(id, command, tty=False, stdin=False)
            try:
                return await asyncio.gather(_read_output(running), running.wait())
            finally:
                await running.close()

    async def attach(self, id: str, *, stdin: bool) -> AttachSession:
        return await (await self._runtime(id)).attach(id, stdin=stdin)

    async def _runtime(self, id: str) -> Runtime:
        for runtime in (self._tasks, self._processes):
            if await runtime.state(id) is not None:
                return runtime
        raise NoSuchContainer(id)

    async def close(self) -> None:
        await self._tasks.close()
        await self._processes.close()


async def _read_output(running: ExecSession) -> bytes:
    """Both outputs, mixed as they come; what exceeds the limit is read and dropped."""
    output = bytearray()

    async def read(end: ExecOutput) -> None:
        while piece := await end.read():
            output.extend(piece[: LONGEST_OUTPUT - len(output)])

    await asyncio.gather(*(read(end) for end in (running.stdout, running.stderr) if end is not None))
    return bytes(output)


def find_own_command(container: Container) -> tuple[str, ...]:
    """What runs without an image: the command, or args that start with a program of this machine."""
    if container.command:
        return container.command
    # Images such as busybox have no entrypoint, so their args are the command.
    return container.args[:1] if container.args and shutil.which(container.args[0]) else ()


def make_attempt(state: ContainerRunState, scheme: str) -> ContainerAttempt:
    return ContainerAttempt(
        number=parse_container_id(state.id)[2],
        id=state.runtime_id or f"{scheme}://{state.id}",
        running=state.running,
        started_at=state.started_at,
        finished_at=state.finished_at,
        exit_code=state.exit_code,
        reason=state.reason,
        message=state.message,
        image=state.image,
        image_id=state.image_id,
        recursive_mounts=state.recursive_mounts,
    )
