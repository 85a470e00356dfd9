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


class VolumeOperationError(Exception):
    """The volume is not there, and nothing of it was left behind."""


class UncertainProgressError(VolumeOperationError):
    """Something may be there, or may still come to be there."""


class TransientOperationError(VolumeOperationError):
    """Nothing was even tried: the state is what it was before."""


class InfeasibleExpansionError(VolumeOperationError):
    """This size will never be reached."""


class InUseExpansionError(VolumeOperationError):
    """It cannot be done while pods use the volume, and must not keep them from using it."""


class PodVolumeSpec(Struct, frozen=True):
    """One volume of one pod, as the API server describes it."""

    plugin: str
    unique_name: str  # on this node; in volumesInUse if it is attachable
    name: str  # the persistent volume's name, or the volume's name in the pod
    pod: Pod
    source: Volume
    claim: PersistentVolumeClaim | None = None
    volume: PersistentVolume | None = None
    readonly: bool = False
    selinux_label: str = ""  # with which it is mounted

    @property
    def ref(self) -> PodVolumeRef:
        owner = f"pod/{self.pod.namespace}/{self.pod.name}"
        return PodVolumeRef(self.plugin, self.unique_name, self.name, self.pod.uid, owner, self.selinux_label)

    @property
    def fs_group(self) -> int | None:
        """The pod's fsGroup."""
        context = self.pod.spec.security_context
        return context.fs_group if context else None


class PodVolumeRef(Struct, frozen=True):
    """One pod's volume as far as it can be taken down."""

    plugin: str
    unique_name: str
    name: str
    pod: str  # uid
    owner: str = ""  # the pod as the journey knows it: pod/<namespace>/<name>
    selinux_label: str = ""  # with which it was mounted


class StagedVolumeRef(Struct, frozen=True):
    """Something staged once for all pods of a node."""

    plugin: str
    unique_name: str
    name: str = ""  # of the persistent volume, where that is known
    selinux_label: str = ""  # with which it was staged


class VolumeMetrics(Struct, frozen=True):
    """How full a volume is, as far as its driver says so, and whether anything is wrong with it."""

    capacity: int | None = None
    available: int | None = None
    used: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None
    inodes_used: int | None = None
    abnormal: bool | None = None
    message: str = ""


class EventWording(Struct, frozen=True):
    """What users of this kind of volume read in events."""

    operation: str
    stage: str
    publish: str
    failed: str  # the reason of the event


MOUNT_WORDING = EventWording("MountVolume", stage="MountDevice", publish="SetUp", failed="FailedMount")


ReferencedObject = tuple[type[ConfigMap] | type[Secret], str, str]  # kind, namespace, name


class NodeContext(Struct):
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


class VolumePlugin:
    name: ClassVar[str]
    wording: ClassVar[EventWording] = MOUNT_WORDING
    supports_mount_options: ClassVar[bool] = False

    def __init__(self, site: NodeContext) -> None:
        self.context = site

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        raise NotImplementedError

    def unique_name(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        """A volume that is neither attached nor staged belongs to its pod alone."""
        return f"{self.name}/{pod.uid}-{name}"

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        """What the source itself says; the claim's readOnly is the node's to add."""
        return False

    def needs_attach(self, spec: PodVolumeSpec) -> bool:
        return False

    def may_be_attached(self, unique_name: str) -> bool:
        """Whether a volume that was found on disk after a restart may be attached."""
        return False

    def needs_stage(self, spec: PodVolumeSpec) -> bool:
        return False

    def requires_remount(self, spec: PodVolumeSpec) -> bool:
        """Whether a volume that is mounted must be published again from time to time."""
        return False

    async def selinux_label(self, spec: PodVolumeSpec) -> str:
        """The SELinux label that the mount is to have, "" for none. Raises selinux.Conflict."""
        return ""

    def referenced_objects(self, spec: PodVolumeSpec) -> Iterable[ReferencedObject]:
        """The objects whose change makes the content stale."""
        return ()

    def path(self, spec: PodVolumeSpec) -> str:
        """Where the pod's containers find it, on this machine."""
        return self.directory(spec.pod.uid, spec.name)

    async def stage(self, spec: PodVolumeSpec) -> None:
        raise NotImplementedError

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        """`again`: it is mounted and in use; a failure must leave it so."""
        raise NotImplementedError

    def success_messages(self, spec: PodVolumeSpec) -> list[str]:
        """What its user is told when it is there, an event each."""
        return []

    async def requires_node_expansion(self, spec: PodVolumeSpec) -> bool:
        """Whether what is on a disk that has grown is the node's to enlarge."""
        return False

    async def expand(self, spec: PodVolumeSpec, size: int) -> None:
        """What the pod has mounted takes up `size` bytes. Raises Infeasible, NotInUse, or as publish does."""
        raise NotImplementedError

    async def read_metrics(self, spec: PodVolumeSpec) -> VolumeMetrics | None:
        """None if nobody can tell."""
        return None

    async def unpublish(self, place: PodVolumeRef) -> None:
        await self.run_in_thread(remove_volume, self.directory(place.pod, place.name))

    async def unpublish_keeping_data(self, place: PodVolumeRef) -> None:
        """Take the mount away but not what the pod has put there: it will run again."""
        await self.unpublish(place)

    async def unstage(self, device: StagedVolumeRef) -> None:
        raise NotImplementedError

    def forget_pod(self, pod: str) -> None:
        """The pod is gone: what was kept for it in memory may go."""

    # After a restart

    async def reconstruct(self, pod: str, name: str) -> PodVolumeRef:
        """The volume behind a directory of this plugin that an earlier life has left."""
        return PodVolumeRef(self.name, f"{self.name}/{pod}-{name}", name, pod)

    async def find_other_volumes(self) -> list[tuple[str, str]]:
        """(pod, volume) of what is found elsewhere than below the pods' `volumes` directories."""
        return []

    async def find_staged_volumes(self) -> list[StagedVolumeRef]:
        return []

    # Conveniences

    def directory(self, pod: str, name: str) -> str:
        return self.context.paths.real(self.context.paths.volume(pod, self.name, name))

    @property
    def run_in_thread(self) -> Callable[..., Awaitable[object]]:
        return self.context.host.call


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
        raise UncertainProgressError(f"{below[0].target} is still mounted")
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
    remove_empty_directories(os.path.dirname(path))


def remove_empty_directories(*paths: str) -> None:
    for path in paths:
        with suppress(OSError):
            os.rmdir(path)
