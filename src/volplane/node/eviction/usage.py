"""Measure pods' usage of the node's disk: logs and emptyDirs. Blocking, for executor threads.

What a container writes outside of its volumes is in memory here; CSI volumes are on disks of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from volplane.api.core import Pod
from volplane.host import NodePaths
from volplane.node.eviction.plan import DiskAmount, PodDiskUsage
from volplane.rules import pods as rules

EMPTY_DIR = "kubernetes.io/empty-dir"


def measure(pods: Iterable[Pod], paths: NodePaths) -> list[PodDiskUsage]:
    return [_measure(pod, paths) for pod in pods]


def _measure(pod: Pod, paths: NodePaths) -> PodDiskUsage:
    logs = paths.real(paths.log_directory(pod.namespace, pod.name, pod.uid))
    return PodDiskUsage(
        pod,
        {c.name: _amount(f"{logs}/{c.name}") for c in rules.containers(pod)},
        {
            v.name: _amount(paths.real(paths.volume(pod.uid, EMPTY_DIR, v.name)))
            for v in pod.spec.volumes
            if v.empty_dir is not None and not v.empty_dir.medium
        },
    )


def _amount(directory: str) -> DiskAmount:
    """Usage of everything below the directory; links are not followed, removed files are skipped."""
    size = inodes = 0
    seen: set[int] = set()  # inodes of files with several hard links
    left = [directory]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    info = entry.stat(follow_symlinks=False)
                    if info.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                        if info.st_ino in seen:
                            continue
                        seen.add(info.st_ino)
                    size += info.st_blocks * 512
                    inodes += 1
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError:
            continue
    return DiskAmount(size, inodes)
