"""Remove the empty cgroups of pods, which a runtime creates and leaves."""

from __future__ import annotations

import os
from contextlib import suppress

from volplane.node.containers.cri import labels
from volplane.node.containers.cri.sandbox_config import CGROUP_ROOT, cgroup_parent

CGROUPS = "/sys/fs/cgroup"


def remove_pod(uid: str, root: str) -> None:
    for systemd in (False, True):
        _remove(cgroup_parent(uid, root, systemd=systemd).lstrip("/"))


def remove_node(root: str) -> None:
    """Remove the cgroup of a node without pods, and the one of all nodes if it was the last."""
    _remove(f"{CGROUP_ROOT}/{labels.node_digest(root)}")
    _remove(CGROUP_ROOT)


def _remove(path: str) -> None:
    """Remove a cgroup below every mounted hierarchy; one that is not empty stays."""
    for place in _hierarchies():
        with suppress(OSError):
            os.rmdir(f"{place}/{path}")


def _hierarchies() -> list[str]:
    """The mounted hierarchies: one with cgroup v2, several with v1."""
    with suppress(OSError), os.scandir(CGROUPS) as entries:
        return [CGROUPS, *(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))]
    return []
