"""The capabilities of a driver, under the names that cases use in `needs`."""

from __future__ import annotations

from msgspec import Struct, structs

from volplane.csi import v1
from volplane.csi.client import Caller
from volplane.csi.outcome import CallError, Code

# Why a case is skipped, by the missing need.
CAPABILITY_NAMES = {
    "controller": "it has no controller service",
    "create": "CREATE_DELETE_VOLUME is not among its controller capabilities",
    "provision": "CREATE_DELETE_VOLUME is not among its controller capabilities",
    "attach": "PUBLISH_UNPUBLISH_VOLUME is not among its controller capabilities",
    "attach-readonly": "PUBLISH_READONLY is not among its controller capabilities",
    "list": "LIST_VOLUMES is not among its controller capabilities",
    "get": "GET_VOLUME is not among its controller capabilities",
    "capacity": "GET_CAPACITY is not among its controller capabilities",
    "snapshot": "CREATE_DELETE_SNAPSHOT is not among its controller capabilities",
    "list-snapshots": "LIST_SNAPSHOTS is not among its controller capabilities",
    "clone": "CLONE_VOLUME is not among its controller capabilities",
    "expand": "EXPAND_VOLUME is not among its controller or node capabilities",
    "expand-controller": "EXPAND_VOLUME is not among its controller capabilities",
    "expand-online": "its plugin capabilities do not include expansion of volumes in use (ONLINE)",
    "expand-node": "EXPAND_VOLUME is not among its node capabilities",
    "expand-claim": "claims cannot be expanded: their StorageClass does not have allowVolumeExpansion: true",
    "modify": "MODIFY_VOLUME is not among its controller capabilities",
    "modify-parameters": "MODIFY_VOLUME is missing, or no parameters were given (--mutable-parameter)",
    "published-nodes": "LIST_VOLUMES_PUBLISHED_NODES is not among its controller capabilities",
    "condition-controller": "VOLUME_CONDITION is not among its controller capabilities",
    "get-snapshot": "GET_SNAPSHOT is not among its controller capabilities",
    "group-snapshot": "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT is not among its group capabilities",
    "metadata": "SNAPSHOT_METADATA_SERVICE is not among its plugin capabilities",
    "stage": "STAGE_UNSTAGE_VOLUME is not among its node capabilities",
    "stats": "GET_VOLUME_STATS is not among its node capabilities",
    "condition": "VOLUME_CONDITION is not among its node capabilities",
    "mount-group": "VOLUME_MOUNT_GROUP is not among its node capabilities",
    "single-writer": "SINGLE_NODE_MULTI_WRITER is not among its capabilities",
    "topology": "VOLUME_ACCESSIBILITY_CONSTRAINTS is not among its plugin capabilities",
    "secrets": "no secrets were given (--secret)",
    "nodes": "it runs on one node only",
    "block": "CreateVolume refuses raw devices",
    "shared": "its volumes cannot be used on several nodes at once",
    "inline": "it has no inline volumes (Ephemeral)",
}


class DriverCapabilities(Struct):
    name: str = ""
    version: str = ""
    plugin: set[str] = set()
    controller: set[str] = set()
    node: set[str] = set()
    group: set[str] = set()
    expansion: str = ""  # ONLINE, OFFLINE
    # Found in other ways: secrets, mutable, nodes, block, shared, inline, given, expand-claim.
    probed: set[str] = set()

    def has(self, need: str) -> bool:
        return need in self.all_names()

    def all_names(self) -> set[str]:
        c, n, p = self.controller, self.node, self.plugin
        found = {
            "controller": "CONTROLLER_SERVICE" in p,
            "create": "CREATE_DELETE_VOLUME" in c,
            "provision": "CREATE_DELETE_VOLUME" in c,
            "attach": "PUBLISH_UNPUBLISH_VOLUME" in c,
            "attach-readonly": "PUBLISH_READONLY" in c,
            "list": "LIST_VOLUMES" in c,
            "get": "GET_VOLUME" in c,
            "capacity": "GET_CAPACITY" in c,
            "snapshot": "CREATE_DELETE_SNAPSHOT" in c,
            "list-snapshots": "LIST_SNAPSHOTS" in c,
            "clone": "CLONE_VOLUME" in c,
            "expand": "EXPAND_VOLUME" in c | n,
            "expand-controller": "EXPAND_VOLUME" in c,
            "expand-online": self.expansion == "ONLINE" and "EXPAND_VOLUME" in c | n,
            "expand-node": "EXPAND_VOLUME" in n,
            "modify": "MODIFY_VOLUME" in c,
            "modify-parameters": "MODIFY_VOLUME" in c and "mutable" in self.probed,
            "published-nodes": "LIST_VOLUMES_PUBLISHED_NODES" in c,
            "condition-controller": "VOLUME_CONDITION" in c,
            "get-snapshot": "GET_SNAPSHOT" in c,
            "group-snapshot": "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT" in self.group,
            "metadata": "SNAPSHOT_METADATA_SERVICE" in p,
            "stage": "STAGE_UNSTAGE_VOLUME" in n,
            "stats": "GET_VOLUME_STATS" in n,
            "condition": "VOLUME_CONDITION" in n,
            "mount-group": "VOLUME_MOUNT_GROUP" in n,
            "single-writer": "SINGLE_NODE_MULTI_WRITER" in c and "SINGLE_NODE_MULTI_WRITER" in n,
            "topology": "VOLUME_ACCESSIBILITY_CONSTRAINTS" in p,
        }
        return {need for need, holds in found.items() if holds} | self.probed

    def without_staging(self) -> DriverCapabilities:
        """What applies to inline volumes: they are neither attached nor staged, nor known to a controller."""
        kept = self.node - {"STAGE_UNSTAGE_VOLUME", "EXPAND_VOLUME"}
        plugin = self.plugin - {"CONTROLLER_SERVICE"}
        return structs.replace(self, plugin=plugin, controller=set(), group=set(), node=kept)

    def reason_to_skip(self, needs: tuple[str, ...]) -> str:
        """Why a case is skipped; empty if it can run."""
        there = self.all_names()
        if "given" in there:
            there.add("create")  # for cases that need a volume; those that need the call need "provision"
        return next((CAPABILITY_NAMES.get(need, need) for need in needs if need not in there), "")


async def query_driver(controller: Caller, node: Caller, *, timeout: float) -> DriverCapabilities:
    """Ask the driver for its capabilities. Raises CallError if GetPluginInfo or another query fails."""
    info = await node.call("GetPluginInfo", v1.GetPluginInfoRequest(), timeout=timeout)
    made = DriverCapabilities(name=info.name, version=info.vendor_version)
    plugin = await controller.call(
        "GetPluginCapabilities", v1.GetPluginCapabilitiesRequest(), timeout=timeout
    )
    for one in plugin.capabilities:
        if one.HasField("service"):
            made.plugin.add(v1.PluginCapability.Service.Type.Name(one.service.type))
        elif one.HasField("volume_expansion"):
            made.expansion = v1.PluginCapability.VolumeExpansion.Type.Name(one.volume_expansion.type)
    if "CONTROLLER_SERVICE" in made.plugin:
        request = v1.ControllerGetCapabilitiesRequest()
        reply = await controller.call("ControllerGetCapabilities", request, timeout=timeout)
        kinds = v1.ControllerServiceCapability.RPC.Type
        made.controller = {_name(kinds, one.rpc.type) for one in reply.capabilities}
    if "GROUP_CONTROLLER_SERVICE" in made.plugin:
        wanted = v1.GroupControllerGetCapabilitiesRequest()
        reply = await controller.call("GroupControllerGetCapabilities", wanted, timeout=timeout)
        groups = v1.GroupControllerServiceCapability.RPC.Type
        made.group = {_name(groups, one.rpc.type) for one in reply.capabilities}
    try:
        reply = await node.call("NodeGetCapabilities", v1.NodeGetCapabilitiesRequest(), timeout=timeout)
    except CallError as error:
        if error.code is not Code.UNIMPLEMENTED:
            raise
    else:
        made.node = {_name(v1.NodeServiceCapability.RPC.Type, one.rpc.type) for one in reply.capabilities}
    return made


def _name(kinds: object, number: int) -> str:
    """The name of a capability; its number if it is newer than our copy of the specification."""
    try:
        return str(kinds.Name(number))  # type: ignore[attr-defined]
    except ValueError:
        return str(number)
