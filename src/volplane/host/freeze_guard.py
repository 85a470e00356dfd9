"""Freeze a file system so that it is thawed even if this process is killed.

Programs that write to a frozen file system wait. A second process waits for the end of this one, whatever the
reason, and thaws it: `python -m volplane.host.freeze_guard PATH`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from volplane.host.copies import freeze_filesystem, thaw

READY = b"."


@contextmanager
def freeze_guarded(path: str) -> Iterator[None]:
    """Freeze the file system at `path` during the block. Raises OSError."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "volplane.host.freeze_guard", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # neither Ctrl-C nor a kill of the process group ends it
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    with guard:
        if guard.stdout.read(len(READY)) != READY:
            raise OSError(f"cannot watch over {path} while it is frozen")
        with freeze_filesystem(path):
            yield
        guard.stdin.close()


def main() -> None:
    directory = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.write(1, READY)
    os.read(0, 1)  # returns when the other process has closed its end
    thaw(f"/proc/self/fd/{directory}")


if __name__ == "__main__":
    main()
