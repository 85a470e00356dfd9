"""Files that are read after a restart: written atomically, and durably where a power cut must not lose them.

A rename is atomic for readers, but not on disk: after a power cut the new name may exist with no content.
`durable=True` syncs the content before the rename, and the rename before returning. Every file that is the
only copy of something is written durably. Files about mounts and processes, which a power cut ends anyway,
are not; their readers treat an empty file as "unknown".
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from volplane.base import failpoint

log = logging.getLogger(__name__)

CORRUPT = ".corrupt"  # suffix of a file that could not be read and was moved aside


class UnusableFile(Exception):
    """A required file cannot be used. The message says which file, why, and what to do."""


def atomic_write(path: str, data: bytes, mode: int = 0o600, *, durable: bool = False) -> None:
    """Replace `path` so that readers see the old or the new content. `durable`: also after a power cut."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f"{_temporary_prefix(name)}{os.getpid()}.{id(data):x}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, mode)  # independent of the umask
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
    while left:  # a disk that fills up takes a part first, and fails only at the next write
        left = left[os.write(descriptor, left) :]


def remove_with_leftovers(path: str) -> None:
    """Remove a file of `atomic_write` and the temporary files of writers that were killed."""
    directory, name = os.path.split(path)
    with suppress(FileNotFoundError):
        for entry in os.listdir(directory or "."):
            if entry == name or (entry.startswith(_temporary_prefix(name)) and entry.endswith(".tmp")):
                os.unlink(os.path.join(directory, entry))


def _temporary_prefix(name: str) -> str:
    return f".{name}."


def sync_directory(path: str) -> None:
    """Make creations, renames and removals in a directory durable."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: str, why: object) -> None:
    """Move an unreadable file out of the way, and log it. Its content is kept for inspection."""
    aside = f"{path}{CORRUPT}"
    try:
        os.rename(path, aside)
    except OSError as error:
        log.warning("%s cannot be read (%s) and cannot be moved aside: %s", path, why, error.strerror)
    else:
        log.warning("%s cannot be read (%s): moved to %s", path, why, aside)
