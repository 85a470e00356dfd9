"""The shim: supervises one container, writes its log, pid and exit code, and outlives node and launcher.

The order of its files lets a restarted node find every container. The shim locks the container's directory
and writes `start.json`, which names the processes at work. When pid 1 has set up the container, the shim
checks whether the node role still waits for it: if it has ended or has given the start up, the shim kills
pid 1 and removes the directory. Otherwise it writes `container.json`, and then the command runs. So the next
node process finds every container that ever ran and every unfinished start, and nothing else.
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
_SYNC_DELAY = 1000  # milliseconds without output before the files of a running container are synced
_EXEC_PATIENCE = 2000  # milliseconds for the command to begin when the node has ended meanwhile
_CHUNK = 32 << 10  # fits into a packet to an attached client


def run_standby(orders: socket.socket, layout: RootLayout, writer: SyncProcess) -> None:
    """Prepare a container and wait for the request to run it. Runs in a fork of the launcher."""
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
        shim.kill_all()  # before the answer: its volumes must be free by then
        answer_error(reply, error)


def answer(reply: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the node role may be gone; the next one reads the files
        reply.sendall(json.dumps(message).encode() + b"\n")


def answer_error(reply: socket.socket, error: BaseException) -> None:
    stage = "exists" if isinstance(error, FileExistsError) else "setup"
    answer(reply, {"stage": stage, "code": 128, "message": str(error)})


class Shim:
    """Starts pid 1 in new namespaces when it is created; pid 1 sets them up meanwhile."""

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
        """Run the code of a start once without effect, while no request waits.

        A fork copies a page of memory at the first write to it, and Python writes to every object that it
        uses (reference counts). After this the pages are copied.
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
        log = ContainerLog(spec["log_path"], spec["log_max_size"], spec["log_max_files"])
        ends = ContainerStreams(spec)
        ends.close_pid1_descriptors()
        for name, descriptor in ends.outputs.items():
            _drain(partial(log.write, name), descriptor)
            os.close(descriptor)
        log.flush()

    def serve(self, directory: str, spec_file: int, reply: socket.socket) -> None:
        """Run a container. `spec_file`: an open file with its spec."""
        text = read_whole(spec_file)
        spec: Spec = json.loads(text)
        kernel.set_title(f"volplane-shim {spec['id']}")
        _lock_directory(directory)
        write_atomically(f"{directory}/start.json", encode(self.description))
        # A node that gives up after this check finds start.json, and kills us whatever we wait for.
        if _has_hung_up(reply):
            self._give_up()
            return _remove_directory(directory)
        log = ContainerLog(spec["log_path"], spec["log_max_size"], spec["log_max_files"])
        trees = [*_open_network(spec), *rootfs.copy_sources(spec)]
        self._join_cgroups(spec["cgroups"])
        listener = attach_server.open_attach_socket(directory) if spec["stdin"] or spec["tty"] else None
        ends = ContainerStreams(spec)
        self._send_spec(spec_file, ends, trees)
        state = {**self.description, "started_at": format_now()}
        write_draft(f"{directory}/container.json", b'%b, "spec": %b}' % (encode(state)[:-1], text))
        if not self._wait_for(self.control, reply):
            self._give_up()
            return _remove_directory(directory)
        if self._read_control() != pid1.READY:  # closed: set-up has failed, and pid 1 reports why
            failure = self._read_report(spec) or _KILLED_IN_SETUP
            os.waitpid(self.pid, 0)  # before the answer: its volumes must be free by then
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
        sync_files = partial(self.writer.sync_later, directory)
        code = self._copy_until_exit(
            log, ends, AttachServer(listener, spec, ends) if listener else None, sync_files
        )
        result = {
            "code": failure.get("code", code),
            "message": failure.get("message", ""),
            "finished_at": format_now(),
        }
        write_atomically(f"{directory}/exit.json", encode(result))
        sync_files()

    def _wait_for(self, source: int | socket.socket, reply: socket.socket) -> bool:
        """Wait for a message or the end of pid 1; False if the node hangs up first."""
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
        """Give the go-ahead and wait until the command runs. Return the failure, {} if there is none.

        If the node ends at this moment, the next one finds the container, and its command has been run once:
        it is not killed. Only a command that does not begin is, because the node may have given it up.
        """
        with suppress(OSError):  # pid 1 was killed; the report shows that
            self.control.sendall(pid1.GO)
        self.control.close()
        if self._wait_for(self.report, reply) or _is_readable(self.report, _EXEC_PATIENCE):
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
        """Kill pid 1 and wait for its death, also if it is blocked in the kernel."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def kill_all(self) -> None:
        """Kill all processes of the container."""
        with suppress(ChildProcessError):  # pid 1 has been reaped: its pid may belong to another process
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

    def _send_spec(self, spec_file: int, ends: ContainerStreams, trees: list[int]) -> None:
        """Send pid 1 the spec and all descriptors it needs."""
        with suppress(BrokenPipeError):  # pid 1 has failed already and reports why
            socket.send_fds(self.control, [pid1.SPEC], [spec_file, *ends.pid1_descriptors, *trees])
        for descriptor in (spec_file, *trees):
            os.close(descriptor)
        ends.close_pid1_descriptors()

    def _copy_until_exit(
        self,
        log: ContainerLog,
        ends: ContainerStreams,
        attach: AttachServer | None,
        sync_files: Callable[[], None],
    ) -> int:
        """Copy the output until the container exits; return its exit code.

        Call `sync_files` once, if the container still runs after `_SYNC_DELAY`.
        """
        poll = attach.poll if attach is not None else select.poll()
        names = {descriptor: name for name, descriptor in ends.outputs.items()}
        end = os.pidfd_open(self.pid)
        for descriptor in (end, *names):
            poll.register(descriptor, select.POLLIN)

        def write_output(name: str, data: bytes) -> None:
            log.write(name, data)
            if attach is not None:
                attach.broadcast(name, data)

        running = True
        timeout: int | None = _SYNC_DELAY
        while running:
            ready = poll.poll(timeout)
            if not ready:
                sync_files()
                timeout = None
            for descriptor, _ in ready:
                if descriptor == end:
                    running = False
                elif descriptor not in names:
                    assert attach is not None
                    attach.handle(descriptor)
                elif data := streams.read(descriptor, _CHUNK):
                    write_output(names[descriptor], data)
                else:
                    poll.unregister(descriptor)
        _, status = os.waitpid(self.pid, 0)
        if self.host_pid:
            kill_children()
        for descriptor, name in names.items():
            _drain(partial(write_output, name), descriptor)
        if attach is not None:
            attach.close()
        log.flush()
        return pid1.exit_code(status)


def _open_network(spec: Spec) -> list[int]:
    """The network namespace to join, opened in the machine's mount namespace, where its path is valid."""
    return [os.open(spec["network"], os.O_RDONLY | os.O_CLOEXEC)] if spec["network"] else []


def _lock_directory(directory: str) -> None:
    """Lock the directory for the life of this process: a second shim for the same container fails here."""
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


def _is_readable(descriptor: int, timeout: int) -> bool:
    """Whether there is something to read, or its end, within `timeout` milliseconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout))


def _remove_directory(directory: str) -> None:
    with suppress(OSError):
        for entry in os.listdir(directory):
            os.unlink(f"{directory}/{entry}")
        os.rmdir(directory)


def _drain(write_output: Callable[[bytes], None], descriptor: int) -> None:
    os.set_blocking(descriptor, False)  # a process outside the container may have the other end open
    with suppress(BlockingIOError):
        while data := streams.read(descriptor, _CHUNK):
            write_output(data)


def kill_children() -> None:
    """Kill all children, and those that we inherit from them: without a pid namespace the kernel does not."""
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
    """Readers see all of it or nothing.

    Not synced: a power cut may lose it until the sync process has run.
    """
    write_draft(path, content)
    os.rename(f"{path}.tmp", path)


def write_draft(path: str, content: bytes) -> None:
    """Write the content to `<path>.tmp`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    file = os.open(f"{path}.tmp", flags, 0o600)  # the environment in a spec may contain secrets
    try:
        while content:
            content = content[os.write(file, content) :]
    finally:
        os.close(file)


def read_whole(file: int) -> bytes:
    """The content of a file that is complete."""
    return os.pread(file, os.fstat(file).st_size, 0)
