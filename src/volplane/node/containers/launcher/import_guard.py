"""A second wall: from here on this process loads no code, wherever it is and whatever goes wrong.

Python imports late: a codec when a text is first decoded by it, a module when an error is shown, source files
for a traceback. Below the launcher that could happen in a container's root. So everything is used once while
the files are still the machine's own, and then the ways to load more are closed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn


class _BlockingFinder:
    """The only finder that is left."""

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
    # The built-in ones open source files, and guess their encoding, which imports a codec by name.
    sys.excepthook = _ignore
    sys.unraisablehook = _ignore


def _warm_up() -> None:
    """Take every codec and error handler that the forks need, and an error's text from the C library."""
    for codec in ("utf-8", "ascii", "latin-1"):
        "".encode(codec).decode(codec)
    b"\xff".decode("utf-8", "surrogateescape").encode("utf-8", "surrogateescape")
    json.loads(json.dumps({"é": [1, 2.5, None, True]}).encode())
    with suppress(OSError):
        os.stat("/dev/null/x")
    os.fsdecode(os.fsencode("é"))
    str(OSError(2, os.strerror(2), "x"))


def _ignore(*_: Any) -> None:
    pass


def log_error(error: BaseException) -> None:
    """Write an error and where it came from to the launcher's log, without reading a source file.

    For forks that are in the machine's own namespaces.
    """
    lines = []
    place = error.__traceback__
    while place is not None:
        code = place.tb_frame.f_code
        lines.append(f"  {code.co_filename}:{place.tb_lineno} {code.co_name}\n")
        place = place.tb_next
    text = f"{type(error).__name__}: {error}\n{''.join(lines)}"
    with suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))
