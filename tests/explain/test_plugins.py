"""The volume plugins of nodes and controllers, as roles report them and as objects show them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.explain.explain_objects import DRIVER, NOW, at, cluster_of, lease, node, registered_node
from volplane.api import codec
from volplane.api.storage import CSIDriver
from volplane.explain.plugin_table import render_plugins
from volplane.explain.plugins import PluginsReport, report_plugins
from volplane.explain.state_of_world import StateSource
from volplane.explain.wait_reports import RoleAnswers, UnknownRole
from volplane.volumes.plugin_description import PluginDescription, PluginReport

SINCE = NOW.timestamp() - 90
FLEX = PluginDescription(
    "example.com/disks", "FlexVolume", "", ("attach",), True, "", SINCE, "/exec/example.com~disks/disks"
)
BROKEN = PluginDescription(DRIVER, "CSI", "", (), False, "no answer", SINCE, "/run/csi.sock")


def driver(**spec: Any) -> CSIDriver:
    metadata = {"name": DRIVER, "creationTimestamp": at(60)}
    return codec.convert(CSIDriver, {"metadata": metadata, "spec": spec})


async def report(*objects: Any, roles: tuple[PluginReport, ...] = (), only: str = "") -> PluginsReport:
    answers = RoleAnswers(roles, asked=bool(roles))
    return await report_plugins(cluster_of(*objects, node("a")), answers, only)


async def test_a_driver_with_leaders_is_healthy_for_the_controllers() -> None:
    found = await report(
        driver(attachRequired=True, storageCapacity=False, volumeLifecycleModes=["Persistent"]),
        lease("external-attacher-leader-ebs-csi-aws-com", "pod-1"),
        only="controller-manager",
    )
    (controllers,) = found.roles
    assert controllers.source is StateSource.API
    (plugin,) = controllers.plugins
    assert plugin.capabilities == ("attachRequired", "Persistent", "csi-attacher")
    assert (plugin.healthy, plugin.origin, plugin.kind) == (True, "CSIDriver object", "CSI")
    assert "FlexVolume" in controllers.unknown
    assert found.is_healthy


async def test_a_sidecar_without_leader_is_reported() -> None:
    gone = lease("external-attacher-leader-ebs-csi-aws-com", "pod-1", ago=300)
    found = await report(driver(), gone, only="controller-manager")
    (plugin,) = found.roles[0].plugins
    assert plugin.healthy is False
    assert plugin.message.startswith("csi-attacher: pod-1 holds its Lease")
    assert not found.is_healthy
    text = "\n".join(render_plugins(found))
    assert "controller-manager (derived from the API): 1 plugin, 1 not healthy" in text
    assert "    ▶ csi-attacher: pod-1 holds its Lease" in text


async def test_without_leases_nothing_is_known_about_health() -> None:
    found = await report(driver(), *registered_node("a"))
    (plugin,), (there,) = (role.plugins for role in found.roles)
    assert (plugin.healthy, there.healthy, there.since) == (None, None, None)
    assert found.is_healthy
    assert there.origin == "CSINode, node ID i-1"
    assert "only the kubelet" in found.roles[1].unknown


async def test_roles_that_answer_are_believed() -> None:
    roles = (PluginReport("controller-manager", (FLEX,)), PluginReport("node/a", (FLEX, BROKEN)))
    found = await report(driver(), roles=roles)
    controllers, kubelet = found.roles
    assert [plugin.name for plugin in controllers.plugins] == ["example.com/disks", DRIVER]
    assert (controllers.source, controllers.unknown) == (StateSource.ROLE, "")
    assert [plugin.healthy for plugin in kubelet.plugins] == [True, False]
    assert not found.is_healthy
    assert list(render_plugins(await report(roles=roles, only="node/a"))) == [
        "node/a: 2 plugins, 1 not healthy",
        "  NAME               KIND        VERSION  HEALTH   AGE     FROM",
        "  example.com/disks  FlexVolume  -        ok       1m 30s  /exec/example.com~disks/disks",
        "      attach",
        "  ebs.csi.aws.com    CSI         -        failing  1m 30s  /run/csi.sock",
        "    ▶ no answer",
    ]


async def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(UnknownRole, match="node b does not exist; nodes: a"):
        await report(only="node/b")
    with pytest.raises(UnknownRole, match="write controller-manager, or node/NAME"):
        await report(only="scheduler")
