"""Die at a named place: crash tests choose the instruction instead of guessing a delay.

`VOLPLANE_FAILPOINT=name` kills the process with SIGKILL when it reaches the name, `name#3` at the third
time. `VOLPLANE_FAILPOINT_LOG=file` writes down every name that is passed, which is how a test learns them.
Both are read once, at import; callers that would build a name in vain look at `armed` first.
"""

from __future__ import annotations

import os
import signal


def _target(text: str) -> tuple[str, int]:
    name, _, count = text.partition("#")
    return name, int(count or 1)


_name, _left = _target(os.environ.get("VOLPLANE_FAILPOINT", ""))
_log = os.environ.get("VOLPLANE_FAILPOINT_LOG", "")
armed = bool(_name or _log)


def hit(name: str) -> None:
    if armed:
        _hit(name)


def _hit(name: str) -> None:
    global _left
    if _log:
        _append(name)
    if name == _name:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _append(name: str) -> None:
    # One write on O_APPEND: lines of several processes do not mix, and none is lost when we are killed next.
    descriptor = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{name}\n".encode())
    finally:
        os.close(descriptor)
