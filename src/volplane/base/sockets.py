"""Unix socket paths are limited to 107 bytes, and a node's root may be in a deep directory.

A long path is replaced by one through a descriptor of its directory. The short path is valid only inside the
context, and only in this process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 100  # the kernel allows 107; libraries add a prefix or a terminator


@contextmanager
def short_path(path: str) -> Iterator[str]:
    if len(os.fsencode(path)) <= LONGEST:
        yield path
        return
    directory, name = os.path.split(path)
    descriptor = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{descriptor}/{name}"
        if len(os.fsencode(short)) > LONGEST:
            raise OSError(f"socket name too long: {name}")
        yield short
    finally:
        os.close(descriptor)


def bind_privately(path: str) -> socket.socket:
    """A socket bound to the path, for its owner only; one that a killed process left there is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with short_path(path) as short:
            remove_socket(path)
            made.bind(short)
            os.chmod(short, 0o600)  # before it listens: no one can connect until then
    except BaseException:
        made.close()
        raise
    return made


def remove_socket(path: str) -> None:
    Path(path).unlink(missing_ok=True)
