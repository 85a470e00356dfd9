"""Commands over an overlay of the machine's root, with the pod's volumes at their places.

The containers belong to nobody: they outlive this process, and its next life finds them by their files. All
that this module holds is rebuilt from those; the launcher is started again whenever it is missing.
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
from volplane.host import Host
from volplane.host.processes import exited
from volplane.node.containers import records
from volplane.node.containers.base import (
    AttachRefused,
    ContainerSpec,
    NoSuchContainer,
    NotRunning,
    StartFailed,
    State,
)
from volplane.node.containers.execs import CannotExec, In, Out, ProcessExec
from volplane.node.containers.launch import TIMEOUT, Answer, Launcher, Reply
from volplane.node.containers.records import Record, Started, Unfinished
from volplane.node.containers.visits import Visit

log = logging.getLogger(__name__)

START_TIMEOUT = TIMEOUT  # seconds for a container to be made and its command to run
LOCKED = 0.5  # seconds between two looks at a start of which only the lock is known
RETRY = 0.5  # seconds until a container is looked at again, after descriptors or memory were wanting


class _Container:
    def __init__(self, record: Record) -> None:
        self.record = record
        self.state = record.state()
        self.done = asyncio.Event()
        if not self.state.running:
            self.done.set()


class ProcessRuntime:
    def __init__(
        self, directory: str, host: Host, *, cover: Sequence[str] = (), launcher: Launcher | None = None
    ) -> None:
        """`directory` holds the containers' files, `cover` is what no container may see of the machine.

        A launcher that is shared by several nodes has a cover of its own.
        """
        self._directory = os.path.realpath(directory)
        self._host = host
        self._owns_launcher = launcher is None
        log = f"{self._directory}/launcher.log"
        self.launcher = launcher or Launcher(host, cover=[directory, *cover], log=log)
        self._containers: dict[str, _Container] = {}
        self._starting: dict[str, asyncio.Task[State]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}  # starts given up whose processes are still there
        self._followers: set[asyncio.Task[None]] = set()
        self._adopting = asyncio.Lock()
        self._adopted = False

    async def prepare(self) -> None:
        """Find the containers of an earlier life and start the launcher, before anybody waits for either."""
        await self._adopt()
        await self.launcher.prepare()

    async def _adopt(self) -> None:
        async with self._adopting:
            if not self._adopted:
                found, unfinished = await self._host.call(records.load_with_starts, self._directory)
                for record in found:
                    self._keep(record)
                for start in unfinished:
                    self._give_up(start)
                self._adopted = True

    def _keep(self, record: Record) -> _Container:
        container = _Container(record)
        self._containers[record.started.spec.id] = container
        if container.state.running:
            follower = asyncio.create_task(self._follow(container))
            self._followers.add(follower)
            follower.add_done_callback(self._followers.discard)
        return container

    async def _follow(self, container: _Container) -> None:
        directory = container.record.directory
        while True:
            try:
                await _await_exit(container.record.started)
                record = await self._host.call(records.load, directory)
                break
            except OSError as error:  # it may still run
                log.warning("cannot tell whether the container in %s runs: %s", directory, error)
                await asyncio.sleep(RETRY)
        container.record = record or structs.replace(container.record, supervised=False)
        container.state = container.record.state()
        container.done.set()

    # The face of a runtime

    async def start(self, spec: ContainerSpec) -> State:
        await self._adopt()
        if known := self._containers.get(spec.id):
            return known.state
        task = self._starting.get(spec.id)
        if task is None or task.done():
            task = asyncio.create_task(self._start_anew(spec), name=f"start {spec.id}")
            self._starting[spec.id] = task
            task.add_done_callback(lambda done: self._forget_start(spec.id, done))
        # A caller that is cancelled leaves the start to its end: a container nobody knows of would be worse.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise StartFailed("the start was cancelled") from None
            raise

    def _forget_start(self, id: str, task: asyncio.Task[State]) -> None:
        if self._starting.get(id) is task:
            del self._starting[id]
        if not task.cancelled():
            task.exception()  # the callers have it; if they are gone, nobody wants it

    async def _start_anew(self, spec: ContainerSpec) -> State:
        await self._await_end_of_earlier_start(spec.id)
        known = self._containers.get(spec.id)
        return known.state if known is not None else await self._start(spec)

    async def _await_end_of_earlier_start(self, id: str) -> None:
        ending = self._ending.get(id)
        if ending is None or ending.done():
            return
        await asyncio.wait({ending}, timeout=TIMEOUT)
        if not ending.done():
            raise StartFailed(
                "an earlier start of the container was given up, but its processes have not ended: "
                "they wait in the kernel, most likely for a disk"
            )

    async def _start(self, spec: ContainerSpec) -> State:
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
            return self._keep(Record(directory, Started(spec, **answer))).state
        if answer["stage"] == "setup":
            if spec.id not in self._ending:
                await self._host.call(records.delete, directory)
            raise StartFailed(answer["message"])
        # It ran and is over, or was there before.
        if (record := await self._host.call(records.load, directory)) is None:
            raise StartFailed(answer["message"])
        return self._keep(record).state

    async def _launch(self, request: dict[str, object], spec: bytes) -> dict[str, Any]:
        """What the shim says; if it is a failure, after the shim has gone, so that its files are complete."""
        given = _as_file(spec)
        answer: Answer = None
        finished = False
        try:
            async with asyncio.timeout(START_TIMEOUT):
                reply, answer = await self.launcher.ask(request, [given])
                try:
                    # One that existed before belongs to another shim, which may stay.
                    finished = answer is not None and answer.get("stage") in (None, "exists")
                    if answer is not None and not finished:
                        await reply.line()
                        finished = True
                finally:
                    reply.close()
        except TimeoutError:
            raise StartFailed(f"the container did not start within {START_TIMEOUT:g} s") from None
        finally:
            os.close(given)
            # By now nobody listens to the shim. It looks whether somebody does after it has written down who
            # it is, and before anything that may hold it up: so it gives up itself, or is found here.
            if not finished and (left := _find_unfinished(str(request["directory"]))):
                self._give_up(left)
        return answer or {
            "stage": "setup",
            "message": "the launcher was killed while it started the container",
        }

    # Starts that come to no end

    def _give_up(self, start: Unfinished) -> None:
        """Kill what is at work on a start. Its id stays taken until all of it is gone."""
        with suppress(OSError):  # the task below tries again
            _kill(start)
        if start.id not in self._ending:
            ending = asyncio.create_task(self._end(start), name=f"end of start {start.id}")
            self._ending[start.id] = ending
            ending.add_done_callback(lambda _: self._ending.pop(start.id))

    async def _end(self, start: Unfinished) -> None:
        """A process that waits in the kernel dies as soon as it is let go, before any further instruction."""
        left: Unfinished | None = start
        while True:
            try:
                while left is not None:
                    left = await self._await_end(left)
                record = await self._host.call(records.load, start.directory)
                break
            except OSError as error:  # its id stays taken until it is known to be gone
                log.warning("cannot tell whether the start in %s has ended: %s", start.directory, error)
                await asyncio.sleep(RETRY)
        if record is not None:  # it was given up between the exec and our hearing of it
            self._keep(record)
        else:
            await self._host.call(records.delete, start.directory)

    async def _await_end(self, start: Unfinished) -> Unfinished | None:
        """Wait for the processes that are known of it; what is left then."""
        _kill(start)
        for pid in start.begun.living_in(start.directory) if start.begun is not None else ():
            await exited(pid)
        left = await self._host.call(records.find_unfinished, start.directory)
        if left is not None and left.begun is None:
            await asyncio.sleep(LOCKED)  # by somebody who has not written down who it is
        return left

    async def starts(self) -> list[str]:
        await self._adopt()
        under_way = {**self._starting, **self._ending}
        return [id for id, task in under_way.items() if not task.done()]

    async def cancel_start(self, id: str) -> None:
        await self._adopt()
        while waiting := self._under_way(id):
            if (start := self._starting.get(id)) is not None:
                start.cancel()
            await asyncio.wait(waiting)

    def _under_way(self, id: str) -> list[asyncio.Task[Any]]:
        tasks = (self._starting.get(id), self._ending.get(id))
        return [task for task in tasks if task is not None and not task.done()]

    async def stop(self, id: str, grace: float) -> State:
        await self.cancel_start(id)
        container = await self._known(id)
        if container.state.running:
            with failpoint.around("container:stop"):
                await self._stop(container, grace)
        return container.state

    async def _stop(self, container: _Container, grace: float) -> None:
        if grace <= 0:
            return await self._kill(container)
        self._signal(container, number_of(container.record.started.spec.stop_signal))
        failpoint.hit("container:stop:asked")
        try:
            async with asyncio.timeout(grace):
                await container.done.wait()
        except TimeoutError:
            await self._kill(container)

    async def _kill(self, container: _Container) -> None:
        self._signal(container, signal.SIGKILL)  # pid 1: the whole pid namespace goes with it
        await container.done.wait()

    def _signal(self, container: _Container, number: int) -> None:
        started = container.record.started
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(started.pid)
            try:
                if started.lives:  # checked on the open descriptor: from here on it can be nobody else
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    async def state(self, id: str) -> State | None:
        await self._adopt()
        container = self._containers.get(id)
        return container.state if container else None

    async def states(self) -> list[State]:
        await self._adopt()
        return [container.state for container in self._containers.values()]

    async def wait(self, id: str) -> State:
        container = await self._known(id)
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
        """Let go of everything; the containers run on."""
        for tasks in (self._starting.values(), self._ending.values(), self._followers):
            waiting = [*tasks]  # a start that is cancelled is given up, and so leaves one more to end
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if self._owns_launcher:
            await self.launcher.close()

    async def _known(self, id: str) -> _Container:
        await self._adopt()
        if id not in self._containers:
            raise NoSuchContainer(id)
        return self._containers[id]

    # Commands inside

    async def exec(
        self, id: str, command: tuple[str, ...], *, tty: bool = False, stdin: bool = False
    ) -> ProcessExec:
        container = await self._known(id)
        started = container.record.started
        if not container.state.running:
            raise NotRunning(id)
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
            await _until_it_runs(reply, answer)
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
            stdin=In(given[1]) if stdin else None,
            stdout=Out(pipes[1][1]),
            stderr=Out(pipes[2][1]),
        )

    async def _exec_terminal(self, request: dict[str, object], stdin: bool) -> ProcessExec:
        reply, answer = await self.launcher.ask(request)
        await _until_it_runs(reply, answer)
        terminal = reply.descriptors.pop()
        return ProcessExec(
            reply,
            stdin=In(terminal, owned=False) if stdin else None,
            stdout=Out(terminal),
            stderr=None,
            terminal=terminal,
        )

    # Its own streams

    async def attach(self, id: str, *, stdin: bool = False) -> Visit:
        container = await self._known(id)
        spec = container.record.started.spec
        if not container.state.running:
            raise NotRunning(id)
        if not spec.stdin and not spec.tty:
            raise AttachRefused(f'container "{spec.name}" was started without stdin and without a terminal')
        visit = await Visit.begin(container.record.directory)
        if stdin:
            await visit.write(b"")  # so that leaving without a word ends the input, too
        return visit


async def _await_exit(started: Started) -> None:
    if started.shim_lives:
        await exited(started.shim)  # its last deed is the exit file
    if started.lives:  # the shim was killed and this dies of it; only then are its volumes free
        await exited(started.pid)


def _find_unfinished(directory: str) -> Unfinished | None:
    """What is left of a start; if nobody can tell, something is."""
    try:
        return records.find_unfinished(directory)
    except OSError as error:
        log.warning("cannot tell whether the start in %s has ended: %s", directory, error)
        return Unfinished(directory)


def _kill(start: Unfinished) -> None:
    """Kill pid 1 and then, if no command can have run, the shim.

    A command without a pid namespace outlives pid 1, and its shim is the only one who ends it: it sees pid 1
    die. `container.json` is there before a command runs, and none runs after pid 1 has been killed.
    """
    begun = start.begun
    if begun is None:
        return
    _kill_process(start, begun.pid)
    try:
        os.lstat(f"{start.directory}/container.json")
    except FileNotFoundError:
        _kill_process(start, begun.shim)


def _kill_process(start: Unfinished, pid: int) -> None:
    begun = start.begun
    if begun is None or pid not in begun.living_in(start.directory):
        return
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if pid in begun.living_in(start.directory):  # from here on it can be nobody else
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _is_plain(spec: ContainerSpec) -> bool:
    """Whether the launcher can have made it before it knew what for."""
    special = spec.privileged or spec.host_pid or spec.host_ipc or spec.proc_mount != "Default"
    return spec.cover_secrets and not special


def number_of(name: str) -> int:
    """Of a signal such as SIGUSR1 or SIGRTMIN+3; one that this machine does not know asks as SIGTERM does."""
    base, sign, offset = name.partition("+" if "+" in name else "-")
    known = getattr(signal, base, None)
    if not isinstance(known, signal.Signals) or (sign and not offset.isdecimal()):
        return signal.SIGTERM
    return known + int(f"{sign}{offset or 0}")


def _as_file(data: bytes) -> int:
    """A file in memory: a spec may be larger than a message."""
    descriptor = os.memfd_create("spec", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _until_it_runs(reply: Reply, answer: Answer) -> None:
    try:
        async with asyncio.timeout(TIMEOUT):
            while answer is not None and "started" not in answer:
                if "message" in answer:
                    raise CannotExec(answer["message"], answer["code"])
                answer = await reply.line()
        if answer is None:
            raise CannotExec("the helper was killed", 126)
    except BaseException:
        reply.close()
        raise
