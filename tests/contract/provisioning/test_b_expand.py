"""The expand controller: contract provisioning B."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.provisioning.operations_env import operations_env, sizes
from tests.controllers.objects import claim, volume
from tests.support.timing import rest
from volplane.api.annotations import STORAGE_RESIZER_ANNOTATION
from volplane.api.core import Event, PersistentVolume
from volplane.controllers.expand.controller import Expansion

pytestmark = pytest.mark.both


async def test_a_claim_on_a_csi_volume_is_told_once_that_it_waits() -> None:
    async with operations_env() as env, env.controllers(Expansion):
        await env.bound()
        await env.ask(size="2Gi")
        reported = await env.said("ExternalExpanding")
        assert reported == "waiting for an external controller to expand this PVC"
        await rest(3600)
        assert await env.count("ExternalExpanding") == 1
        (event,) = [e for e in await env.client.list(Event, "default") if e.reason == "ExternalExpanding"]
        assert event.source.component == "volume_expand"


async def test_a_migrated_volume_gets_the_name_of_its_resizer() -> None:
    async with operations_env() as env, env.controllers(Expansion):
        source: dict[str, Any] = {"csi": None, "awsElasticBlockStore": {"volumeID": "vol-1"}}
        await env.client.create(volume("old", cls="fast", **source))
        await env.client.create(claim("data", cls="fast", volumeName="old"))
        await env.until_claim(lambda c: c.status.phase == "Bound")
        await env.ask(size="2Gi")
        await env.until_claim(
            lambda c: c.metadata.annotations.get(STORAGE_RESIZER_ANNOTATION) == "ebs.csi.aws.com"
        )


async def test_a_flex_volume_waits_for_its_node_alone() -> None:
    async with operations_env() as env, env.controllers(Expansion):
        flex: dict[str, Any] = {"csi": None, "flexVolume": {"driver": "example.com/lvm"}}
        await env.client.create(volume("flex", cls="fast", **flex))
        await env.client.create(claim("data", cls="fast", volumeName="flex"))
        await env.until_claim(lambda c: c.status.phase == "Bound")
        await env.ask(size="2Gi")
        grown = await env.until_claim(lambda c: sizes(c)["state"] == "NodeResizePending")
        assert sizes(grown)["allocated"] == "2Gi"
        assert (await env.client.get(PersistentVolume, "flex")).spec.capacity["storage"] == "2Gi"
