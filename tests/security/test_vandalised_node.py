"""A Node object with wrong status fields is corrected, at once or when its node starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NODE, NodeEnv, node_env
from volplane.api.core import Node

pytestmark = pytest.mark.root

STATUS: dict[str, dict[str, Any]] = {
    "nothing is left": {
        "addresses": None,
        "daemonEndpoints": None,
        "capacity": None,
        "allocatable": None,
        "nodeInfo": None,
        "conditions": None,
    },
    "addresses of somebody else": {
        "addresses": [
            {"type": "InternalIP", "address": "192.0.2.6"},
            {"type": "InternalIP", "address": "192.0.2.7"},
            {"type": "ExternalIP", "address": "192.0.2.8"},
            {"type": "Hostname", "address": "another"},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
    },
    "what a node never says": {
        "addresses": [{"type": "ExternalDNS", "address": "another.example"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 65535}},
        "capacity": {"cpu": "4096", "memory": "1Ki", "pods": "0"},
        "allocatable": {"cpu": "4096", "memory": "1Ki", "pods": "0"},
        "volumesInUse": ["kubernetes.io/csi/another^one"],
        "phase": "Terminated",
        "images": [{"names": ["another"], "sizeBytes": 1}],
    },
}
LABELS = {
    "kubernetes.io/hostname": "another",
    "kubernetes.io/os": None,
    "topology.kubernetes.io/zone": "elsewhere",
    "topology.kubernetes.io/region": None,
    "node.kubernetes.io/instance-type": "none",
    "kept.example/label": "theirs",
}


def select_status(node: Node) -> tuple[Any, ...]:
    status = node.status
    return (
        status.addresses,
        status.daemon_endpoints,
        dict(status.capacity),
        dict(status.allocatable),
        status.node_info,
        status.volumes_in_use,
        status.phase,
        status.images,
        {c.type: c.status for c in status.conditions},
    )


async def vandalise(here: NodeEnv, status: dict[str, Any]) -> None:
    await here.client.patch(Node, NODE, merge={"status": status}, subresource="status")
    await here.client.patch(Node, NODE, merge={"metadata": {"labels": LABELS}})


async def is_ready(here: NodeEnv) -> bool:
    node = await here.client.get(Node, NODE)
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)


@pytest.mark.parametrize("name", STATUS)
async def test_a_node_that_starts_restores_its_addresses_ports_and_labels(name: str) -> None:
    async with node_env() as here:
        await here.start()
        await until(lambda: is_ready(here))
        good = await here.client.get(Node, NODE)
        assert good.status.addresses
        await here.stop()
        await vandalise(here, STATUS[name])
        await here.start()
        await until(lambda: is_ready(here))

        async def is_restored() -> bool:
            return select_status(await here.client.get(Node, NODE)) == select_status(good)

        try:
            await until(is_restored, 10)
        except TimeoutError:
            assert select_status(await here.client.get(Node, NODE)) == select_status(good)
        labels = (await here.client.get(Node, NODE)).metadata.labels
        assert labels == {**good.metadata.labels, "kept.example/label": "theirs"}


async def test_a_node_that_runs_restores_its_addresses_and_its_port_at_once() -> None:
    async with node_env() as here:
        await here.start()
        await until(lambda: is_ready(here))
        good = (await here.client.get(Node, NODE)).status
        for status in STATUS.values():
            await vandalise(here, status)

            async def is_restored() -> bool:
                now = (await here.client.get(Node, NODE)).status
                return set(good.addresses) <= set(now.addresses) and (
                    good.daemon_endpoints == now.daemon_endpoints
                )

            await until(is_restored, 10)
