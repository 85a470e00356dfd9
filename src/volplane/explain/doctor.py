"""A short check: this machine, the rights of this user, and the cluster. Runs on any operating system."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from volplane.api.authorization import (
    ResourceAttributes,
    SelfSubjectAccessReview,
    SelfSubjectAccessReviewSpec,
)
from volplane.api.core import Node
from volplane.api.errors import APIError
from volplane.api.storage import CSIDriver, StorageClass
from volplane.base.user_namespace import try_user_namespace
from volplane.client.client import Client

OLDEST_KERNEL = (5, 12)  # for mount_setattr
OLDEST_PYTHON = (3, 11)
FREE = 1 << 30  # bytes below which a cluster soon creates no disks
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# What `volplane explain` reads: resource and group.
READ = (
    ("nodes", ""), ("pods", ""), ("events", ""), ("persistentvolumes", ""), ("persistentvolumeclaims", ""),
    ("storageclasses", "storage.k8s.io"), ("volumeattachments", "storage.k8s.io"),
    ("csidrivers", "storage.k8s.io"), ("csinodes", "storage.k8s.io"),
)  # fmt: skip


class DoctorArea(StrEnum):
    MACHINE = "machine"
    RIGHTS = "rights"
    CLUSTER = "cluster"


class DoctorCheck(Struct, frozen=True):
    """One check. `advice` says what to do; without it, everything is fine."""

    area: DoctorArea
    text: str
    advice: str = ""
    is_problem: bool = False


def check_machine(directory: str) -> Iterator[DoctorCheck]:
    """`directory`: where clusters are stored."""
    area = DoctorArea.MACHINE
    system, release = platform.system(), platform.release()
    if system != "Linux":
        yield DoctorCheck(
            area,
            f"{system} {release}",
            "clusters run on Linux only; explain, journey and doctor work here with a cluster elsewhere",
        )
        return
    is_old = _read_version(release) < OLDEST_KERNEL
    wanted = ".".join(map(str, OLDEST_KERNEL))
    yield DoctorCheck(area, f"Linux {release}", f"use Linux {wanted} or newer" if is_old else "", is_old)
    is_old = sys.version_info[:2] < OLDEST_PYTHON
    yield DoctorCheck(
        area, f"Python {platform.python_version()}", "use Python 3.11" if is_old else "", is_old
    )
    for program, package in (("mkfs.ext4", "e2fsprogs"), ("kubectl", "kubernetes-client")):
        path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
        missing = f"install it (package {package})" if path is None else ""
        yield DoctorCheck(area, f"{program}: {path or 'not installed'}", missing, bool(missing))
    place = _find_existing(directory)
    free = shutil.disk_usage(place).free
    advice = "free some space: below 256 MiB no disk is created" if free < FREE else ""
    yield DoctorCheck(area, f"{free / FREE:.1f} GiB free in {place}", advice, bool(advice))


def check_rights() -> Iterator[DoctorCheck]:
    area = DoctorArea.RIGHTS
    if platform.system() != "Linux":
        return
    if os.geteuid() != 0:
        if problem := try_user_namespace():
            yield DoctorCheck(area, "not root, and no user namespace", problem, is_problem=True)
        else:
            yield DoctorCheck(
                area,
                "not root: clusters run in a user namespace",
                "volumes are directories (StorageClass efs); for disks, use sudo",
            )
        return
    has_loops = os.path.exists("/dev/loop-control")
    advice = "" if has_loops else "load the module: modprobe loop"
    yield DoctorCheck(area, f"root, {'with' if has_loops else 'no'} loop devices", advice, not has_loops)


async def check_cluster(client: Client) -> Sequence[DoctorCheck]:
    """Raises APIError if the cluster does not answer."""
    area = DoctorArea.CLUSTER
    found = [await _check_access(client)]
    try:
        nodes = await client.list(Node)
        ready = [node for node in nodes if _is_ready(node)]
        advice = "" if len(ready) == len(nodes) and nodes else "volplane explain node/NAME says why"
        found.append(DoctorCheck(area, f"{len(ready)} of {len(nodes)} nodes are ready", advice, bool(advice)))
        drivers = sorted(driver.name for driver in await client.list(CSIDriver))
        advice = "" if drivers else "no volume can be created: install a CSI driver"
        found.append(DoctorCheck(area, f"CSI drivers: {', '.join(drivers) or 'none'}", advice, bool(advice)))
        classes = await client.list(StorageClass)
        default = [each.name for each in classes if each.metadata.annotations.get(DEFAULT_CLASS) == "true"]
        advice = "" if len(default) == 1 else "claims must name a storageClassName"
        found.append(DoctorCheck(area, f"default StorageClass: {', '.join(default) or 'none'}", advice))
    except APIError as error:
        found.append(DoctorCheck(area, f"cannot be read: {error}", "ask for more rights", is_problem=True))
    return found


async def _check_access(client: Client) -> DoctorCheck:
    """Whether this user may read what `explain` needs."""
    denied = []
    for resource, group in READ:
        wanted = ResourceAttributes(verb="list", resource=resource, group=group)
        review = SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resource_attributes=wanted))
        if not (await client.create(review)).status.allowed:
            denied.append(resource)
    if denied:
        text = f"this user may not list {', '.join(denied)}"
        return DoctorCheck(DoctorArea.CLUSTER, text, "ask for a ClusterRole such as view", is_problem=True)
    return DoctorCheck(DoctorArea.CLUSTER, "this user may read what explain needs")


def _is_ready(node: Node) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)


def _read_version(release: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else OLDEST_KERNEL


def _find_existing(directory: str) -> str:
    """The directory, or the nearest one above it that exists."""
    place = os.path.abspath(os.path.expanduser(directory))
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    return place
