"""Errors inside a container: sent out as numbers, formatted as text outside.

Inside, nothing is formatted: text may need a codec and a traceback opens source files, and Python would load
both from the container's root. So a process inside sends the stage it has reached and the error number; a
process in the machine's namespaces formats the message.
"""

from __future__ import annotations

import os
import struct
from typing import Any

from .spec import mounts_of

NOT_EXECUTABLE, NOT_FOUND, FAILED, KILLED = 126, 127, 128, 137

# Stages of a start, in their order.
ORDER, NETWORK, ROOT, SYSCTL, MOUNT, HOSTNAME, WORKDIR, IDENTITY, TERMINAL, PROGRAM = range(10)

# Reasons that have no error number of the kernel.
(
    NOT_SHARED,
    ON_PROC,
    NOT_NAMESPACED,
    NO_TERMINAL,
    NOT_IN_PATH,
    DENIED_IN_PATH,
    BAD_FILTER,
    NOT_PRIVATE,
    NO_SUCH_ID,
) = range(1001, 1010)

_PACKED = struct.Struct("=3i")


class SetupFailure(Exception):
    """A stage failed for a reason that has no error number of the kernel."""

    def __init__(self, reason: int) -> None:
        self.reason = reason


class SetupProgress:
    """The stage that a process inside has reached, and the index of the mount or sysctl it works on."""

    def __init__(self) -> None:
        self.stage, self.index = ORDER, 0

    def reach(self, stage: int, index: int = 0) -> None:
        self.stage, self.index = stage, index

    def pack(self, error: BaseException) -> bytes:
        reason = error.reason if isinstance(error, SetupFailure) else 0
        if isinstance(error, OSError):
            reason = error.errno or 0
        return _PACKED.pack(self.stage, self.index, reason)


def unpack(data: bytes, spec: dict[str, Any], argv: list[str]) -> tuple[int, str]:
    """The exit code and the message."""
    if len(data) != _PACKED.size:
        return FAILED, "cannot set up the container: the process that did so sent no valid report"
    stage, index, reason = _PACKED.unpack(data)
    words = _REASONS.get(reason) or (os.strerror(reason) if reason else "internal error")
    if stage == PROGRAM:
        code = NOT_FOUND if reason in (2, NOT_IN_PATH) else NOT_EXECUTABLE
        return code, f'exec: "{argv[0] if argv else ""}": {words[0].lower()}{words[1:]}'
    return FAILED, f"cannot {_task(stage, index, spec)}: {words}"


def is_command_failure(data: bytes) -> bool:
    """Whether set-up succeeded and only the program could not be run."""
    return len(data) == _PACKED.size and bool(_PACKED.unpack(data)[0] == PROGRAM)


def _task(stage: int, index: int, spec: dict[str, Any]) -> str:
    if stage == MOUNT:
        mount = mounts_of(spec)[index]
        return f"mount {mount['source']} at {mount['target']}"
    if stage == SYSCTL:
        return f"set sysctl {list(spec['sysctls'])[index]}"
    if stage == WORKDIR:
        return f"use working directory {spec['workdir']}"
    return _TASKS[stage]


_TASKS = {
    ORDER: "prepare the container",
    NETWORK: "join the pod's network",
    ROOT: "make the container's root",
    HOSTNAME: "set the host name",
    IDENTITY: "take the container's user, capabilities and filter",
    TERMINAL: "open a terminal in the container",
}
_REASONS = {
    NOT_SHARED: "the source is not on a shared mount, so mounts cannot propagate from it",
    ON_PROC: "mounting inside /proc is not allowed",
    NOT_NAMESPACED: "the container has no namespace of its own for it",
    NO_TERMINAL: "/dev/pts/ptmx is not a terminal multiplexer",
    NOT_IN_PATH: "executable file not found in $PATH",
    DENIED_IN_PATH: "permission denied",
    BAD_FILTER: "the seccomp filter is not valid",
    NOT_PRIVATE: "mounts below the source reach the container, which has capability MKNOD and could use "
    "devices on them; drop MKNOD, or make the container privileged",
    NO_SUCH_ID: "this cluster runs without root, and its user namespace has no such user or group; give your "
    "user ranges in /etc/subuid and /etc/subgid, and install newuidmap (package uidmap)",
}
