"""The process runtime: runs commands over an overlay of the machine's root, with the pod's volumes.

The containers outlive this process, and the next one finds them by their files: all state here is rebuilt
from those. The launcher is started again whenever it is missing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import structs

from volplane.base import failpoint
from volplane.base.backoff import constant
from volplane.base.retry import retry
from volplane.base.tasks import KeyedTasks, TaskSet, ignore_error
from volplane.host import Host
from volplane.host.processes import wait_for_exit
from volplane.node.containers import records
from volplane.node.containers.attach_client import AttachConnection
from volplane.node.containers.base import (
    AttachRefused,
    CannotExec,
    ContainerNotRunning,
    ContainerRunState,
    ContainerSpec,
    NoSuchContainer,
    StartFailed,
    signal_number,
)
from volplane.node.containers.launcher_client import TIMEOUT, LauncherAnswer, LauncherClient, LauncherReply
from volplane.node.containers.process_exec import PipeReader, PipeWriter, ProcessExec
from volplane.node.containers.records import ProcessContainerRecord, StartedRecord, UnfinishedStart

log = logging.getLogger(__name__)

START_TIMEOUT = TIMEOUT  # seconds for a container to be set up and its command to run
LOCK_POLL_INTERVAL = 0.5  # seconds between two looks at a start of which only the lock is known
RETRY_INTERVAL = 0.5  # seconds until a container is looked at again, after descriptors or memory were wanting


class _ProcessContainer:
    def __init__(self, record: ProcessContainerRecord) -> None:
        self.record = record
        self.state = record.state()
        self.done = asyncio.Event()
        if not self.state.running:
            self.done.set()


class ProcessRuntime:
    def __init__(
        self,
        directory: str,
        host: Host,
        *,
        cover: Sequence[str] = (),
        shell: str = "",
        launcher: LauncherClient | None = None,
    ) -> None:
        """`directory` holds the containers' files; `cover`: paths that are hidden from all containers;
        `shell`: the program that is their /bin/sh, if it is not this machine's.

        A launcher that several nodes share has its own cover and shell.
        """
        self._directory = os.path.realpath(directory)
        self._host = host
        self._owns_launcher = launcher is None
        log = f"{self._directory}/launcher.log"
        self.launcher = launcher or LauncherClient(host, cover=[directory, *cover], log=log, shell=shell)
        self._containers: dict[str, _ProcessContainer] = {}
        self._starting: KeyedTasks[str, ContainerRunState] = KeyedTasks(ignore_error)
        self._ending: KeyedTasks[str, None] = KeyedTasks()  # starts given up whose processes are still there
        self._followers = TaskSet()
        self._adopting = asyncio.Lock()
        self._adopted = False

    async def prepare(self) -> None:
        """Find the containers of an earlier process and start the launcher, before the first request."""
        await self._adopt()
        await self.launcher.prepare()

    async def _adopt(self) -> None:
        async with self._adopting:
            if not self._adopted:
                found, unfinished = await self._host.call(records.load_with_starts, self._directory)
                for record in found:
                    self._track(record)
                for start in unfinished:
                    self._give_up(start)
                self._adopted = True

    def _track(self, record: ProcessContainerRecord) -> _ProcessContainer:
        container = _ProcessContainer(record)
        self._containers[record.started.spec.id] = container
        if container.state.running:
            self._followers.start(self._watch_exit(container), f"exit of {record.started.spec.id}")
        return container

    async def _watch_exit(self, container: _ProcessContainer) -> None:
        directory = container.record.directory

        async def load_exit_record() -> records.ExitRecord | None:
            await _wait_for_exit(container.record.started)
            return await self._host.call(records.load_exit, directory)

        ending = await retry(
            load_exit_record,
            on=OSError,  # it may still run
            backoff=constant(RETRY_INTERVAL),
            report=lambda error: log.warning(
                "cannot tell whether the container in %s runs: %s", directory, error
            ),
        )
        container.record = structs.replace(container.record, ending=ending, supervised=False)
        container.state = container.record.state()
        container.done.set()

    # The interface of a runtime

    async def start(self, spec: ContainerSpec) -> ContainerRunState:
        await self._adopt()
        if known := self._containers.get(spec.id):
            return known.state
        task = self._starting.get_or_start(
            spec.id, lambda: self._start_after_earlier(spec), f"start {spec.id}"
        )
        # If the caller is cancelled the start still finishes, so that no unknown container is left.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise StartFailed("the start was cancelled") from None
            raise

    async def _start_after_earlier(self, spec: ContainerSpec) -> ContainerRunState:
        await self._await_end_of_earlier_start(spec.id)
        known = self._containers.get(spec.id)
        return known.state if known is not None else await self._start(spec)

    async def _await_end_of_earlier_start(self, id: str) -> None:
        ending = self._ending.get(id)
        if ending is None:
            return
        await asyncio.wait({ending}, timeout=TIMEOUT)
        if not ending.done():
            raise StartFailed(
                "an earlier start of the container was given up, but its processes have not exited: "
                "they are blocked in the kernel, most likely by a disk"
            )

    async def _start(self, spec: ContainerSpec) -> ContainerRunState:
        directory = records.directory_of(self._directory, spec.id)
        request = {
            "op": "start",
            "directory": directory,
            "plain": _is_plain(spec),
            "host_pid": spec.host_pid,
        }
        with failpoint.around("container:start"):
            answer = await self._launch(request, msgspec.json.encode(spec))
        if "message" not in answer:
            return self._track(ProcessContainerRecord(directory, StartedRecord(spec, **answer))).state
        if answer["stage"] == "setup":
            if spec.id not in self._ending:
                await self._host.call(records.delete, directory)
            raise StartFailed(answer["message"])
        # It ran and has exited, or existed before.
        if (record := await self._host.call(records.load, directory)) is None:
            raise StartFailed(answer["message"])
        return self._track(record).state

    async def _launch(self, request: dict[str, object], spec: bytes) -> dict[str, Any]:
        """Request a start and return the shim's answer; if it is a failure, after the shim has exited."""
        given = _write_memfd(spec)
        answer: LauncherAnswer = None
        finished = False
        try:
            async with asyncio.timeout(START_TIMEOUT):
                reply, answer = await self.launcher.ask(request, [given])
                try:
                    # An existing container belongs to another shim, which goes on.
                    finished = answer is not None and answer.get("stage") in (None, "exists")
                    if answer is not None and not finished:
                        await reply.read_answer()
                        finished = True
                finally:
                    reply.close()
        except TimeoutError:
            raise StartFailed(f"the container did not start within {START_TIMEOUT:g} s") from None
        finally:
            os.close(given)
            # The reply is closed by now. The shim writes start.json, then checks the reply, then does what
            # may block: so it either gives up by itself, or is found here.
            if not finished and (left := _find_unfinished(str(request["directory"]))):
                self._give_up(left)
        return answer or {
            "stage": "setup",
            "message": "the launcher was killed while it started the container",
        }

    # Starts that are given up

    def _give_up(self, start: UnfinishedStart) -> None:
        """Kill the processes of a start. Its id stays taken until all of them have exited."""
        with suppress(OSError):  # the task below tries again
            _kill(start)
        if start.id not in self._ending:
            self._ending.start(start.id, self._finish_unfinished_start(start), f"end of start {start.id}")

    async def _finish_unfinished_start(self, start: UnfinishedStart) -> None:
        """Wait until its processes are gone. One that is blocked in the kernel dies when the call returns."""
        left: UnfinishedStart | None = start

        async def load_when_ended() -> ProcessContainerRecord | None:
            nonlocal left
            while left is not None:
                left = await self._wait_for_processes(left)
            return await self._host.call(records.load, start.directory)

        record = await retry(
            load_when_ended,
            on=OSError,  # its id stays taken until it is known to be gone
            backoff=constant(RETRY_INTERVAL),
            report=lambda error: log.warning(
                "cannot tell whether the start in %s has ended: %s", start.directory, error
            ),
        )
        if record is not None:  # it was given up between the exec and our hearing of it
            self._track(record)
        else:
            await self._host.call(records.delete, start.directory)

    async def _wait_for_processes(self, start: UnfinishedStart) -> UnfinishedStart | None:
        """Kill and await the known processes of a start; return what is left."""
        _kill(start)
        for pid in start.processes.live_pids_in(start.directory) if start.processes is not None else ():
            await wait_for_exit(pid)
        left = await self._host.call(records.find_unfinished, start.directory)
        if left is not None and left.processes is None:
            await asyncio.sleep(LOCK_POLL_INTERVAL)  # locked by a shim that has not written start.json yet
        return left

    async def unfinished_starts(self) -> list[str]:
        await self._adopt()
        return list(dict.fromkeys((*self._starting, *self._ending)))

    async def cancel_start(self, id: str) -> None:
        await self._adopt()
        while waiting := self._pending_tasks(id):
            if (start := self._starting.get(id)) is not None:
                start.cancel()
            await asyncio.wait(waiting)

    def _pending_tasks(self, id: str) -> list[asyncio.Task[Any]]:
        tasks = (self._starting.get(id), self._ending.get(id))
        return [task for task in tasks if task is not None]

    async def stop(self, id: str, grace: float) -> ContainerRunState:
        await self.cancel_start(id)
        container = await self._get_container(id)
        if container.state.running:
            with failpoint.around("container:stop"):
                await self._stop(container, grace)
        return container.state

    async def _stop(self, container: _ProcessContainer, grace: float) -> None:
        if grace <= 0:
            return await self._kill(container)
        self._signal(container, signal_number(container.record.started.spec.stop_signal))
        failpoint.hit("container:stop:asked")
        try:
            async with asyncio.timeout(grace):
                await container.done.wait()
        except TimeoutError:
            await self._kill(container)

    async def _kill(self, container: _ProcessContainer) -> None:
        self._signal(container, signal.SIGKILL)  # killing pid 1 kills its whole pid namespace
        await container.done.wait()

    def _signal(self, container: _ProcessContainer, number: int) -> None:
        started = container.record.started
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(started.pid)
            try:
                if started.is_alive:  # checked while the pidfd is open: the pid cannot be reused
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    async def state(self, id: str) -> ContainerRunState | None:
        await self._adopt()
        container = self._containers.get(id)
        return container.state if container else None

    async def states(self) -> list[ContainerRunState]:
        await self._adopt()
        return [container.state for container in self._containers.values()]

    async def wait(self, id: str) -> ContainerRunState:
        container = await self._get_container(id)
        await container.done.wait()
        return container.state

    async def remove(self, id: str) -> None:
        await self.cancel_start(id)
        if container := self._containers.get(id):
            if container.state.running:
                await self._kill(container)
            with failpoint.around("container:remove"):
                await self._host.call(records.delete, container.record.directory)
            self._containers.pop(id, None)

    async def close(self) -> None:
        """Release everything; the containers go on running."""
        await self._starting.close()  # first: cancelled starts are given up, which adds tasks to `_ending`
        await self._ending.close()
        await self._followers.close()
        if self._owns_launcher:
            await self.launcher.close()

    async def _get_container(self, id: str) -> _ProcessContainer:
        await self._adopt()
        if id not in self._containers:
            raise NoSuchContainer(id)
        return self._containers[id]

    # Commands inside

    async def exec(
        self, id: str, command: tuple[str, ...], *, tty: bool = False, stdin: bool = False
    ) -> ProcessExec:
        container = await self._get_container(id)
        started = container.record.started
        if not container.state.running:
            raise ContainerNotRunning(id)
        request = {
            "op": "exec",
            "plain": False,
            "directory": container.record.directory,
            "pid": started.pid,
            "pid_start": started.pid_start,
            "command": command,
        }
        if tty:
            return await self._exec_terminal(request, stdin)
        return await self._exec_pipes(request, stdin)

    async def _exec_pipes(self, request: dict[str, object], stdin: bool) -> ProcessExec:
        given = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
        pipes = [given, os.pipe()[::-1], os.pipe()[::-1]]
        try:
            reply, answer = await self.launcher.ask(request, [theirs for theirs, _ in pipes])
            await _wait_until_running(reply, answer)
        except BaseException:
            for _, ours in pipes:
                if ours >= 0:
                    os.close(ours)
            raise
        finally:
            for theirs, _ in pipes:
                os.close(theirs)
        return ProcessExec(
            reply,
            stdin=PipeWriter(given[1]) if stdin else None,
            stdout=PipeReader(pipes[1][1]),
            stderr=PipeReader(pipes[2][1]),
        )

    async def _exec_terminal(self, request: dict[str, object], stdin: bool) -> ProcessExec:
        reply, answer = await self.launcher.ask(request)
        await _wait_until_running(reply, answer)
        terminal = reply.descriptors.pop()
        return ProcessExec(
            reply,
            stdin=PipeWriter(terminal, owned=False) if stdin else None,
            stdout=PipeReader(terminal),
            stderr=None,
            terminal=terminal,
        )

    # Its own streams

    async def attach(self, id: str, *, stdin: bool = False) -> AttachConnection:
        container = await self._get_container(id)
        spec = container.record.started.spec
        if not container.state.running:
            raise ContainerNotRunning(id)
        if not spec.stdin and not spec.tty:
            raise AttachRefused(f'container "{spec.name}" was started without stdin and without a terminal')
        visit = await AttachConnection.open(container.record.directory)
        if stdin:
            await visit.write(b"")  # so that disconnecting without any input ends it, too
        return visit


async def _wait_for_exit(started: StartedRecord) -> None:
    if started.is_shim_alive:
        await wait_for_exit(started.shim)  # it writes exit.json last
    if started.is_alive:  # the shim was killed, which kills pid 1; only then are its volumes free
        await wait_for_exit(started.pid)


def _find_unfinished(directory: str) -> UnfinishedStart | None:
    """What is left of a start; if that cannot be read, assume that something is."""
    try:
        return records.find_unfinished(directory)
    except OSError as error:
        log.warning("cannot tell whether the start in %s has ended: %s", directory, error)
        return UnfinishedStart(directory)


def _kill(start: UnfinishedStart) -> None:
    """Kill pid 1 and then, if no command can have run, the shim.

    A command without a pid namespace outlives pid 1, and only its shim kills it, when pid 1 has died.
    `container.json` exists before a command runs, and no command runs after pid 1 was killed.
    """
    processes = start.processes
    if processes is None:
        return
    _kill_process(start, processes.pid)
    try:
        os.lstat(f"{start.directory}/container.json")
    except FileNotFoundError:
        _kill_process(start, processes.shim)


def _kill_process(start: UnfinishedStart, pid: int) -> None:
    processes = start.processes
    if processes is None or pid not in processes.live_pids_in(start.directory):
        return
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if pid in processes.live_pids_in(start.directory):  # checked while the pidfd is open
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _is_plain(spec: ContainerSpec) -> bool:
    """Whether the launcher's standby can be used for it."""
    special = spec.privileged or spec.host_pid or spec.host_ipc or spec.proc_mount != "Default"
    return spec.cover_secrets and not special


def _write_memfd(data: bytes) -> int:
    """Write data to a file in memory: a spec may be larger than a message."""
    descriptor = os.memfd_create("spec", os.MFD_CLOEXEC)
    while data:
        data = data[os.write(descriptor, data) :]
    return descriptor


async def _wait_until_running(reply: LauncherReply, answer: LauncherAnswer) -> None:
    try:
        async with asyncio.timeout(TIMEOUT):
            while answer is not None and "started" not in answer:
                if "message" in answer:
                    raise CannotExec(answer["message"], answer["code"])
                answer = await reply.read_answer()
        if answer is None:
            raise CannotExec("the helper was killed", 126)
    except BaseException:
        reply.close()
        raise
