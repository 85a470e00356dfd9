"""What goes wrong inside a container, as numbers on their way out and as a sentence once they are outside.

Inside, nothing is formatted: a sentence may need a codec, a traceback opens source files, and either would be
looked for in the container's own root. So a process in there sends the stage it had reached and the error
number, and whoever is in the machine's namespaces finds the words.
"""

from __future__ import annotations

import os
import struct
from typing import Any

from .spec import mounts_of

NOT_EXECUTABLE, NOT_FOUND, FAILED, KILLED = 126, 127, 128, 137

# Stages, in the order in which a start comes to them.
ORDER, NETWORK, ROOT, SYSCTL, MOUNT, HOSTNAME, WORKDIR, IDENTITY, TERMINAL, PROGRAM = range(10)

# What is wrong where the kernel has no number for it.
NOT_SHARED, ON_PROC, NOT_NAMESPACED, NO_TERMINAL, NOT_IN_PATH, DENIED_IN_PATH, BAD_FILTER, NOT_PRIVATE = (
    range(1001, 1009)
)

_PACKED = struct.Struct("=3i")


class SetupFailure(Exception):
    """A stage failed for a reason that has no error number of the kernel's."""

    def __init__(self, reason: int) -> None:
        self.reason = reason


class SetupProgress:
    """How far a process inside has come: the stage, and which mount or sysctl of several."""

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
    """The exit code and the sentence for it."""
    if len(data) != _PACKED.size:
        return FAILED, "cannot set up the container: the process that did so sent no valid report"
    stage, index, reason = _PACKED.unpack(data)
    words = _REASONS.get(reason) or (os.strerror(reason) if reason else "internal error")
    if stage == PROGRAM:
        code = NOT_FOUND if reason in (2, NOT_IN_PATH) else NOT_EXECUTABLE
        return code, f'exec: "{argv[0] if argv else ""}": {words[0].lower()}{words[1:]}'
    return FAILED, f"cannot {_task(stage, index, spec)}: {words}"


def is_command_failure(data: bytes) -> bool:
    """Whether everything else was there, and only the program could not be run."""
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
    ON_PROC: "nothing can be mounted inside /proc",
    NOT_NAMESPACED: "the container has no namespace of its own for it",
    NO_TERMINAL: "/dev/pts/ptmx is no terminal",
    NOT_IN_PATH: "executable file not found in $PATH",
    DENIED_IN_PATH: "permission denied",
    BAD_FILTER: "the seccomp filter is not valid",
    NOT_PRIVATE: "mounts below the source reach the container, which has capability MKNOD and could use "
    "devices on them; drop MKNOD, or make the container privileged",
}
