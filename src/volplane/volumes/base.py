"""What every kind of volume offers the node, and what it is told about the volume.

`Spec` is a wanted volume, resolved from the API; `Place` is a volume that may be there, and holds no more
than the disk can tell after a restart. So whatever makes a volume takes a Spec, and whatever removes one
takes a Place. Every method may run twice: the node repeats what a crash interrupted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import ClassVar

from msgspec import Struct, field

from volplane.api.core import ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Volume
from volplane.client.client import Client
from volplane.host import Host, NodePaths
from volplane.host import mounts as mounting


class VolumeFailure(Exception):
    """The volume is not there, and nothing of it was left behind."""


class Uncertain(VolumeFailure):
    """Something may be there, or may still come to be there."""


class Transient(VolumeFailure):
    """Nothing was even tried: the state is what it was before."""


class Infeasible(VolumeFailure):
    """This size will never be reached."""


class NotInUse(VolumeFailure):
    """It cannot be done while pods use the volume, and must not keep them from using it."""


class Spec(Struct, frozen=True):
    """One volume of one pod, as the API server describes it."""

    plugin: str
    unique: str  # across the node; in volumesInUse where it is attachable
    name: str  # the persistent volume's name, or the volume's name in the pod
    pod: Pod
    source: Volume
    claim: PersistentVolumeClaim | None = None
    volume: PersistentVolume | None = None
    readonly: bool = False
    label: str = ""  # of SELinux, with which it is mounted

    @property
    def place(self) -> Place:
        owner = f"pod/{self.pod.namespace}/{self.pod.name}"
        return Place(self.plugin, self.unique, self.name, self.pod.uid, owner, self.label)

    @property
    def group(self) -> int | None:
        """The pod's fsGroup."""
        context = self.pod.spec.security_context
        return context.fs_group if context else None


class Place(Struct, frozen=True):
    """One pod's volume as far as it can be taken down."""

    plugin: str
    unique: str
    name: str
    pod: str  # uid
    owner: str = ""  # the pod as the journey knows it: pod/<namespace>/<name>
    label: str = ""  # of SELinux, with which it was mounted


class Device(Struct, frozen=True):
    """Something staged once for all pods of a node."""

    plugin: str
    unique: str
    name: str = ""  # of the persistent volume, where that is known
    label: str = ""  # of SELinux, with which it was staged


class Usage(Struct, frozen=True):
    """How full a volume is, as far as its driver says so, and whether anything is wrong with it."""

    capacity: int | None = None
    available: int | None = None
    used: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None
    inodes_used: int | None = None
    abnormal: bool | None = None
    message: str = ""


class Words(Struct, frozen=True):
    """What users of this kind of volume read in events."""

    operation: str
    stage: str
    publish: str
    failed: str  # the reason of the event


MOUNTED = Words("MountVolume", stage="MountDevice", publish="SetUp", failed="FailedMount")


Watched = tuple[type[ConfigMap] | type[Secret], str, str]  # kind, namespace, name


class Site(Struct):
    """The node a plugin works for."""

    node: str
    host: Host
    paths: NodePaths
    client: Client
    allocatable: Callable[[], Mapping[str, str]] = dict
    warn: Callable[[Pod, str, str], None] = lambda pod, reason, message: None  # an event of the pod
    subpaths: set[str] = field(default_factory=set)  # pods that have bind mounts of parts of volumes
    gates: Mapping[str, bool] = {}  # upstream's feature gates, where they differ
    retry_max: float = 122.0  # seconds; the longest pause between two tries
    token_max_age: float = 86_400.0  # at which a token is renewed, however long it lives
    ownership_notice: float = 30.0  # after which a change of ownership is told; then twice as long


class Plugin:
    name: ClassVar[str]
    words: ClassVar[Words] = MOUNTED
    takes_mount_options: ClassVar[bool] = False

    def __init__(self, site: Site) -> None:
        self.site = site

    def owns(self, source: Volume, volume: PersistentVolume | None) -> bool:
        raise NotImplementedError

    def unique(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        """A volume that is neither attached nor staged belongs to its pod alone."""
        return f"{self.name}/{pod.uid}-{name}"

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        """What the source itself says; the claim's readOnly is the node's to add."""
        return False

    def needs_attach(self, spec: Spec) -> bool:
        return False

    def needs_stage(self, spec: Spec) -> bool:
        return False

    def is_refreshed(self, spec: Spec) -> bool:
        """Whether a volume that is mounted must be published again from time to time."""
        return False

    async def label(self, spec: Spec) -> str:
        """The SELinux label that the mount is to have, "" for none. Raises selinux.Conflict."""
        return ""

    def watches(self, spec: Spec) -> Iterable[Watched]:
        """The objects whose change makes the content stale."""
        return ()

    def path(self, spec: Spec) -> str:
        """Where the pod's containers find it, on this machine."""
        return self.directory(spec.pod.uid, spec.name)

    async def stage(self, spec: Spec) -> None:
        raise NotImplementedError

    async def publish(self, spec: Spec, *, again: bool = False) -> None:
        """`again`: it is mounted and in use; a failure must leave it so."""
        raise NotImplementedError

    def told(self, spec: Spec) -> list[str]:
        """What its user is told when it is there, an event each."""
        return []

    async def expands(self, spec: Spec) -> bool:
        """Whether what is on a disk that has grown is the node's to enlarge."""
        return False

    async def expand(self, spec: Spec, size: int) -> None:
        """What the pod has mounted takes up `size` bytes. Raises Infeasible, NotInUse, or as publish does."""
        raise NotImplementedError

    async def usage(self, spec: Spec) -> Usage | None:
        """None if nobody can tell."""
        return None

    async def unpublish(self, place: Place) -> None:
        await self.run(remove_volume, self.directory(place.pod, place.name))

    async def suspend(self, place: Place) -> None:
        """Take the mount away but not what the pod has put there: it will run again."""
        await self.unpublish(place)

    async def unstage(self, device: Device) -> None:
        raise NotImplementedError

    def forget(self, pod: str) -> None:
        """The pod is gone: what was kept for it in memory may go."""

    # After a restart

    async def found(self, pod: str, name: str) -> Place:
        """The volume behind a directory of this plugin that an earlier life has left."""
        return Place(self.name, f"{self.name}/{pod}-{name}", name, pod)

    async def traces(self) -> list[tuple[str, str]]:
        """(pod, volume) of what is found elsewhere than below the pods' `volumes` directories."""
        return []

    async def devices(self) -> list[Device]:
        return []

    # Conveniences

    def directory(self, pod: str, name: str) -> str:
        return self.site.paths.real(self.site.paths.volume(pod, self.name, name))

    @property
    def run(self) -> Callable[..., Awaitable[object]]:
        return self.site.host.call


def make_directory(path: str, mode: int) -> None:
    """With its parents; the mode counts whatever the umask is."""
    os.makedirs(path, exist_ok=True)
    os.chmod(path, mode)


def remove_volume(path: str) -> None:
    """Take a directory and its content away, its own mount included; never through another mount."""
    table = mounting.read_table()
    if table.at(path) is not None:
        mounting.unmount(path)
        table = mounting.read_table()
    if below := table.under(path):
        raise Uncertain(f"{below[0].target} is still mounted")
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
    remove_empty(os.path.dirname(path))


def remove_empty(*paths: str) -> None:
    for path in paths:
        with suppress(OSError):
            os.rmdir(path)
