"""Which other mounts keep a device mount from being unmounted.

As in Kubernetes (`GetMountRefs`, `HasMountRefs`), a mount of the same directory of the same file system is a
reference, unless a kubelet handles it: the same path below `plugins/kubernetes.io/` in another place. Several
nodes share this machine, so everything that another kubelet has mounted for its own pods belongs to it, too.
A volume that nodes share has one superblock for all of them, and so has a network file system.
"""

from __future__ import annotations

import os
import re

from volplane.host.mounts import MountTable

_PLUGINS = "/plugins/kubernetes.io/"
_OF_A_KUBELET = re.compile(
    r"(.*)/(?:plugins/kubernetes\.io|pods/[^/]+/(?:volumes|volumeDevices|volume-subpaths))/"
)


def find_references(table: MountTable, path: str, root: str) -> list[str]:
    """Mounts that unmounting `path` could interrupt; `root` is the directory of this node's kubelet."""
    start = path.find(_PLUGINS)
    own = path[start:] if start >= 0 else path
    return [
        other
        for other in table.same_directory(path)
        if own not in other and not _is_of_other_kubelet(other, root)
    ]


def _is_of_other_kubelet(target: str, root: str) -> bool:
    found = _OF_A_KUBELET.match(target)
    return found is not None and os.path.normpath(found[1]) != os.path.normpath(root)
