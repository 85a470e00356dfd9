"""The launcher's loop: receives requests with their descriptors and serves each in a fork.

Most of a container's set-up is the same for all containers, and takes most of the time. So while there are no
requests, one container is prepared in advance (the standby), down to a pid 1 that waits for its spec.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from . import exec_helper, import_guard, kernel, rootfs, shim
from .rootfs import RootLayout
from .sync_process import SyncProcess
from .user_namespace_root import prepare_user_namespace_layout

_MAX_REQUEST = 128 << 10
_MAX_DESCRIPTORS = 4  # descriptors in one request: the reply, and the three standard streams
# Milliseconds without a request before a standby is prepared: in a burst of requests it would only cost time.
_STANDBY_DELAY = 20

Work = Callable[[], None]


def main(descriptor: int, hidden: list[str], exposed: list[str], shell: str) -> None:
    """`hidden`, `exposed` and `shell` are paths of this machine; see `rootfs.prepare_layout`."""
    kernel.set_title("volplane-launcher")
    layout, problem = _prepare(hidden, exposed, shell)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are not waited for: the kernel reaps them
    import_guard.block_imports()
    gc.disable()
    gc.freeze()  # so that forks keep sharing these pages
    requests = socket.socket(fileno=descriptor)
    requests.set_inheritable(False)
    LauncherServer(requests, layout, problem).run()


def _prepare(hidden: list[str], exposed: list[str], shell: str) -> tuple[RootLayout, str]:
    try:
        if kernel.IN_USER_NAMESPACE:
            return prepare_user_namespace_layout(hidden, exposed, shell), ""
        return rootfs.prepare_layout(hidden, exposed, shell), ""
    except OSError as error:
        return RootLayout(-1, None, None), f"cannot set up namespaces: {error}"


class LauncherServer:
    def __init__(self, requests: socket.socket, layout: RootLayout, problem: str) -> None:
        self.requests, self.layout, self.problem = requests, layout, problem
        self.writer = SyncProcess()
        self.standby: socket.socket | None = None  # our end of the connection to the standby
        self.poll = select.poll()
        self.poll.register(requests, select.POLLIN)

    def run(self) -> None:
        while True:
            while self.standby is None and not self.problem and not self.poll.poll(_STANDBY_DELAY):
                self._start_standby()
            text, descriptors, _, _ = socket.recv_fds(
                self.requests, _MAX_REQUEST, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
            if not text:
                return  # the node role has ended; the containers go on
            request = json.loads(text)
            if not (request["plain"] and self._use_standby(text, descriptors)):
                self._fork(lambda: self._serve(request, descriptors), descriptors[0])  # noqa: B023  # forked at once
            for number in descriptors:
                os.close(number)

    def _start_standby(self) -> None:
        # Set before the fork, which closes its copy: with an open copy, the standby would wait for itself.
        self.standby, theirs = socket.socketpair()
        self._fork(lambda: shim.run_standby(theirs, self.layout, self.writer))
        theirs.close()

    def _use_standby(self, text: bytes, descriptors: list[int]) -> bool:
        ready, self.standby = self.standby, None
        if ready is None:
            return False
        try:
            socket.send_fds(ready, [text], descriptors)
        except OSError:
            return False  # the standby was killed
        finally:
            ready.close()
        return True

    def _serve(self, request: dict[str, Any], descriptors: list[int]) -> None:
        if self.problem:
            raise OSError(self.problem)
        if request["op"] == "start":
            shim.run(request, descriptors, self.layout, self.writer)
        else:
            exec_helper.run(request, socket.socket(fileno=descriptors[0]), descriptors[1:])

    def _fork(self, work: Work, reply: int = -1) -> None:
        if os.fork() == 0:
            self.requests.close()
            if self.standby is not None:
                self.standby.close()
            _run_and_exit(work, reply)


def _run_and_exit(work: Work, reply: int) -> NoReturn:
    """Run the work of a fork and exit: it must never return into the launcher's loop."""
    try:
        work()
    except BaseException as error:
        import_guard.log_error(error)
        if reply >= 0:
            shim.answer_error(socket.socket(fileno=reply), error)
    os._exit(0)
