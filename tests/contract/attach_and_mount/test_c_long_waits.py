"""Sections C and G: rules of minutes, in virtual time, with the driver in memory and real mounts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.node.node_env import DRIVER, NodeEnv, path_exists, unique_name
from volplane.api.codec import convert
from volplane.api.core import Pod
from volplane.api.storage import CSIDriver, VolumeAttachment
from volplane.base import clock
from volplane.host import mounts
from volplane.node.options import NodeOptions
from volplane.volumes.projected import ServiceAccountTokens

pytestmark = [pytest.mark.root, pytest.mark.virtual]

MINUTE, DAY = 60.0, 24 * 3600


def slow(seconds: float) -> Callable[[Any], Any]:
    async def wait(request: Any) -> None:
        await asyncio.sleep(seconds)

    return wait


async def ready(here: NodeEnv, **settings: Any) -> None:
    await here.start(**settings)
    here.register_in_memory_driver()


async def until_unused(here: NodeEnv) -> None:
    async with asyncio.timeout(10 * MINUTE):
        while await here.in_use() or await here.phase() != "gone":  # noqa: ASYNC110
            await asyncio.sleep(5)  # a look costs real time, which virtual minutes have little of


def order(here: NodeEnv) -> list[str]:
    return [name for name, _ in here.disks.calls]


async def test_pod_deleted_while_nodestage_hangs_no_other_rpc_until_it_ends_then_nodeunstage() -> None:
    """The call is given up after two minutes; what it did is not known, so it is undone."""
    async with node_world() as here:
        await ready(here)
        await here.volume()
        here.disks.hooks["stage"] = slow(150)
        began = clock.now()
        await here.pod(claim="data")
        await asyncio.sleep(10)
        assert order(here) == ["stage"]
        await here.delete(grace=0)
        await asyncio.sleep(100)
        assert order(here) == ["stage"]
        assert await here.in_use() == [unique_name()]
        (held,) = await here.client.list(VolumeAttachment)
        assert held.status.attached
        await until_unused(here)
        assert 120 <= clock.now() - began <= 300
        assert order(here) == ["stage", "unstage"]
        assert here.list_mounts() == []


async def test_nodepublish_times_out_at_2_min_driver_finishes_at_2_m_30_s_pod_deleted_at_2_m_10_s() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        here.disks.hooks["publish"] = slow(150)
        pod = await here.pod(claim="data")
        target = here.paths.real(here.paths.csi_target(pod.uid, "pv-data"))
        await asyncio.sleep(125)
        assert path_exists(here.paths.real(here.paths.csi_data(pod.uid, "pv-data")))  # kept: nobody knows
        await asyncio.sleep(5)
        await here.delete()
        await until_unused(here)
        assert "unpublish" in order(here)
        assert order(here)[-1] == "unstage"
        assert not mounts.is_mount(target)
        assert here.list_mounts() == []


async def test_nodeunpublish_slow_3_min_no_parallel_duplicate_call() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        await here.pod(claim="data")
        await here.wait_until_ready()
        running = 0
        most = 0

        async def busy(request: Any) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(180)
            running -= 1

        here.disks.hooks["unpublish"] = busy
        await here.delete()
        await asyncio.sleep(170)
        assert await here.phase() != "gone"
        assert await here.in_use() == [unique_name()]
        await until_unused(here)
        assert most == 1
        assert here.disks.count_calls()["unstage"] == 1


async def test_nodeunpublish_failing_for_an_hour_pod_stays_terminating_and_pauses_end_at_2_m_2_s() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        await here.pod(claim="data")
        await here.wait_until_ready()
        times: list[float] = []

        async def refuse(request: Any) -> None:
            times.append(clock.now())
            raise OSError("stuck")

        here.disks.hooks["unpublish"] = refuse
        await here.delete()
        await asyncio.sleep(3600)
        assert (await here.client.get(Pod, "app", "default")).is_deleting
        assert await here.in_use() == [unique_name()]
        pauses = [round(b - a, 1) for a, b in pairwise(times)]
        assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
        assert pauses[-1] == 122.0
        del here.disks.hooks["unpublish"]
        await asyncio.sleep(130)
        assert await here.phase() == "gone"


async def test_requires_republish_next_success_refreshes_tokens_renewed() -> None:
    async with node_world() as here:
        about = {
            "metadata": {"name": DRIVER},
            "spec": {
                "requiresRepublish": True,
                "podInfoOnMount": True,
                "tokenRequests": [{"audience": "vault", "expirationSeconds": 600}],
            },
        }
        await here.client.create(convert(CSIDriver, about))
        await ready(here)
        await here.volume()
        await here.pod(claim="data")
        await here.wait_until_ready()
        await asyncio.sleep(20 * MINUTE)
        requests = [r for name, r in here.disks.calls if name == "publish"]
        assert len(requests) >= 19  # once a minute
        tokens = [
            json.loads(r.volume_context["csi.storage.k8s.io/serviceAccount.tokens"])["vault"]
            for r in requests
        ]
        for pause in _between_new([t["token"] for t in tokens], here.disks.call_times("publish")):
            assert 480 - 10 <= pause < 480 + MINUTE  # four fifths of its life, and the next round
        assert len({t["token"] for t in tokens}) == 3
        assert tokens[0]["expirationTimestamp"] < tokens[-1]["expirationTimestamp"]
        assert requests[0].volume_context["csi.storage.k8s.io/pod.name"] == "app"
        (staged,) = (r for name, r in here.disks.calls if name == "stage")
        assert not any(key.startswith("csi.storage.k8s.io/") for key in staged.volume_context)


def _between_new(values: list[str], moments: list[float]) -> list[float]:
    """Seconds from the first sight of one value to that of the next."""
    seen: dict[str, float] = {}
    for value, moment in zip(values, moments, strict=True):
        seen.setdefault(value, moment)
    return [later - earlier for earlier, later in pairwise(seen.values())]


async def test_tokens_renewed_after_a_day_however_long_they_live() -> None:
    """Without the rest of the node: a day of its heartbeats takes long, even if nobody waits."""
    async with node_world() as here:
        pod = await here.pod()
        tokens = ServiceAccountTokens(here.client, NodeOptions().token_max_age)
        first = await tokens.get(pod, "vault", 30 * DAY)
        await asyncio.sleep(DAY - 11)
        assert await tokens.get(pod, "vault", 30 * DAY) is first
        await asyncio.sleep(11)
        second = await tokens.get(pod, "vault", 30 * DAY)
        assert second.text != first.text
        assert second.expires > first.expires
