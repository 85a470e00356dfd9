"""The machine's cgroups: their version, and the empty ones of pods, which a runtime creates and leaves."""

from __future__ import annotations

import os
from contextlib import suppress

from volplane.node.containers.cri import labels
from volplane.node.containers.cri.sandbox_config import CGROUP_ROOT, cgroup_parent

CGROUPS = "/sys/fs/cgroup"


def has_version_2() -> bool:
    """Whether all controllers are those of cgroup v2."""
    return os.path.exists(f"{CGROUPS}/cgroup.controllers")


def remove_pod(uid: str, root: str) -> None:
    for systemd in (False, True):
        _remove(find_path(cgroup_parent(uid, root, systemd=systemd)))


def remove_node(root: str) -> None:
    """Remove the cgroup of a node without pods, and the one of all nodes if it was the last."""
    for node in (
        f"{CGROUP_ROOT}/{labels.node_digest(root)}",
        f"{CGROUP_ROOT}-{labels.node_digest(root)}.slice",
    ):
        _remove(find_path(node))
        _remove(os.path.dirname(find_path(node)))


def find_path(cgroup: str) -> str:
    """The path of a cgroup below a hierarchy: a.slice/a-b.slice for a-b.slice."""
    if not cgroup.endswith(".slice"):
        return cgroup.strip("/")
    parts = cgroup.removesuffix(".slice").split("-")
    return "/".join(f"{'-'.join(parts[: count + 1])}.slice" for count in range(len(parts)))


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
