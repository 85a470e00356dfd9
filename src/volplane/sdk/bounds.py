"""Checks that the paths in requests are below the kubelet's directory.

A node service runs as root: it would mount over a target like `/etc` or `/var/lib/kubelet/../../etc`. The
kubelet sends paths below its own directory only, so every other path is a mistake or an attack.
"""

from __future__ import annotations

import os
import posixpath

from volplane.sdk.errors import InvalidArgument


def check_below(path: str, root: str, field: str = "path", *, shown: str = "") -> None:
    """Raise InvalidArgument unless `path` is below `root`, and no symbolic link leads out of it.

    For parts that do not exist yet, only the name is checked. The last part must not be a link: it is mounted
    over, or removed. `shown` is the path in the request, for the error.
    """
    named = f'{field} "{shown or path}"'
    if not path.startswith("/") or posixpath.normpath(path) != path:
        raise InvalidArgument(f'{named} is not an absolute path without "..", "." and empty parts')
    if not is_below(path, root):
        raise InvalidArgument(f"{named} is not below {root}")
    parent = _resolve_links(os.path.dirname(path))
    real = _resolve_links(root)
    if (parent != real and not is_below(parent, real)) or os.path.islink(path):
        raise InvalidArgument(f"{named} leads through a symbolic link out of {root}")


def is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip("/") + "/")


def _resolve_links(path: str) -> str:
    """As os.path.realpath, but the kernel resolves a path that exists: every call of a driver needs it."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(path)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # /proc is not mounted
        return os.path.realpath(path)
    finally:
        os.close(descriptor)
