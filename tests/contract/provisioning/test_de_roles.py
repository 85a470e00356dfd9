"""The roles of expansion and snapshots as upstream's: leases, where events come from, metrics, flags."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.provisioning import snapping
from tests.contract.provisioning.operations_env import virtual
from volplane.api.coordination import Lease
from volplane.api.core import Event
from volplane.base import metrics
from volplane.base.settings import flags
from volplane.controllers.snapshot import role
from volplane.loops.controller import Unsupported
from volplane.sidecars.resizer import service as resizer
from volplane.sidecars.snapshotter import service as snapshotter

pytestmark = pytest.mark.virtual

LEADING: dict[str, Any] = {"leader_election": True, "leader_election_namespace": "default"}


async def test_each_role_leads_by_the_lease_that_upstream_uses() -> None:
    async with (
        virtual("expand", "snapshots") as env,
        env.sidecar(resizer.run, resizer.ResizerOptions(**LEADING)),
        snapping.roles(env, controller=LEADING, sidecar=LEADING),
    ):
        await asyncio.sleep(5)
        leases = {lease.name for lease in await env.client.list(Lease, "default")}
    assert leases == {
        "external-resizer-test-csi-example-com",
        "external-snapshotter-leader-test-csi-example-com",
        "snapshot-controller-leader",
    }


async def test_events_come_from_where_upstreams_come_from() -> None:
    async with virtual("expand", "snapshots") as env:
        await snapping.snapshot_class(env)
        async with env.sidecar(resizer.run, resizer.ResizerOptions()), snapping.roles(env):
            env.driver.ready_after = 1
            await env.bound()
            await env.ask(size="2Gi")
            await snapping.take(env)
            await snapping.ready(env)
            await env.said("Resizing")
            await env.said("SnapshotReady", "snap")
            reported = {e.reason: e.source.component for e in await env.client.list(Event)}
    assert reported["Resizing"] == "external-resizer test.csi.example.com"
    assert reported["SnapshotReady"] == "snapshot-controller"


async def test_operations_are_measured_under_upstreams_names() -> None:
    async with virtual("snapshots") as env:
        await snapping.snapshot_class(env)
        async with snapping.roles(env):
            await env.bound()
            await snapping.take(env)
            await snapping.ready(env)
            await asyncio.sleep(1)
            await snapping.drop(env)
            await snapping.gone(env)
    text = metrics.render().decode()
    for name in ("CreateSnapshot", "CreateSnapshotAndReady", "DeleteSnapshot"):
        labels = f'driver_name="test.csi.example.com",operation_name="{name}",operation_status="success"'
        assert f'operation_total_seconds_count{{{labels},snapshot_type="dynamic"}}' in text
    assert 'method_name="/csi.v1.Controller/CreateSnapshot"' in text
    assert "snapshot_controller_operations_in_flight 0.0" in text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            resizer.ResizerOptions,
            {"timeout": 10.0, "workers": 10, "resync-period": 600.0, "retry-interval-max": 300.0},
        ),
        (
            snapshotter.SnapshotterOptions,
            {
                "timeout": 60.0,
                "worker-threads": 10,
                "resync-period": 900.0,
                "snapshot-name-prefix": "snapshot",
                "groupsnapshot-name-prefix": "groupsnapshot",
                "node-deployment": False,
            },
        ),
        (
            role.SnapshotControllerOptions,
            {
                "worker-threads": 10,
                "resync-period": 900.0,
                "retry-crd-interval-max": 30.0,
                "enable-distributed-snapshotting": False,
                "prevent-volume-mode-conversion": True,
            },
        ),
    ],
)
def test_flags_have_upstreams_defaults(settings: type, expected: dict[str, object]) -> None:
    known = flags(settings)
    assert {name: known[name].default for name in expected} == expected


async def test_alone_the_snapshot_controller_does_not_wait_for_ever_for_its_kinds() -> None:
    async with virtual() as env:
        client = env.client
        with pytest.raises(Unsupported, match="CRDs"):
            await role.run(client, role.SnapshotControllerOptions(retry_crd_interval_max=5.0), identity="me")


async def test_a_snapshot_name_can_be_short() -> None:
    async with virtual("snapshots") as env:
        await snapping.snapshot_class(env)
        short = {"snapshot_name_prefix": "s", "snapshot_name_uuid_length": 8}
        async with snapping.roles(env, sidecar=short):
            await env.bound()
            made = await snapping.take(env)
            await snapping.ready(env)
            (request,) = env.driver.requests_of("CreateSnapshot")
            assert request.name == f"s-{made.uid.replace('-', '')[:8]}"
