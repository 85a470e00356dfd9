"""A user's driver: how to start it, its capabilities, and how it is deployed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from volplane.api.core import Secret
from volplane.api.meta import Resource
from volplane.api.storage import CSIDriver, StorageClass
from volplane.cluster.errors import CannotStart

SIDECARS = ("provisioner", "attacher", "resizer", "snapshotter", "registrar", "liveness")


class InvalidDriver(CannotStart):
    """A driver cannot be run as described; the message says which part, and why."""


class DeploymentShape(StrEnum):
    """Where instances of a driver run."""

    AUTO = "auto"  # from the driver's capabilities
    CENTRAL = "central"  # one controller, and a node service on every node
    PER_NODE = "per-node"  # on every node one instance with both services, for its own volumes
    ONE_NODE = "one-node"  # one instance with both services, on the first node


class ImageCommand(Struct, frozen=True):
    """A driver in its own image, as the container of its manifests is described."""

    image: str
    entrypoint: tuple[str, ...] = ()  # instead of the image's
    privileged: bool = False
    directories: Mapping[str, str] = {}  # path in the container: name of a directory of the instance
    host_paths: Mapping[str, str] = {}  # path in the container: path of the machine


class Command(Struct, frozen=True):
    """How to start an instance. Variables such as `$CSI_ENDPOINT` differ between instances."""

    argv: tuple[str, ...]  # of an image: its arguments
    env: Mapping[str, str] = {}
    directory: str = "/"
    container: ImageCommand | None = None  # to run with a container runtime


class ExternalDriver(Struct, frozen=True, kw_only=True):
    controller: Command | None = None
    node: Command | None = None
    name: str = ""  # name of the CSI plugin; "" until discovered
    driver: CSIDriver | None = None
    classes: tuple[StorageClass, ...] = ()
    snapshot_classes: tuple[Resource, ...] = ()
    secrets: tuple[Secret, ...] = ()
    objects: tuple[Resource, ...] = ()  # other objects of the file
    shape: DeploymentShape = DeploymentShape.AUTO
    sidecars: Mapping[str, tuple[str, ...]] = {}  # additional flags by sidecar
    # Flags of the sidecars in the author's manifests: they replace the defaults.
    deployed_sidecars: Mapping[str, tuple[str, ...]] = {}
    images: Mapping[str, Command] = {}  # programs that replace images of `objects`
    # Of the author's manifests, as they are written: definitions and their objects, configuration, roles.
    resources: tuple[Mapping[str, Any], ...] = ()
    cluster_roles: tuple[str, ...] = ()  # which the manifests give to the driver's account
    environment: Mapping[str, str] = {}  # of the caller, for the driver's containers
    has_account: bool = False  # the manifests start the driver in pods with a service account

    @property
    def runs_images(self) -> bool:
        """Whether it needs a container runtime."""
        return any(command is not None and command.container for command in (self.controller, self.node))

    @property
    def is_single_program(self) -> bool:
        """Whether one program is both controller and node service."""
        return self.controller == self.node


class DiscoveredDriver(Struct, frozen=True, kw_only=True):
    """The answers of a driver to identity and capability calls."""

    name: str
    version: str = ""
    plugin: frozenset[str] = frozenset()  # capabilities, by their names in CSI
    expansion: frozenset[str] = frozenset()  # ONLINE or OFFLINE
    controller: frozenset[str] = frozenset()
    node: frozenset[str] = frozenset()
    node_id: str = ""  # node_id of NodeGetInfo
    topology: Mapping[str, str] = {}  # topology segments of that node
    asked_as: str = ""  # the $NODE_ID it was started with
    max_volumes: int = 0

    @property
    def provisions(self) -> bool:
        return "CREATE_DELETE_VOLUME" in self.controller

    @property
    def attaches(self) -> bool:
        return "PUBLISH_UNPUBLISH_VOLUME" in self.controller

    @property
    def expands(self) -> bool:
        return "EXPAND_VOLUME" in self.controller or "EXPAND_VOLUME" in self.node

    @property
    def expands_on_nodes(self) -> bool:
        """Whether only nodes expand volumes, without a controller call."""
        return "EXPAND_VOLUME" in self.node and "EXPAND_VOLUME" not in self.controller

    @property
    def snapshots(self) -> bool:
        return "CREATE_DELETE_SNAPSHOT" in self.controller

    @property
    def groups(self) -> bool:
        """Whether it supports group snapshots."""
        return "GROUP_CONTROLLER_SERVICE" in self.plugin

    @property
    def modifies(self) -> bool:
        return "MODIFY_VOLUME" in self.controller

    @property
    def has_topology(self) -> bool:
        """Whether volumes are reachable only from some nodes."""
        return "VOLUME_ACCESSIBILITY_CONSTRAINTS" in self.plugin and bool(self.topology)

    @property
    def publishes_capacity(self) -> bool:
        """The scheduler needs capacity only if volumes are bound to a topology."""
        return self.provisions and self.has_topology and "GET_CAPACITY" in self.controller

    @property
    def is_local(self) -> bool:
        """Whether a volume is usable on one node only: the node itself is a topology segment."""
        me = {self.asked_as, self.node_id} - {""}
        return self.has_topology and any(value in me for value in self.topology.values())


def resolve_shape(external: ExternalDriver, facts: DiscoveredDriver) -> DeploymentShape:
    """Where instances run; derived unless given. Raises InvalidDriver."""
    if external.shape is DeploymentShape.PER_NODE and facts.attaches:
        raise InvalidDriver(
            f"deployment: per-node is not possible for {facts.name}, which attaches volumes"
            f" (PUBLISH_UNPUBLISH_VOLUME): an attacher needs one controller; use {DeploymentShape.ONE_NODE}"
        )
    if external.shape is not DeploymentShape.AUTO:
        return external.shape
    if not (facts.is_local and external.is_single_program):
        return DeploymentShape.CENTRAL
    # Attacher and resizer call one controller for all volumes. With a driver that knows only the volumes of
    # its own node, this works if all volumes are on one node.
    asked = facts.attaches or (facts.expands and not facts.expands_on_nodes)
    return DeploymentShape.ONE_NODE if asked else DeploymentShape.PER_NODE
