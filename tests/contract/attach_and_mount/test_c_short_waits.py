"""Sections C and G: the rules of test_c_long_waits on a real socket, their minutes set by flag."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.contract.attach_and_mount.test_c_limits import Shrinking, count, refuse_attach
from tests.loops.inprocess import until
from tests.node.node_env import DRIVER, NodeEnv, path_exists, read, unique_name
from tests.support.timing import GRAIN
from volplane.api.codec import convert
from volplane.api.core import Pod
from volplane.api.storage import CSIDriver
from volplane.base import clock
from volplane.csi.outcome import CallError, Code
from volplane.host import mounts

pytestmark = pytest.mark.root

TIMEOUT, FREQUENCY, LONGEST, AGE = 0.5, 0.5, 0.7, 0.6
TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"


class Gate:
    """A hook: calls wait in front of it until it is open."""

    def __init__(self) -> None:
        self.entered, self.open = asyncio.Event(), asyncio.Event()
        self.inside = self.most = 0

    async def __call__(self, request: Any) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        await self.open.wait()
        self.inside -= 1


async def ready(here: NodeEnv, **settings: Any) -> None:
    await here.start(**settings)
    await here.start_driver()
    await here.wait_until_registered()
    await here.volume()


async def until_called(here: NodeEnv, name: str, times: int) -> None:
    async def often() -> bool:
        return here.disks.count_calls()[name] >= times

    await until(often, 60)


async def is_out_of_use(here: NodeEnv) -> None:
    async def unused() -> bool:
        return not await here.in_use()

    await until(unused, 60)


async def test_nodepublish_times_out_and_the_driver_finishes_after_the_pod_is_deleted() -> None:
    async with node_world() as here:
        await ready(here, csi_timeout=TIMEOUT)
        here.disks.hooks["publish"] = gate = Gate()
        pod = await here.pod(claim="data")
        target = here.paths.real(here.paths.csi_target(pod.uid, "pv-data"))
        await here.wait_for_event("DeadlineExceeded")
        assert path_exists(here.paths.real(here.paths.csi_data(pod.uid, "pv-data")))  # kept: nobody knows
        await here.delete()
        gate.open.set()
        await here.wait_for_phase("gone")
        await is_out_of_use(here)
        order = [name for name, _ in here.disks.calls]
        assert order.index("unpublish") > order.index("publish")
        assert order[-1] == "unstage"
        assert not mounts.is_mount(target)
        assert here.list_mounts() == []


async def test_nodeunpublish_that_outlasts_its_time_has_no_parallel_duplicate() -> None:
    async with node_world() as here:
        await ready(here, csi_timeout=TIMEOUT)
        await here.pod(claim="data")
        await here.wait_until_ready()
        here.disks.hooks["unpublish"] = gate = Gate()
        await here.delete()
        await gate.entered.wait()

        async def given_up() -> bool:
            assert here.role is not None
            return any("DeadlineExceeded" in w.why for w in here.role.wait_reports())

        await until(given_up, 60)
        await asyncio.sleep(2 * TIMEOUT)  # the next try has begun
        assert await here.phase() != "gone"
        assert await here.in_use() == [unique_name()]
        gate.open.set()
        await here.wait_for_phase("gone")
        await is_out_of_use(here)
        assert gate.most == 1
        assert here.disks.count_calls()["unstage"] == 1


async def test_nodeunpublish_that_fails_is_repeated_after_500_ms_and_then_no_later_than_the_flag_says() -> (
    None
):
    async with node_world() as here:
        await ready(here, volume_retry_interval_max=LONGEST)
        await here.pod(claim="data")
        await here.wait_until_ready()

        async def refuse(request: Any) -> None:
            raise CallError(Code.NOT_FOUND, "not here")

        here.disks.hooks["unpublish"] = refuse
        await here.delete()
        left: list[float] = []  # until the next try, as often as somebody looks

        async def often() -> bool:
            assert here.role is not None
            mine = [w.next_try for w in here.role.wait_reports() if w.key == unique_name() and w.next_try]
            left.extend((next_try - clock.wall()).total_seconds() for next_try in mine)
            return here.disks.count_calls()["unpublish"] >= 5

        await until(often, 60)
        first, *others = here.disks.seconds_between_calls("unpublish")
        assert first > 0.5 - GRAIN
        assert min(others) > LONGEST - GRAIN
        assert max(left) <= LONGEST
        assert (await here.client.get(Pod, "app", "default")).is_deleting
        assert await here.in_use() == [unique_name()]
        del here.disks.hooks["unpublish"]
        await here.wait_for_phase("gone")


async def test_a_mount_and_an_unmount_that_both_fail_pause_each_for_itself() -> None:
    """Two pods share a volume of a driver that is not well; its misery is not made worse."""
    async with node_world() as here:
        await ready(here)
        await here.pod("a", claim="data")
        await here.wait_until_ready("a")

        async def refuse(request: Any) -> None:
            raise CallError(Code.INTERNAL, "not well")

        here.disks.hooks["publish"] = here.disks.hooks["unpublish"] = refuse
        await here.delete("a")
        await here.pod("b", claim="data")
        await until_called(here, "unpublish", 3)
        await until_called(here, "publish", 4)
        for first, second in (
            here.disks.seconds_between_calls("unpublish")[:2],
            here.disks.seconds_between_calls("publish")[1:3],
        ):
            assert first > 0.5 - GRAIN
            assert second > 1.0 - GRAIN
        here.disks.hooks.clear()
        await here.wait_until_ready("b")
        await here.wait_for_phase("gone", "a")


async def test_requires_republish_each_time_that_the_flag_says() -> None:
    async with node_world() as here:
        spec = {"requiresRepublish": True, "tokenRequests": [{"audience": "vault", "expirationSeconds": 600}]}
        await here.client.create(convert(CSIDriver, {"metadata": {"name": DRIVER}, "spec": spec}))
        begun = clock.now()
        await ready(here, sync_frequency=FREQUENCY)
        await here.pod(claim="data")
        await here.wait_until_ready()
        await until_called(here, "publish", 5)
        assert here.disks.call_times("publish")[4] - begun > 4 * FREQUENCY - GRAIN  # once, and in four rounds
        for name, request in here.disks.calls:
            if name == "publish":
                assert json.loads(request.volume_context[TOKENS])["vault"]["token"]
        assert here.disks.count_calls()["unpublish"] == 0


async def test_tokens_renewed_at_the_age_that_the_flag_says() -> None:
    """Those that a driver is given, and the one in a file."""
    async with node_world() as here:
        spec = {"requiresRepublish": True, "tokenRequests": [{"audience": "vault", "expirationSeconds": 600}]}
        await here.client.create(convert(CSIDriver, {"metadata": {"name": DRIVER}, "spec": spec}))
        await ready(here, sync_frequency=0.1, token_max_age=AGE)
        begun = clock.now()
        source = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
        pod = await here.pod(
            claim="data",
            volumes=[{"name": "mine", "projected": {"sources": [source]}}],
            mounts=[{"name": "mine", "mountPath": "/mine"}],
        )
        await here.wait_until_ready()
        file = here.paths.real(here.paths.volume(pod.uid, "kubernetes.io/projected", "mine")) + "/token"
        first = read(file)

        async def renewed() -> bool:
            return len(given(here)) >= 3 and read(file) != first

        await until(renewed, 60)
        third = list(given(here).values())[2]
        assert third - begun > 2 * 0.9 * AGE - GRAIN  # spread over the last tenth
        assert here.disks.count_calls()["unpublish"] == 0


def given(here: NodeEnv) -> dict[str, float]:
    """Each token that the driver has got, with the moment at which it got it first."""
    found: dict[str, float] = {}
    requests = [r for name, r in here.disks.calls if name == "publish"]
    for request, moment in zip(requests, here.disks.call_times("publish"), strict=True):
        found.setdefault(json.loads(request.volume_context[TOKENS])["vault"]["token"], moment)
    return found


async def test_a_pod_whose_attach_is_exhausted_is_rejected_and_the_limit_read_again_and_periodically() -> (
    None
):
    """The API has no shorter period than ten seconds."""
    async with node_world() as here:
        spec = {"attachRequired": True, "nodeAllocatableUpdatePeriodSeconds": 10}
        await here.client.create(convert(CSIDriver, {"metadata": {"name": DRIVER}, "spec": spec}))
        here.disks = disks = Shrinking(here.paths)
        await here.start(pod_mount_timeout=TIMEOUT)
        await here.start_driver()
        await here.wait_until_registered()
        assert await count(here) == 5
        disks.limit = 2
        await here.volume(attached=False)
        await refuse_attach(here, Code.RESOURCE_EXHAUSTED)
        await here.pod(claim="data")
        await here.wait_for_phase("Failed")
        pod = await here.client.get(Pod, "app", "default")
        assert pod.status.reason == "VolumeAttachmentLimitExceeded"
        assert await count(here) == 2
        disks.limit = 3

        async def asked_again() -> bool:
            return await count(here) == 3

        await until(asked_again, 60)
        assert disks.call_times("info")[-1] - disks.call_times("info")[0] > 10 - GRAIN
