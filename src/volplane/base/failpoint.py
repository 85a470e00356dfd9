"""Die at a named place: crash tests choose the instruction instead of guessing a delay.

`VOLPLANE_FAILPOINT=name` kills the process with SIGKILL when it reaches the name, `name#3` at the third
time. `VOLPLANE_FAILPOINT_LOG=file` writes down every name that is passed, which is how a test learns them
(`%p` in it is the pid, for a log per process). With `VOLPLANE_FAILPOINT_AFTER=file` nothing counts before
that file exists: a test says from when on. All are read once, at import; callers that would build a name in
vain look at `armed` first.

`VOLPLANE_FAILPOINT_FILE=file` is for processes that live through many deaths of others: the name stands in
the file, which may come at any time. The first to reach it takes the file away and dies; nobody else does.
Further lines of the file are put back for whoever comes next: a process can die there again and again.

    write:<verb>:<resource>:before|after    API server, around the store's commit
    ask:<verb>:<resource>:before|after      whoever asks it for that over HTTPS
    rpc:<Method>:before|after               CSI caller; rpc:<Method>:served: driver, work done, no answer yet
    cloud:<Action>:asked|intent|effect|result   disk service, between its ledger's writes and its effects
    host:<effect>:before|after              mounts, loop devices, file systems
    file:<what>:<write|remove>:before|after     what a node must find again after a restart
    file:<name>:half                        a file is written under another name, and not yet renamed
    pod:network:before|after                a pod gets its namespace and its address
    container:<start|stop|remove>:before|after, container:stop:asked
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def _target(text: str) -> tuple[str, int]:
    name, _, count = text.partition("#")
    return name, int(count or 1)


_name, _left = _target(os.environ.get("VOLPLANE_FAILPOINT", ""))
_log = os.environ.get("VOLPLANE_FAILPOINT_LOG", "").replace("%p", str(os.getpid()))
_after = os.environ.get("VOLPLANE_FAILPOINT_AFTER", "")
_file = os.environ.get("VOLPLANE_FAILPOINT_FILE", "")
armed = bool(_name or _log or _file)


def hit(name: str) -> None:
    if armed:
        _hit(name)


@contextmanager
def around(name: str) -> Iterator[None]:
    """`name:before` and, unless it raises, `name:after`."""
    hit(f"{name}:before")
    yield
    hit(f"{name}:after")


def effect(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function whose effect stays when we are killed, whoever calls it: `name:before`, `name:after`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with around(name):
                return function(*args, **kwargs)

        return wrapper

    return decorate


def _hit(name: str) -> None:
    global _left, _after
    if _after:
        if not os.path.exists(_after):
            return
        _after = ""
    if _log:
        _append(name)
    if name == _name:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    if _file and _take_turn(name):
        os.kill(os.getpid(), signal.SIGKILL)


def _take_turn(name: str) -> bool:
    try:
        with open(_file) as file:
            first, _, rest = file.read().partition("\n")
        if first != name:
            return False
        os.unlink(_file)  # which only one can
    except FileNotFoundError:
        return False
    if rest:
        with open(f"{_file}.rest", "w") as file:
            file.write(rest)
        os.rename(f"{_file}.rest", _file)
    return True


def _append(name: str) -> None:
    # One write on O_APPEND: lines of several processes do not mix, and none is lost when we are killed next.
    descriptor = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{name}\n".encode())
    finally:
        os.close(descriptor)
