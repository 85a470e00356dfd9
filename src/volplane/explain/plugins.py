"""The volume plugins that each node and the controllers know.

A running kubelet tells all of it. Without one, its CSINode lists the CSI drivers that are registered there.
The controllers' side is in the API: CSIDriver objects, and the Leases of the drivers' sidecars.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from volplane.api.core import Node
from volplane.api.storage import CSIDriver, CSINode
from volplane.explain.cluster_state import ClusterState, parse_time
from volplane.explain.sidecars import find_leaders
from volplane.explain.state_of_world import NODE, StateSource, check_role
from volplane.explain.wait_reports import RoleAnswers
from volplane.volumes.plugin_description import CSI, PluginDescription, PluginReport

CONTROLLER_ROLE = "controller-manager"
ONLY_KUBELET = "built-in plugins, FlexVolume drivers, versions and health: only the kubelet knows them"
ONLY_MANAGER = "FlexVolume drivers of the controllers: only the running controller manager knows them"
_FLAGS = ("attach_required", "pod_info_on_mount", "storage_capacity", "requires_republish", "se_linux_mount")


class KnownPlugin(Struct, frozen=True):
    """A plugin as far as it is known."""

    name: str
    kind: str
    origin: str
    version: str = ""
    capabilities: tuple[str, ...] = ()
    healthy: bool | None = None  # None: not known
    message: str = ""  # why it is not healthy
    since: datetime | None = None

    @classmethod
    def of(cls, found: PluginDescription) -> KnownPlugin:
        since = datetime.fromtimestamp(found.since, UTC)
        return cls(
            found.name,
            found.kind,
            found.origin,
            found.version,
            found.capabilities,
            found.healthy,
            found.message,
            since,
        )


class RolePlugins(Struct, frozen=True):
    """The plugins of one role."""

    role: str
    source: StateSource
    plugins: Sequence[KnownPlugin] = ()
    unknown: str = ""  # what could not be determined


class PluginsReport(Struct, frozen=True):
    at: datetime
    roles: Sequence[RolePlugins]
    unknown: Sequence[str] = ()  # kinds that could not be read

    @property
    def is_healthy(self) -> bool:
        return all(plugin.healthy is not False for role in self.roles for plugin in role.plugins)


async def report_plugins(
    state: ClusterState, answers: RoleAnswers[PluginReport], only: str = ""
) -> PluginsReport:
    """All roles, or the one that is asked for. Raises UnknownRole."""
    nodes = sorted(node.name for node in (await state.cache(Node)).all())
    check_role(only, CONTROLLER_ROLE, nodes)
    known = {answer.role: answer.plugins for answer in answers.found}
    roles: list[RolePlugins] = []
    if only in ("", CONTROLLER_ROLE):
        roles.append(await _report_controllers(state, known))
    chosen = (name for name in nodes if only in ("", f"{NODE}{name}"))
    roles += [await _report_node(state, name, known) for name in chosen]
    unread = [f"{kind}: {why}" for kind, why in sorted(state.caches.unread.items())]
    return PluginsReport(state.now, roles, unread)


async def _report_controllers(
    state: ClusterState, known: Mapping[str, Sequence[PluginDescription]]
) -> RolePlugins:
    objects = sorted((await state.cache(CSIDriver)).all(), key=lambda driver: driver.name)
    drivers = [await _describe_object(state, driver) for driver in objects]
    flex = known.get(CONTROLLER_ROLE)
    if flex is None:
        return RolePlugins(CONTROLLER_ROLE, StateSource.API, drivers, ONLY_MANAGER)
    return RolePlugins(CONTROLLER_ROLE, StateSource.ROLE, [*map(KnownPlugin.of, flex), *drivers])


async def _describe_object(state: ClusterState, driver: CSIDriver) -> KnownPlugin:
    """A CSI driver as the controllers see it. Healthy: each of its sidecars that has a Lease has a leader."""
    leaders = await find_leaders(state, driver.name)
    lost = "; ".join(f"{name}: {why}" for name, why in leaders.items() if why)
    return KnownPlugin(
        driver.name,
        CSI,
        "CSIDriver object",
        capabilities=(*_list_features(driver), *leaders),
        healthy=not lost if leaders else None,
        message=lost,
        since=parse_time(driver.metadata.creation_timestamp),
    )


def _list_features(driver: CSIDriver) -> Iterator[str]:
    """The fields of the CSIDriver that are set, as its users write them."""
    wire = dict(zip(driver.spec.__struct_fields__, driver.spec.__struct_encode_fields__, strict=True))
    for field in _FLAGS:
        if getattr(driver.spec, field):
            yield wire[field]
    yield from driver.spec.volume_lifecycle_modes
    if driver.spec.fs_group_policy:
        yield f"fsGroupPolicy={driver.spec.fs_group_policy}"


async def _report_node(
    state: ClusterState, name: str, known: Mapping[str, Sequence[PluginDescription]]
) -> RolePlugins:
    role = f"{NODE}{name}"
    if (plugins := known.get(role)) is not None:
        return RolePlugins(role, StateSource.ROLE, [*map(KnownPlugin.of, plugins)])
    listed = (await state.cache(CSINode)).get(name)
    drivers = listed.spec.drivers if listed is not None else ()
    found = [
        KnownPlugin(driver.name, CSI, f"CSINode, node ID {driver.node_id}")
        for driver in sorted(drivers, key=lambda driver: driver.name)
    ]
    return RolePlugins(role, StateSource.API, found, ONLY_KUBELET)
