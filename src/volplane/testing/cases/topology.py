"""The topology of a volume stays true wherever it is used."""

from __future__ import annotations

from volplane.csi import v1
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.cases.observability import find_entry
from volplane.testing.socket_env import SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

Places = list[dict[str, str]]


@case(
    "topology/after a move",
    "CreateVolume",
    "A volume that was moved to another node is still reported with the topology with which it was created,"
    " and can be accessed from there.",
    "create",
    "topology",
    "nodes",
)
async def after_move(env: SocketEnv) -> None:
    volume = await env.create()
    second, created = env.require_second_node(volume), _places(volume.made)
    if not created:
        raise NotSupported("its volumes have no topology")
    for node in (env.nodes[0], second):
        await volume.attach_stage_publish(node)
        for method, now in (await _reports(env, volume)).items():
            reachable = any(place.items() <= node.topology.items() for place in now)
            require(
                reachable,
                f"the volume is used on {node.id} in {node.topology}, and {method} reports it in {now}",
                section=method,
            )
            require(
                _comparable(now) == _comparable(created),
                f"CreateVolume returned {created}, and {method} returns {now} while it is used on {node.id}",
                section=method,
            )
        await volume.unpublish_unstage_detach(node)


async def _reports(env: SocketEnv, volume: VolumeUnderTest) -> dict[str, Places]:
    """The topology of the volume as each method reports it; without those that report none."""
    again = (await env.controller.call("CreateVolume", volume.request)).volume
    found = {"CreateVolume": again}
    if env.capabilities.has("list"):
        found["ListVolumes"] = (await find_entry(env, volume.id)).volume
    if env.capabilities.has("get"):
        request = v1.ControllerGetVolumeRequest(volume_id=volume.id)
        found["ControllerGetVolume"] = (await env.controller.call("ControllerGetVolume", request)).volume
    return {method: places for method, one in found.items() if (places := _places(one))}


def _places(volume: v1.Volume) -> Places:
    return [dict(place.segments) for place in volume.accessible_topology]


def _comparable(places: Places) -> list[list[tuple[str, str]]]:
    return sorted(sorted(place.items()) for place in places)
