"""Block imports in the launcher and its forks, as a second line of defence.

Python loads code late: a codec when text is first decoded by it, a module when an error is shown, source
files for a traceback. In a fork of the launcher that could happen in a container's root. So everything is
used once while the files are the machine's own, and then all ways to load more are closed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn


class _BlockingFinder:
    """The only import finder that is left: it finds nothing."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> NoReturn:
        raise ModuleNotFoundError(name)

    @staticmethod
    def invalidate_caches() -> None:
        pass


def block_imports() -> None:
    _warm_up()
    for ways in (sys.meta_path, sys.path, sys.path_hooks):
        ways.clear()
    sys.path_importer_cache.clear()
    sys.meta_path.append(_BlockingFinder)
    # The built-in hooks open source files and import the codec that a file names.
    sys.excepthook = _ignore
    sys.unraisablehook = _ignore


def _warm_up() -> None:
    """Use every codec, error handler, error text and late import of the standard library that forks need."""
    for codec in ("utf-8", "ascii", "latin-1"):
        "".encode(codec).decode(codec)
    b"\xff".decode("utf-8", "surrogateescape").encode("utf-8", "surrogateescape")
    json.loads(json.dumps({"é": [1, 2.5, None, True]}).encode())
    with suppress(OSError):
        os.stat("/dev/null/x")
    os.fsdecode(os.fsencode("é"))
    str(OSError(2, os.strerror(2), "x"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [theirs.fileno()])  # imports array
        for descriptor in socket.recv_fds(theirs, 1, 1)[1]:
            os.close(descriptor)


def _ignore(*_: Any) -> None:
    pass


def log_error(error: BaseException) -> None:
    """Write an error and its stack to the launcher's log, without reading a source file.

    For forks that are in the machine's own namespaces.
    """
    lines = []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        lines.append(f"  {code.co_filename}:{entry.tb_lineno} {code.co_name}\n")
        entry = entry.tb_next
    text = f"{type(error).__name__}: {error}\n{''.join(lines)}"
    with suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))
