"""Files that a restart reads: written whole or not at all, durable where a power cut must not lose them.

A rename is atomic for whoever looks, but not for the disk: after a power cut the new name may be there with
nothing in it. `durable=True` brings the content to the disk before the rename, and the rename before the
return. Every file that is the only copy of something is written like that; files that describe what a power
cut ends anyway (mounts, processes) are not, and their readers take an empty one for "unknown".
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from volplane.base import failpoint

log = logging.getLogger(__name__)

CORRUPT = ".corrupt"  # behind the name of a file that could not be read, and was moved aside


class UnusableFile(Exception):
    """A file without which nothing can start: says which, why, and what can be done."""


def atomic_write(path: str, data: bytes, mode: int = 0o600, *, durable: bool = False) -> None:
    """Replace `path` so that readers see the old or the new content. `durable` also survives a power cut."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f"{_temporary_prefix(name)}{os.getpid()}.{id(data):x}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, mode)  # whatever the umask says
            _write_all(file.fileno(), data)
            if durable:
                os.fsync(descriptor)
        failpoint.hit(f"file:{name}:half")
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        sync_directory(directory)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:  # a disk that fills up takes a part first, and refuses only the next
        left = left[os.write(descriptor, left) :]


def remove_with_leftovers(path: str) -> None:
    """Remove a file of `atomic_write`, and what a writer that was killed half-way has left beside it."""
    directory, name = os.path.split(path)
    with suppress(FileNotFoundError):
        for entry in os.listdir(directory or "."):
            if entry == name or (entry.startswith(_temporary_prefix(name)) and entry.endswith(".tmp")):
                os.unlink(os.path.join(directory, entry))


def _temporary_prefix(name: str) -> str:
    return f".{name}."


def sync_directory(path: str) -> None:
    """Make the names in a directory durable: new ones, renamed ones, and that others are gone."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: str, why: object) -> None:
    """Move a file that cannot be read out of the way, and say so; its content stays for whoever can."""
    aside = f"{path}{CORRUPT}"
    try:
        os.rename(path, aside)
    except OSError as error:
        log.warning("%s cannot be read (%s) and stays where it is: %s", path, why, error.strerror)
    else:
        log.warning("%s cannot be read (%s): moved to %s", path, why, aside)
