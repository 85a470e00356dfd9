"""Run a command inside a running container (`kubectl exec`).

Three processes, so that none is ever in the container with more privileges than the container's own:

    helper ── entrant ── the command

The helper stays in the machine's namespaces: it reads files, formats errors, and waits. The entrant joins the
container's namespaces, except for the pid namespace, which applies to its children only: processes of the
container can neither see nor trace it. It switches to the container's user, starts the command and exits. The
command then is the helper's child.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
from contextlib import suppress
from typing import Any, NoReturn

from . import command, failures, identity, kernel, pid1
from .failures import IDENTITY, SetupProgress
from .shim import answer, kill_children
from .spec import Spec, complete

_NAMESPACES = {  # in the order in which they are joined
    "pid": kernel.CLONE_NEWPID,  # holds for children only
    "ipc": kernel.CLONE_NEWIPC,
    "uts": kernel.CLONE_NEWUTS,
    "net": kernel.CLONE_NEWNET,
    "mnt": kernel.CLONE_NEWNS,
}
_STARTED = struct.Struct("=q")  # the pid of the command; a failure has another length


def run(request: dict[str, Any], reply: socket.socket, stdio: list[int]) -> None:
    """Serve one request, in a fork of the launcher."""
    os.setsid()
    kernel.set_title("volplane-exec")
    kernel.become_subreaper()  # the command, when the entrant has ended
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(f"{request['directory']}/container.json", "rb") as file:
        spec = complete(json.loads(file.read())["spec"])
    spaces = _open_namespaces(request["pid"], request["pid_start"])
    report, reporting = os.pipe()
    entrant = os.fork()
    if entrant == 0:
        _enter(spec, request["command"], spaces, stdio, reply, reporting)
    for descriptor in (reporting, *spaces.values(), *stdio):
        os.close(descriptor)
    data = _await_report(report, reply)
    if data is None:
        return kill_children()
    os.waitpid(entrant, 0)
    if len(data) != _STARTED.size:
        kill_children()
        code, message = failures.unpack(data, spec, request["command"])
        return answer(reply, {"code": code, "message": message})
    (child,) = _STARTED.unpack(data)
    answer(reply, {"started": True})
    answer(reply, {"exit": _wait(child, reply)})


def _open_namespaces(pid: int, started: int) -> dict[str, int]:
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        spaces = {
            name: os.open(f"/proc/{pid}/ns/{name}", flags)
            for name in _NAMESPACES
            # Root of a user namespace may not join the machine's network again, for example.
            if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
        }
    except FileNotFoundError:
        raise OSError("the container has ended") from None
    if kernel.start_time(pid) != started:  # checked after opening: the pid cannot be reused from here on
        raise OSError("the container has ended")
    return spaces


def _enter(
    spec: Spec,
    argv: list[str],
    spaces: dict[str, int],
    stdio: list[int],
    reply: socket.socket,
    reporting: int,
) -> NoReturn:
    """Join the container, drop privileges, start the command. Report over the pipe only."""
    progress = SetupProgress()
    try:
        pid1.close_all_but((0, 1, 2, *spaces.values(), *stdio, reply.fileno(), reporting))
        kernel.make_undumpable()
        os.umask(0o022)
        for name, space in spaces.items():
            kernel.setns(space, _NAMESPACES[name])
            os.close(space)
        pid1.enter_workdir(spec, progress)
        progress.reach(IDENTITY)
        user = identity.drop_privileges(spec)
        child = command.prepare(spec, argv, user, stdio, None if stdio else reply, progress).start()
        os.write(reporting, _STARTED.pack(child))
    except BaseException as error:
        with suppress(OSError):
            os.write(reporting, progress.pack(error))
    os._exit(0)


def _await_report(report: int, reply: socket.socket) -> bytes | None:
    """The entrant's report; None if the caller hangs up first."""
    poll = select.poll()
    poll.register(report, select.POLLIN)
    poll.register(reply, select.POLLRDHUP)
    if any(descriptor == reply.fileno() for descriptor, _ in poll.poll()):
        return None
    data = os.read(report, 64)
    os.close(report)
    return data


def _wait(child: int, reply: socket.socket) -> int:
    """Wait for the command and return its exit code. Kill it if the caller hangs up."""
    end = os.pidfd_open(child)
    poll = select.poll()
    poll.register(end, select.POLLIN)
    poll.register(reply, select.POLLRDHUP)
    if not any(descriptor == end for descriptor, _ in poll.poll()):
        os.kill(child, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return pid1.exit_code(status)
