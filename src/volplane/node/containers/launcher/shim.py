"""The one who stays: writes a container's log, its pid and its exit code, and outlives everybody else.

The order makes adoption safe. From the first file on, the directory is locked, and that file, `start.json`,
says who is at work. When pid 1 has made the container it asks whether it is still wanted: if the node role
has gone by then, or has given the start up, it is as if nobody had asked. Otherwise `container.json` is
written and the command runs. So whoever starts next finds every container that ever ran, and every start that
came to no end, and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from . import attach_server, failures, kernel, pid1, rootfs, streams
from .attach_server import AttachServer
from .log import ContainerLog, format_now
from .rootfs import RootLayout
from .spec import SAMPLE, Spec
from .streams import ContainerStreams
from .sync_process import SyncProcess

_KILLED_IN_SETUP: dict[str, Any] = {
    "stage": "setup",
    "code": failures.KILLED,
    "message": "the container's first process was killed while it made the container",
}
_SYNC_DELAY = 1000  # milliseconds without a word after which a container is taken for one that stays
_CHUNK = 32 << 10  # fits into a packet to a visitor


def run_standby(orders: socket.socket, layout: RootLayout, writer: SyncProcess) -> None:
    """Make a container ready, and wait for the request that needs it. Runs in a fork of the launcher."""
    shim = Shim(layout, writer, host_pid=False)
    kernel.set_title("volplane-shim ready")
    shim.rehearse()
    text, descriptors, _, _ = socket.recv_fds(orders, 128 << 10, 2, socket.MSG_CMSG_CLOEXEC)
    orders.close()
    if text:  # otherwise the launcher has ended
        _serve(shim, json.loads(text), descriptors)


def run(request: dict[str, Any], descriptors: list[int], layout: RootLayout, writer: SyncProcess) -> None:
    """Make a container and run it. Runs in a fork of the launcher."""
    shim = Shim(layout, writer, plain=request["plain"], host_pid=request["host_pid"])
    _serve(shim, request, descriptors)


def _serve(shim: Shim, request: dict[str, Any], descriptors: list[int]) -> None:
    reply = socket.socket(fileno=descriptors[0])
    try:
        shim.serve(request["directory"], descriptors[1], reply)
    except Exception as error:
        shim.kill_all()  # its volumes are free before anybody hears of it
        answer_error(reply, error)


def answer(reply: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the node role may be gone; the files tell the next one
        reply.sendall(json.dumps(message).encode() + b"\n")


def answer_error(reply: socket.socket, error: BaseException) -> None:
    stage = "exists" if isinstance(error, FileExistsError) else "setup"
    answer(reply, {"stage": stage, "code": 128, "message": str(error)})


class Shim:
    """From its creation on there is a pid 1 in new namespaces, which furnishes them meanwhile."""

    def __init__(
        self, layout: RootLayout, writer: SyncProcess, *, plain: bool = True, host_pid: bool
    ) -> None:
        self.writer = writer
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.host_pid = host_pid
        if host_pid:
            kernel.become_subreaper()
        else:
            kernel.unshare(kernel.CLONE_NEWPID)
        self.control, theirs = socket.socketpair()
        self.report, reporting = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            pid1.close_all_but((0, 1, 2, theirs.fileno(), reporting, layout.namespace))
            pid1.run(layout, theirs, reporting, plain=plain)
        theirs.close()
        os.close(reporting)
        os.close(layout.namespace)
        self.description = self.describe()

    def rehearse(self) -> None:
        """Run the code of a start once, on nothing.

        A fork copies a page of memory when it is first written to, and Python writes to all that it looks at.
        Here nobody waits for that.
        """
        spec: Spec = json.loads(encode(SAMPLE))
        nowhere = "/dev/null/directory"
        kernel.set_title("volplane-shim ready")
        for step in (
            lambda: _lock_directory(nowhere),
            lambda: write_atomically(
                f"{nowhere}/start.json", encode({**self.description, "at": format_now()})
            ),
            lambda: rootfs.copy_sources(spec),
        ):
            with suppress(OSError):
                step()
        ContainerLog(spec["log_path"], spec["log_max_size"], spec["log_max_files"])
        ends = ContainerStreams(spec)
        ends.close_pid1_descriptors()
        for descriptor in ends.outputs.values():
            os.close(descriptor)

    def serve(self, directory: str, given: int, reply: socket.socket) -> None:
        """`given`: a file with the spec of the container."""
        text = read_whole(given)
        spec: Spec = json.loads(text)
        kernel.set_title(f"volplane-shim {spec['id']}")
        _lock_directory(directory)
        write_atomically(f"{directory}/start.json", encode(self.description))
        if _has_hung_up(
            reply
        ):  # whoever gives up after this finds the file, and ends us whatever holds us up
            self._give_up()
            return _remove_directory(directory)
        log = ContainerLog(spec["log_path"], spec["log_max_size"], spec["log_max_files"])
        trees = [*_open_network(spec), *rootfs.copy_sources(spec)]
        self._join_cgroups(spec["cgroups"])
        door = attach_server.open_attach_socket(directory) if spec["stdin"] or spec["tty"] else None
        ends = ContainerStreams(spec)
        self._send_spec(given, ends, trees)
        state = {**self.description, "started_at": format_now()}
        write_draft(f"{directory}/container.json", b'%b, "spec": %b}' % (encode(state)[:-1], text))
        if not self._wait_for(self.control, reply):
            self._give_up()
            return _remove_directory(directory)
        if self._read_control() != pid1.READY:  # closed: there is no container, and its report says why
            failure = self._read_report(spec) or _KILLED_IN_SETUP
            os.waitpid(self.pid, 0)  # its volumes are free before anybody hears of it
            _remove_directory(directory)
            return answer(reply, failure)
        os.rename(f"{directory}/container.json.tmp", f"{directory}/container.json")
        failure = self._run_command(spec, reply)
        if failure:
            log.write("stderr", failure["message"].encode() + b"\n")
        answer(reply, failure or state)
        if not failure:
            reply.close()
            ends.receive_terminal(spec)
        keep = partial(self.writer.sync_later, directory)
        code = self._copy_until_exit(log, ends, AttachServer(door, spec, ends) if door else None, keep)
        result = {
            "code": failure.get("code", code),
            "message": failure.get("message", ""),
            "finished_at": format_now(),
        }
        write_atomically(f"{directory}/exit.json", encode(result))
        keep()

    def _wait_for(self, source: int | socket.socket, reply: socket.socket) -> bool:
        """Wait for a word of pid 1, or for its end; False if nobody wants the container any more."""
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(reply, select.POLLRDHUP)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if reply.fileno() in ready:
                return False
            if ready:
                return True

    def _read_control(self) -> bytes:
        try:
            return self.control.recv(1)
        except ConnectionResetError:
            return b""

    def _run_command(self, spec: Spec, reply: socket.socket) -> dict[str, Any]:
        """Give the go-ahead; empty as soon as the command runs, else what went wrong."""
        with suppress(OSError):  # it was killed; that is seen as its end
            self.control.sendall(pid1.GO)
        self.control.close()
        if self._wait_for(self.report, reply):
            return self._read_report(spec)
        self._give_up()
        return {"stage": "exec", "code": failures.KILLED, "message": "the start was given up"}

    def _read_report(self, spec: Spec) -> dict[str, Any]:
        data = os.read(self.report, 4096)
        os.close(self.report)
        if not data:
            return {}
        code, message = failures.unpack(data, spec, [*spec["command"], *spec["args"]])
        stage = "exec" if failures.is_command_failure(data) else "setup"
        return {"stage": stage, "code": code, "message": message}

    def _give_up(self) -> None:
        """No instruction of pid 1 comes after this, not even when what it waits for in the kernel comes."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def kill_all(self) -> None:
        """Leave no process of the container, however far it has come."""
        with suppress(ChildProcessError):  # pid 1 has been reaped: its number may be somebody else's by now
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            self._give_up()
        if self.host_pid:
            kill_children()

    def _join_cgroups(self, groups: list[str]) -> None:
        for group in groups:
            with open(f"{group}/cgroup.procs", "w") as file:
                file.write(str(self.pid))

    def describe(self) -> dict[str, Any]:
        me = os.getpid()
        return {
            "pid": self.pid,
            "pid_start": kernel.start_time(self.pid),
            "shim": me,
            "shim_start": kernel.start_time(me),
            "boot": kernel.BOOT,
        }

    def _send_spec(self, given: int, ends: ContainerStreams, trees: list[int]) -> None:
        """Tell pid 1 what to make and what to run."""
        with suppress(BrokenPipeError):  # it has failed already; its report says how
            socket.send_fds(self.control, [pid1.SPEC], [given, *ends.pid1_descriptors, *trees])
        for descriptor in (given, *trees):
            os.close(descriptor)
        ends.close_pid1_descriptors()

    def _copy_until_exit(
        self, log: ContainerLog, ends: ContainerStreams, guests: AttachServer | None, keep: Callable[[], None]
    ) -> int:
        """Its exit code. `keep` is called once if it stays, when nobody waits for us any more."""
        poll = guests.poll if guests is not None else select.poll()
        names = {descriptor: name for name, descriptor in ends.outputs.items()}
        end = os.pidfd_open(self.pid)
        for descriptor in (end, *names):
            poll.register(descriptor, select.POLLIN)

        def tell(name: str, data: bytes) -> None:
            log.write(name, data)
            if guests is not None:
                guests.broadcast(name, data)

        running = True
        patience: int | None = _SYNC_DELAY
        while running:
            ready = poll.poll(patience)
            if not ready:
                keep()
                patience = None
            for descriptor, _ in ready:
                if descriptor == end:
                    running = False
                elif descriptor not in names:
                    assert guests is not None
                    guests.handle(descriptor)
                elif data := streams.read(descriptor, _CHUNK):
                    tell(names[descriptor], data)
                else:
                    poll.unregister(descriptor)
        _, status = os.waitpid(self.pid, 0)
        if self.host_pid:
            kill_children()
        for descriptor, name in names.items():
            _drain(partial(tell, name), descriptor)
        if guests is not None:
            guests.close()
        log.flush()
        return pid1.exit_code(status)


def _open_network(spec: Spec) -> list[int]:
    """The namespace to join, opened where its path means what the node meant."""
    return [os.open(spec["network"], os.O_RDONLY | os.O_CLOEXEC)] if spec["network"] else []


def _lock_directory(directory: str) -> None:
    """The lock lasts as long as this process: of two shims for one container, the second fails here."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileExistsError("the container is being started already") from None
    if os.path.exists(f"{directory}/container.json"):
        raise FileExistsError("the container exists already")


def _has_hung_up(peer: socket.socket) -> bool:
    poll = select.poll()
    poll.register(peer, select.POLLRDHUP)
    return bool(poll.poll(0))


def _remove_directory(directory: str) -> None:
    with suppress(OSError):
        for entry in os.listdir(directory):
            os.unlink(f"{directory}/{entry}")
        os.rmdir(directory)


def _drain(tell: Callable[[bytes], None], descriptor: int) -> None:
    os.set_blocking(descriptor, False)  # somebody outside may have got hold of the other end
    with suppress(BlockingIOError):
        while data := streams.read(descriptor, _CHUNK):
            tell(data)


def kill_children() -> None:
    """Kill all of them, and those that become ours by that; without a pid namespace nobody else does."""
    me = os.getpid()
    while True:
        with open(f"/proc/self/task/{me}/children") as file:
            children = file.read().split()
        if not children:
            return
        for child in children:
            with suppress(OSError):
                os.kill(int(child), signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def encode(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def write_atomically(path: str, content: bytes) -> None:
    """So that readers see all of it or nothing; a power cut may lose it until the writer has had it."""
    write_draft(path, content)
    os.rename(f"{path}.tmp", path)


def write_draft(path: str, content: bytes) -> None:
    """Write it beside its place."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    file = os.open(f"{path}.tmp", flags, 0o600)  # a spec holds the environment, and that holds secrets
    try:
        while content:
            content = content[os.write(file, content) :]
    finally:
        os.close(file)


def read_whole(file: int) -> bytes:
    """A file that nobody writes to any more."""
    return os.pread(file, os.fstat(file).st_size, 0)
