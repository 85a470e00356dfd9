"""The directory outside of which a driver touches nothing, whatever path a request names.

A node service runs as root: a target like `/etc` would be mounted over, one like `/var/lib/kubelet/../../etc`
too. The kubelet names paths below its own directory only, so everything else is a mistake or an attack.
"""

from __future__ import annotations

import os
import posixpath

from volplane.sdk.errors import InvalidArgument


def check_below(path: str, root: str, field: str = "path", *, shown: str = "") -> None:
    """Raise InvalidArgument unless `path` is below `root`, with no link on the way that leads out of it.

    What does not exist yet is judged by its name. The last part must not be a link at all: it is what gets
    mounted over, or removed. `shown` is how the request has it.
    """
    named = f'{field} "{shown or path}"'
    if not path.startswith("/") or posixpath.normpath(path) != path:
        raise InvalidArgument(f'{named} is not an absolute path without "..", "." and empty parts')
    if not is_below(path, root):
        raise InvalidArgument(f"{named} is not below {root}")
    parent = os.path.realpath(os.path.dirname(path))
    real = os.path.realpath(root)
    if (parent != real and not is_below(parent, real)) or os.path.islink(path):
        raise InvalidArgument(f"{named} leads through a symbolic link out of {root}")


def is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip("/") + "/")
