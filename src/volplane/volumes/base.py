"""The interface of volume plugins, and the values that the volume manager passes to them.

A `PodVolumeSpec` is a volume that a pod needs, as resolved from the API. A `PodVolumeRef` or
`StagedVolumeRef` is a volume that may be mounted, with no more than the disk shows after a restart. So
methods that mount take a spec, and methods that unmount take a ref. Every method may be called twice: the
kubelet repeats what a crash interrupted.
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
from volplane.host import DeviceDirectory, Host, NodePaths
from volplane.host import mounts as mounting


class VolumeOperationError(Exception):
    """The operation failed for good, and nothing is left behind."""


class UncertainProgressError(VolumeOperationError):
    """The operation may still be running, or may have left something behind."""


class TransientOperationError(VolumeOperationError):
    """The operation was not started: nothing has changed."""


class NotAttachedError(TransientOperationError):
    """The volume is not attached to this node; reported as WaitForAttach."""


class InfeasibleExpansionError(VolumeOperationError):
    """The volume cannot be expanded to this size."""


class InUseExpansionError(VolumeOperationError):
    """The volume cannot be expanded while pods use it. That must not keep pods from using it."""


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
    device_path: str = ""  # where it is attached, if its driver reports it

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
    """One pod's volume: what is needed to unmount it."""

    plugin: str
    unique_name: str
    name: str
    pod: str  # uid
    owner: str = ""  # the pod as traces name it: pod/<namespace>/<name>
    selinux_label: str = ""  # with which it was mounted


class StagedVolumeRef(Struct, frozen=True):
    """A volume that is staged once for all pods of a node."""

    plugin: str
    unique_name: str
    name: str = ""  # of the persistent volume, where that is known
    selinux_label: str = ""  # with which it was staged


class VolumeMetrics(Struct, frozen=True):
    """Usage and health of a volume as its driver reports them; None: not reported."""

    capacity: int | None = None
    available: int | None = None
    used: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None
    inodes_used: int | None = None
    abnormal: bool | None = None
    message: str = ""


class EventWording(Struct, frozen=True):
    """The words for this kind of volume in events."""

    operation: str
    stage: str
    publish: str
    failed: str  # the reason of the event


MOUNT_WORDING = EventWording("MountVolume", stage="MountDevice", publish="SetUp", failed="FailedMount")
MAP_WORDING = EventWording("MapVolume", stage="SetUpDevice", publish="MapPodDevice", failed="FailedMapVolume")


ReferencedObject = tuple[type[ConfigMap] | type[Secret], str, str]  # kind, namespace, name


class NodeContext(Struct):
    """What a plugin may use of its node."""

    node: str
    host: Host
    paths: NodePaths
    client: Client
    allocatable: Callable[[], Mapping[str, str]] = dict
    warn: Callable[[Pod, str, str], None] = lambda pod, reason, message: None  # records an event of the pod
    subpaths: set[str] = field(default_factory=set)  # uids of pods with subPath mounts
    gates: Mapping[str, bool] = {}  # feature gates that differ from their default
    retry_max: float = 122.0  # seconds; the longest backoff
    token_max_age: float = 86_400.0  # seconds after which a token is renewed, however long it is valid
    ownership_notice: float = 30.0  # seconds before an event reports a slow ownership change
    own_devices: DeviceDirectory | None = None
    has_container_runtime: bool = False  # that pulls images

    @property
    def devices(self) -> DeviceDirectory:
        """The node's /dev."""
        if self.own_devices is None:
            self.own_devices = DeviceDirectory(self.host, self.paths)
        return self.own_devices


class VolumePlugin:
    """One kind of volume. `publish` and `unpublish` are called for each pod.

    `stage` and `unstage` are called once for all pods, and only if `needs_stage`. Errors are
    `VolumeOperationError` (final), `UncertainProgressError` or `TransientOperationError`; the volume manager
    decides by them what may be mounted.
    """

    name: str
    wording: ClassVar[EventWording] = MOUNT_WORDING
    supports_mount_options: ClassVar[bool] = False
    runtime_creates_path: ClassVar[bool] = False  # a missing path is a new directory when a container starts
    attaches_from_node: ClassVar[bool] = False  # has `attach` and `detach`
    calls_driver: ClassVar[bool] = False  # a driver, perhaps in a pod of this node, mounts and unmounts

    def __init__(self, context: NodeContext) -> None:
        self.context = context

    # --- which volumes

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        """Whether the plugin is for this volume of a pod, or for this persistent volume behind its claim."""
        raise NotImplementedError

    def unique_name(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        """The name of the volume on this node. Without attach and stage each pod has a volume of its own."""
        return f"{self.name}/{pod.uid}-{name}"

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        """Whether the source says so. The readOnly of a claim's reference is added by the caller."""
        return False

    def needs_attach(self, spec: PodVolumeSpec) -> bool:
        return False

    def may_be_attached(self, unique_name: str) -> bool:
        """Whether a volume that was found on disk after a restart may be attached."""
        return False

    def may_use_driver(self, unique_name: str, driver: str) -> bool:
        """Whether the volume may belong to a driver that has just been registered."""
        return False

    def needs_stage(self, spec: PodVolumeSpec) -> bool:
        return False

    def requires_remount(self, spec: PodVolumeSpec) -> bool:
        """Whether a mounted volume must be published again from time to time."""
        return False

    async def selinux_label(self, spec: PodVolumeSpec) -> str:
        """The SELinux label of the mount, "" for none. Raises SELinuxLabelConflict."""
        return ""

    def referenced_objects(self, spec: PodVolumeSpec) -> Iterable[ReferencedObject]:
        """The ConfigMaps and Secrets that the volume shows: it is published again when they change."""
        return ()

    def path(self, spec: PodVolumeSpec) -> str:
        """The path on this machine that is mounted into the pod's containers."""
        return self.directory(spec.pod.uid, spec.name)

    # --- attach, where the kubelet does it itself (--enable-controller-attach-detach=false)

    async def attach(self, spec: PodVolumeSpec) -> str:
        """Attach the volume to this node and return its device path, "" if there is none."""
        raise NotImplementedError

    async def detach(self, device: StagedVolumeRef) -> None:
        raise NotImplementedError

    async def find_attached_volumes(self) -> list[StagedVolumeRef]:
        """Volumes that `attach` was called for before a restart."""
        return []

    # --- mount

    async def stage(self, spec: PodVolumeSpec) -> None:
        raise NotImplementedError

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        """`again`: the pod uses the mount already, and keeps it if this fails."""
        raise NotImplementedError

    def success_messages(self, spec: PodVolumeSpec) -> list[str]:
        """Texts of the events after a mount."""
        return []

    async def requires_node_expansion(self, spec: PodVolumeSpec) -> bool:
        """Whether the node has to expand the volume after its disk has grown."""
        return False

    async def expand(self, spec: PodVolumeSpec, size: int) -> None:
        """Expand what the pod has mounted to `size` bytes.

        Raises InfeasibleExpansionError, InUseExpansionError, or what `publish` raises.
        """
        raise NotImplementedError

    async def read_metrics(self, spec: PodVolumeSpec) -> VolumeMetrics | None:
        """None if the driver does not report them."""
        return None

    # --- unmount

    async def unpublish(self, ref: PodVolumeRef) -> None:
        await self.run_in_thread(remove_volume, self.directory(ref.pod, ref.name))

    async def unpublish_keeping_data(self, ref: PodVolumeRef) -> None:
        """Unmount, but keep what the pod has written: it will run again."""
        await self.unpublish(ref)

    async def unstage(self, device: StagedVolumeRef) -> None:
        raise NotImplementedError

    def forget_pod(self, pod: str) -> None:
        """Drop what is kept in memory for the pod."""

    # --- after a restart

    async def reconstruct(self, pod: str, name: str) -> PodVolumeRef:
        """The volume behind a directory that was left before the restart."""
        return PodVolumeRef(self.name, f"{self.name}/{pod}-{name}", name, pod)

    async def find_other_volumes(self) -> list[tuple[str, str]]:
        """(pod, volume) of mounts that leave no directory below the pods' `volumes` directories."""
        return []

    async def find_staged_volumes(self) -> list[StagedVolumeRef]:
        return []

    # --- helpers

    def directory(self, pod: str, name: str) -> str:
        return self.context.paths.real(self.context.paths.volume(pod, self.name, name))

    @property
    def run_in_thread(self) -> Callable[..., Awaitable[object]]:
        return self.context.host.call


def check_no_backsteps(path: str, prefix: str) -> None:
    """Raises VolumeOperationError with this prefix if the path contains ".."."""
    if ".." in path.split("/"):
        raise VolumeOperationError(f"{prefix} must not contain '..'")


def make_directory(path: str, mode: int) -> None:
    """With its parents. The mode does not depend on the umask.

    After a restart a volume may be mounted there: its own root keeps its mode.
    """
    os.makedirs(path, exist_ok=True)
    if not mounting.is_mount(path):
        os.chmod(path, mode)


def remove_volume(path: str) -> None:
    """Remove a directory with its content and its own mount; never through another mount."""
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
