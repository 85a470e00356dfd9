"""What is known of a driver that was brought: how to start it, what it says of itself, how it is laid out."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from volplane.api.core import Secret
from volplane.api.meta import Resource
from volplane.api.storage import CSIDriver, StorageClass
from volplane.cluster.errors import CannotStart

SIDECARS = ("provisioner", "attacher", "resizer", "snapshotter", "registrar", "liveness")


class InvalidDriver(CannotStart):
    """A driver that cannot be run as it is described; says which part of it, and why."""


class DeploymentShape(StrEnum):
    """Where instances of a driver run."""

    AUTO = "auto"  # by what the driver says of itself
    CENTRAL = "central"  # one controller for all, a node service on every node
    PER_NODE = "per-node"  # on every node one instance that is both, and looks after its own volumes
    ONE_NODE = "one-node"  # one instance that is both, on the first node


class Command(Struct, frozen=True):
    """How to start an instance. `$CSI_ENDPOINT` and its like stand for what differs between instances."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    directory: str = "/"


class ExternalDriver(Struct, frozen=True, kw_only=True):
    controller: Command | None = None
    node: Command | None = None
    name: str = ""  # the CSI plugin's name; "" until it was asked
    driver: CSIDriver | None = None
    classes: tuple[StorageClass, ...] = ()
    snapshot_classes: tuple[Resource, ...] = ()
    secrets: tuple[Secret, ...] = ()
    objects: tuple[Resource, ...] = ()  # whatever else the file brings
    shape: DeploymentShape = DeploymentShape.AUTO
    sidecars: Mapping[str, tuple[str, ...]] = {}  # more flags, by sidecar
    images: Mapping[str, Command] = {}  # programs in the place of images, for `objects`

    @property
    def is_single_program(self) -> bool:
        """One program is controller and node service alike."""
        return self.controller == self.node


class DiscoveredDriver(Struct, frozen=True, kw_only=True):
    """The driver's own answers."""

    name: str
    version: str = ""
    plugin: frozenset[str] = frozenset()  # capabilities, by the protocol's names
    expansion: frozenset[str] = frozenset()  # ONLINE or OFFLINE
    controller: frozenset[str] = frozenset()
    node: frozenset[str] = frozenset()
    node_id: str = ""  # as it called the node that it was asked on
    topology: Mapping[str, str] = {}  # the segments of that node
    asked_as: str = ""  # the $NODE_ID it was asked with
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
        """Growing is the nodes' business alone: no controller has to be asked."""
        return "EXPAND_VOLUME" in self.node and "EXPAND_VOLUME" not in self.controller

    @property
    def snapshots(self) -> bool:
        return "CREATE_DELETE_SNAPSHOT" in self.controller

    @property
    def groups(self) -> bool:
        """Snapshots of several volumes at once."""
        return "GROUP_CONTROLLER_SERVICE" in self.plugin

    @property
    def modifies(self) -> bool:
        return "MODIFY_VOLUME" in self.controller

    @property
    def has_topology(self) -> bool:
        """Volumes are not reachable from everywhere."""
        return "VOLUME_ACCESSIBILITY_CONSTRAINTS" in self.plugin and bool(self.topology)

    @property
    def is_local(self) -> bool:
        """A volume can be used on one node only: the node itself is a segment of the topology."""
        me = {self.asked_as, self.node_id} - {""}
        return self.has_topology and any(value in me for value in self.topology.values())


def resolve_shape(guest: ExternalDriver, facts: DiscoveredDriver) -> DeploymentShape:
    """Where the instances run, if the author has not said. Raises BadGuest."""
    if guest.shape is DeploymentShape.PER_NODE and facts.attaches:
        raise InvalidDriver(
            f"deployment: per-node is not for {facts.name}, which attaches (PUBLISH_UNPUBLISH_VOLUME):"
            f" an attacher asks one controller for all of them; {DeploymentShape.ONE_NODE} has one"
        )
    if guest.shape is not DeploymentShape.AUTO:
        return guest.shape
    if not (facts.is_local and guest.is_single_program):
        return DeploymentShape.CENTRAL
    # Attacher and resizer ask one controller for all volumes. A driver whose volumes are known only on their
    # own node can be asked by them where all of its volumes are on one.
    asked = facts.attaches or (facts.expands and not facts.expands_on_nodes)
    return DeploymentShape.ONE_NODE if asked else DeploymentShape.PER_NODE
