"""Removal of the original's state from a node directory that was copied.

Nothing is mounted in a copy and nothing runs. But `cp` descends into mount points, so files of volumes are
where volumes are to be mounted, device nodes lead to the original's disks, and secrets and tokens that were
only in memory are on disk.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from contextlib import suppress

from volplane.node.network import forget_addresses

log = logging.getLogger(__name__)

ASIDE = "copied"
# Written from the API again when their pod starts.
DERIVED = ("configmap", "secret", "projected", "downward-api")


def discard_original_state(root: str, pods: str, plugins: str) -> None:
    """`root` is the node's directory, `pods` and `plugins` those in it."""
    forget_addresses(pods)
    aside = _choose_name(os.path.join(root, ASIDE))
    places = {f"{plugins}/kubernetes.io/csi": f"{aside}/plugins"}
    for uid in _list_directory(pods):
        for kind in DERIVED:
            shutil.rmtree(f"{pods}/{uid}/volumes/kubernetes.io~{kind}", ignore_errors=True)
        places[f"{pods}/{uid}/volumes/kubernetes.io~csi"] = f"{aside}/{uid}/volumes"
        places[f"{pods}/{uid}/volumeDevices"] = f"{aside}/{uid}/volumeDevices"
    for place, target in places.items():
        if not os.path.isdir(place) or _remove_empty(place):
            continue
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        os.rename(place, target)
        log.warning("%s holds files that were copied from mounted volumes: moved to %s", place, target)


def _choose_name(path: str) -> str:
    """A free name: a copy of a copy already has what was moved aside in the first one."""
    names = (path, *(f"{path}-{number}" for number in range(2, 1 << 16)))
    return next(name for name in names if not os.path.lexists(name))


def _remove_empty(place: str) -> bool:
    """Remove metadata and empty files; whether nothing is left."""
    for directory, inner, files in os.walk(place, topdown=False):
        for name in (*inner, *files):
            path = f"{directory}/{name}"
            with suppress(OSError):
                kind = os.lstat(path)
                if stat.S_ISDIR(kind.st_mode):
                    os.rmdir(path)
                elif name == "vol_data.json" or not stat.S_ISREG(kind.st_mode) or not kind.st_size:
                    os.unlink(path)
    with suppress(OSError):
        os.rmdir(place)
    return not os.path.lexists(place)


def _list_directory(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
