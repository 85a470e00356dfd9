"""Paths in a container's root, opened so that no symbolic link leads out of it.

A container's files are not trusted: they come from an image, a volume, or another container that changes a
shared volume at this moment. Links are followed, but "/" is always the container's root, and the magic links
of /proc to other processes' files are refused.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from contextlib import suppress

from . import kernel

_IN_ROOT = kernel.RESOLVE_IN_ROOT | kernel.RESOLVE_NO_MAGICLINKS
_NO_LINK = _IN_ROOT | kernel.RESOLVE_NO_SYMLINKS


def open_path(path: str, *, flags: int = os.O_PATH, links: bool = True) -> int:
    """Open `path`. With the default flags the descriptor only refers to the file and does not open it."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return kernel.open_at(root, path, flags, _IN_ROOT if links else _NO_LINK)
    finally:
        os.close(root)


def open_or_create(path: str, *, directory: bool) -> int:
    """Like `open_path`; missing parent directories are created, and at the end an empty file or directory."""
    with suppress(FileNotFoundError):
        return open_path(path)
    outer, name = posixpath.split(posixpath.normpath(path))
    if name in ("", ".", ".."):
        raise OSError(errno.EINVAL, "")
    parent = open_or_create(outer or "/", directory=True)
    try:
        with suppress(FileExistsError):
            if directory:
                os.mkdir(name, 0o755, dir_fd=parent)
            else:
                flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY
                os.close(kernel.open_at(parent, name, flags, _NO_LINK, 0o644))
        # It did not exist a moment ago: a dangling link, or one that was made meanwhile, is refused.
        return kernel.open_at(parent, name, os.O_PATH, _NO_LINK)
    finally:
        os.close(parent)


def read_file(path: str, limit: int) -> bytes:
    """At most `limit` bytes of a regular file; b"" if it is missing, not a regular file, or behind a link."""
    try:
        found = open_path(path, links=False)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):  # opening a FIFO or a device has side effects
                return b""
        finally:
            os.close(found)
        file = open_path(path, flags=os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, links=False)
    except OSError:
        return b""
    try:
        return _read(file, limit) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(file)


def _read(file: int, limit: int) -> bytes:
    parts = []
    while limit > 0 and (data := os.read(file, min(limit, 64 << 10))):
        parts.append(data)
        limit -= len(data)
    return b"".join(parts)
