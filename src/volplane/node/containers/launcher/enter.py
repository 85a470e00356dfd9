"""A command inside a running container: a helper joins its namespaces, starts the command there and waits.

The helper itself stays in the machine's pid namespace, so nobody in the container sees it, and is back in the
machine's mount namespace before it says anything: it must not keep the container's volumes mounted.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from contextlib import suppress
from typing import Any

from . import inside, kernel
from .inside import Actions, CannotRun
from .shim import answer

_NAMESPACES = {
    "pid": kernel.CLONE_NEWPID,  # holds for children only
    "ipc": kernel.CLONE_NEWIPC,
    "uts": kernel.CLONE_NEWUTS,
    "net": kernel.CLONE_NEWNET,
    "mnt": kernel.CLONE_NEWNS,
}


def run(request: dict[str, Any], reply: socket.socket, stdio: list[int]) -> None:
    """Runs in a fork of the launcher."""
    os.setsid()
    kernel.set_title("volplane-exec")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(f"{request['directory']}/container.json", "rb") as file:
        spec = json.loads(file.read())["spec"]
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    _join(request["pid"], request["pid_start"])
    actions: Actions = [(os.POSIX_SPAWN_DUP2, d, n) for n, d in enumerate(stdio)]
    if not stdio:
        spec["env"] = {"TERM": "xterm", **spec["env"]}
        actions = inside.open_terminal(reply)
    try:
        child = inside.start(spec, request["command"], actions)
    except CannotRun as error:
        kernel.setns(home, kernel.CLONE_NEWNS)
        answer(reply, {"code": error.code, "message": str(error)})
        return
    kernel.setns(home, kernel.CLONE_NEWNS)
    for descriptor in stdio:
        os.close(descriptor)
    answer(reply, {"started": True})
    answer(reply, {"exit": _wait(child, reply)})


def _join(pid: int, started: int) -> None:
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        spaces = {name: os.open(f"/proc/{pid}/ns/{name}", flags) for name in _NAMESPACES}
    except FileNotFoundError:
        raise OSError("the container has ended") from None
    if kernel.start_time(pid) != started:  # checked after opening: now they cannot be anybody else's
        raise OSError("the container has ended")
    for name, space in spaces.items():
        kernel.setns(space, _NAMESPACES[name])
        os.close(space)


def _wait(child: int, reply: socket.socket) -> int:
    """The exit code. When the caller goes away, so does the command."""
    end = os.pidfd_open(child)
    poll = select.poll()
    poll.register(end, select.POLLIN)
    poll.register(reply, select.POLLRDHUP)
    if not any(descriptor == end for descriptor, _ in poll.poll()):
        os.kill(child, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return inside.exit_code(status)
