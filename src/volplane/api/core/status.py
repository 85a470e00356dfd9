"""Container status, as the kubelet reports it."""

from collections.abc import Mapping
from typing import Annotated

from volplane.api.core.container import ResourceRequirements
from volplane.api.object import Object, Quantity, Time, field, map_list, merge, no_omitempty


class ContainerStateWaiting(Object):
    reason: str = ""
    message: str = ""


class ContainerStateRunning(Object):
    started_at: Time = ""


class ContainerStateTerminated(Object):
    exit_code: int = no_omitempty(factory=int)
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: Time = ""
    finished_at: Time = ""
    container_id: str = field(name="containerID", default="")


class ContainerState(Object):
    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class VolumeMountStatus(Object):
    name: str = no_omitempty(factory=str)
    mount_path: str = no_omitempty(factory=str)
    read_only: bool = False
    recursive_read_only: str | None = None


class LinuxContainerUser(Object):
    uid: int = no_omitempty(factory=int)
    gid: int = no_omitempty(factory=int)
    supplemental_groups: tuple[int, ...] = ()


class ContainerUser(Object):
    linux: LinuxContainerUser | None = None


class ResourceHealth(Object):
    resource_id: str = no_omitempty(factory=str, name="resourceID")
    health: str = ""


class ResourceStatus(Object):
    name: str = no_omitempty(factory=str)
    resources: Annotated[tuple[ResourceHealth, ...], map_list("resourceID")] = ()


class ContainerStatus(Object):
    name: str = no_omitempty(factory=str)
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool = no_omitempty(factory=bool)
    restart_count: int = no_omitempty(factory=int)
    image: str = no_omitempty(factory=str)
    image_id: str = no_omitempty(factory=str, name="imageID")
    container_id: str = field(name="containerID", default="")
    started: bool | None = None
    allocated_resources: Mapping[str, Quantity] = {}
    resources: ResourceRequirements | None = None
    volume_mounts: Annotated[tuple[VolumeMountStatus, ...], merge("mountPath")] = ()
    user: ContainerUser | None = None
    allocated_resources_status: Annotated[tuple[ResourceStatus, ...], merge("name")] = ()
    stop_signal: str | None = None
