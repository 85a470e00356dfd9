"""The one who stays: writes a container's log, its pid and its exit code, and outlives everybody else.

The order makes adoption safe. From the first file on, the directory is locked; if the node role has gone by
the time that everything is ready, it is as if nobody had asked. Otherwise the pid file is written and the
command runs. So whoever starts next finds every container that ever ran, if it waits for locked directories
without a pid file, and nothing else.
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

from . import inside, kernel, root, streams, visitors
from .log import Log, stamp
from .root import Layout, Spec
from .streams import Streams
from .visitors import Visitors

_CHUNK = 32 << 10  # fits into a packet to a visitor


def stand_by(orders: socket.socket, layout: Layout, cover: list[str]) -> None:
    """Make a container ready, and wait for the request that needs it. Runs in a fork of the launcher."""
    shim = Shim(layout, cover, host_pid=False)
    kernel.set_title("volplane-shim ready")
    json.loads(
        json.dumps({**shim.described, "started_at": stamp()})
    )  # a rehearsal: makes our own copy of the pages
    text, descriptors, _, _ = socket.recv_fds(orders, 128 << 10, 2)
    orders.close()
    if text:  # otherwise the launcher has ended
        _serve(shim, json.loads(text), descriptors)


def run(request: dict[str, Any], descriptors: list[int], layout: Layout, cover: list[str]) -> None:
    """Make a container and run it. Runs in a fork of the launcher."""
    shim = Shim(layout, cover, plain=request["plain"], host_pid=request["host_pid"])
    _serve(shim, request, descriptors)


def _serve(shim: Shim, request: dict[str, Any], descriptors: list[int]) -> None:
    reply = socket.socket(fileno=descriptors[0])
    with open(descriptors[1], "rb") as file:
        spec = json.loads(file.read())
    try:
        shim.serve(request["directory"], spec, reply)
    except Exception as error:
        refuse(reply, error)


def answer(reply: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the node role may be gone; the files tell the next one
        reply.sendall(json.dumps(message).encode() + b"\n")


def refuse(reply: socket.socket, error: BaseException) -> None:
    stage = "exists" if isinstance(error, FileExistsError) else "setup"
    answer(reply, {"stage": stage, "code": 128, "message": str(error)})


class Shim:
    """From its creation on there is a pid 1 in new namespaces, which furnishes them meanwhile."""

    def __init__(self, layout: Layout, cover: list[str], *, plain: bool = True, host_pid: bool) -> None:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.host_pid = host_pid
        if host_pid:
            kernel.adopt_orphans()
        else:
            kernel.unshare(kernel.CLONE_NEWPID)
        self.control, theirs = socket.socketpair()
        self.report, reporting = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            inside.keep_only((0, 1, 2, theirs.fileno(), reporting, layout.namespace))
            inside.run(layout, cover, theirs, reporting, plain=plain)
        theirs.close()
        os.close(reporting)
        os.close(layout.namespace)
        self.described = self.describe()

    def serve(self, directory: str, spec: Spec, reply: socket.socket) -> None:
        kernel.set_title(f"volplane-shim {spec['id']}")
        _take(directory)
        log = Log(spec["log_path"], spec["log_max_size"], spec["log_max_files"])
        trees = [*_network(spec), *root.copy_sources(spec)]
        self._join_cgroups(spec["cgroups"])
        if _gone(reply):
            self._give_up(directory)
            return
        door = visitors.open_door(directory) if spec["stdin"] or spec["tty"] else None
        state = {**self.described, "started_at": stamp()}
        write_whole(f"{directory}/container.json", {**state, "spec": spec})
        ends = Streams(spec)
        self._tell(spec, ends, trees)
        failure = self._await_exec()
        if failure:
            log.write("stderr", failure["message"].encode() + b"\n")
        answer(reply, failure or state)
        if not failure:
            reply.close()
        code = self._copy_until_exit(log, ends, Visitors(door, spec, ends) if door else None)
        result = {
            "code": failure.get("code", code),
            "message": failure.get("message", ""),
            "finished_at": stamp(),
        }
        write_whole(f"{directory}/exit.json", result)

    def _give_up(self, directory: str) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        with suppress(OSError):
            os.rmdir(directory)

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

    def _tell(self, spec: Spec, ends: Streams, trees: list[int]) -> None:
        """Let pid 1 run the command."""
        text = json.dumps(spec).encode()
        with suppress(BrokenPipeError):  # it has failed already; its report says how
            sent = socket.send_fds(self.control, [text], [*ends.given, *trees])
            self.control.sendall(text[sent:])
        self.control.close()  # the end of the message
        for descriptor in trees:
            os.close(descriptor)
        ends.handed_over(spec)

    def _await_exec(self) -> dict[str, Any]:
        """Empty as soon as the command runs, else what went wrong."""
        text = b""
        while chunk := os.read(self.report, 4096):
            text += chunk
        os.close(self.report)
        failure: dict[str, Any] = json.loads(text) if text else {}
        return failure

    def _copy_until_exit(self, log: Log, ends: Streams, guests: Visitors | None) -> int:
        poll = guests.poll if guests is not None else select.poll()
        names = {descriptor: name for name, descriptor in ends.outputs.items()}
        end = os.pidfd_open(self.pid)
        for descriptor in (end, *names):
            poll.register(descriptor, select.POLLIN)

        def tell(name: str, data: bytes) -> None:
            log.write(name, data)
            if guests is not None:
                guests.tell(name, data)

        running = True
        while running:
            for descriptor, _ in poll.poll():
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
            _end_orphans()
        for descriptor, name in names.items():
            _drain(partial(tell, name), descriptor)
        if guests is not None:
            guests.close()
        log.flush()
        return inside.exit_code(status)


def _network(spec: Spec) -> list[int]:
    """The namespace to join, opened where its path means what the node meant."""
    return [os.open(spec["network"], os.O_RDONLY | os.O_CLOEXEC)] if spec["network"] else []


def _take(directory: str) -> None:
    """The lock lasts as long as this process: of two shims for one container, the second fails here."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileExistsError("the container is being started already") from None
    if os.path.exists(f"{directory}/container.json"):
        raise FileExistsError("the container exists already")


def _gone(peer: socket.socket) -> bool:
    poll = select.poll()
    poll.register(peer, select.POLLRDHUP)
    return bool(poll.poll(0))


def _drain(tell: Callable[[bytes], None], descriptor: int) -> None:
    os.set_blocking(descriptor, False)  # somebody outside may have got hold of the other end
    with suppress(BlockingIOError):
        while data := streams.read(descriptor, _CHUNK):
            tell(data)


def _end_orphans() -> None:
    """Without a pid namespace nothing ends what the command has left behind; it has become ours."""
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


def write_whole(path: str, content: dict[str, Any]) -> None:
    with open(f"{path}.tmp", "wb", opener=_private) as file:
        file.write(json.dumps(content).encode())
    os.rename(f"{path}.tmp", path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)  # a spec holds the environment, and that holds secrets
