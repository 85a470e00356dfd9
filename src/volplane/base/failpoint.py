"""Kill the process at a named point, so that crash tests choose the instruction instead of guessing a delay.

`VOLPLANE_FAILPOINT=name` kills the process with SIGKILL when it reaches the name, `name#3` at the third
time. `VOLPLANE_FAILPOINT_LOG=file` logs every name that is passed, so that a test can list them (`%p` is the
pid, for one log per process). With `VOLPLANE_FAILPOINT_AFTER=file` nothing counts until that file exists. All
variables are read once, at import. Callers check `is_armed` before they build a name.

`VOLPLANE_FAILPOINT_FILE=file` is for long-running processes: the file names the point, and may be created at
any time. The first process to reach the point removes the file and dies; no other process does. Further lines
of the file are written back for the next process, so a role can be killed again and again.

    write:<verb>:<resource>:before|after    API server, around the store's commit
    ask:<verb>:<resource>:before|after      client that sends the request over HTTPS
    rpc:<Method>:before|after               CSI caller; rpc:<Method>:served: driver, work done, no answer yet
    flexvolume:<command>:before|after       FlexVolume caller
    iscsi:<login|logout>:before|after       iscsi volumes
    cloud:<Action>:asked|intent|effect|result   disk service, between writing its records and acting
    host:<effect>:before|after              mounts, loop devices, file systems
    file:<what>:<write|remove>:before|after     files that a node needs after a restart
    file:<name>:half                        a file is written under its temporary name, not yet renamed
    pod:network:before|after                a pod gets its network namespace and address
    cri:<Method>:before|after               node that calls a container runtime
    container:<start|stop|remove>:before|after, container:stop:asked
    backup:<step>, restore:<step>           `volplane backup` and `volplane restore`
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class FailPoints:
    """The fail points that the environment of this process sets."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._name, _, count = environment.get("VOLPLANE_FAILPOINT", "").partition("#")
        self._left = int(count or 1)  # how often the name is still to be reached
        self._log = environment.get("VOLPLANE_FAILPOINT_LOG", "").replace("%p", str(os.getpid()))
        self._after = environment.get("VOLPLANE_FAILPOINT_AFTER", "")
        self._file = environment.get("VOLPLANE_FAILPOINT_FILE", "")

    @property
    def is_armed(self) -> bool:
        return bool(self._name or self._log or self._file)

    def hit(self, name: str) -> None:
        if self._after:
            if not os.path.exists(self._after):
                return
            self._after = ""
        if self._log:
            self._append(name)
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        if self._file and self._take_turn(name):
            os.kill(os.getpid(), signal.SIGKILL)

    def _take_turn(self, name: str) -> bool:
        """Whether this process is the one to die at the name that the file asks for."""
        try:
            with open(self._file) as file:
                first, _, rest = file.read().partition("\n")
            if first != name:
                return False
            os.unlink(self._file)  # only one process can
        except FileNotFoundError:
            return False
        if rest:
            with open(f"{self._file}.rest", "w") as file:
                file.write(rest)
            os.rename(f"{self._file}.rest", self._file)
        return True

    def _append(self, name: str) -> None:
        # One write with O_APPEND: lines of several processes do not mix, and none is lost by a kill.
        descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{name}\n".encode())
        finally:
            os.close(descriptor)


_fail_points = FailPoints(os.environ)
is_armed = _fail_points.is_armed


def hit(name: str) -> None:
    if is_armed:
        _fail_points.hit(name)


@contextmanager
def around(name: str) -> Iterator[None]:
    """`name:before` and, unless it raises, `name:after`."""
    hit(f"{name}:before")
    yield
    hit(f"{name}:after")


def effect(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator for a function with a lasting effect: `name:before`, `name:after` around every call."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with around(name):
                return function(*args, **kwargs)

        return wrapper

    return decorate
