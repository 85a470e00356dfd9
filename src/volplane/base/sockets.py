"""Unix socket paths end at 107 bytes; a node's root in a deep directory is longer.

A long path is opened through a descriptor of its directory. The short name is only good while the context
lasts and only in this process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 100  # the kernel takes 107; libraries put a prefix or a terminator into the same buffer


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
