"""Expansion, as the control plane does it: contract provisioning D.1 and D.2, and D's cases to test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contract.provisioning.scene import GI, Stage, conditions, played, real, sizes, virtual
from tests.controllers.objects import account, pod
from tests.support.scripted import Fail, Hold, Lose
from tests.support.timing import GRAIN, is_virtual
from volplane.api.annotations import NODE_EXPANSION_NOT_REQUIRED_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod, Secret
from volplane.api.errors import Invalid
from volplane.api.meta import ObjectMeta
from volplane.csi.outcome import Code
from volplane.loops.controller import Unsupported
from volplane.rules import resizing
from volplane.sidecars.resizer import service as resizer

both = pytest.mark.both

QUICK = resizer.ResizerOptions(retry_interval_start=0.05, retry_interval_max=0.5)
WAITING = "Waiting for user to (re-)start a pod to finish file system resize of volume on node."


def pauses() -> resizer.ResizerOptions:
    """As they come where time is virtual; else short, by the flags."""
    return resizer.ResizerOptions() if is_virtual() else QUICK


@asynccontextmanager
async def expanding(*features: str) -> AsyncIterator[Stage]:
    async with played("expand", *features) as stage, stage.sidecar(resizer.run, pauses()):
        yield stage


def at(state: str) -> Any:
    return lambda claim: sizes(claim)["state"] == state


def settled(size: str) -> Any:
    return lambda claim: sizes(claim)["capacity"] == size and not claim.status.conditions


async def node_finishes(stage: Stage, name: str = "data") -> None:
    """What the kubelet writes when it has grown the file system."""
    claim = await stage.claim(name)
    status = {
        "capacity": {"storage": claim.status.allocated_resources["storage"]},
        "conditions": resizing.conditions(claim, drop=resizing.CONDITIONS),
        "allocatedResourceStatuses": {"storage": None},
    }
    await stage.client.patch(
        PersistentVolumeClaim, name, "default", strategic={"status": status}, subresource="status"
    )


def asked(stage: Stage) -> list[int]:
    return [r.capacity_range.required_bytes for r in stage.driver.requests_of("ControllerExpandVolume")]


async def test_a_mounted_claim_grows_and_waits_for_its_node() -> None:
    async with real("expand") as stage, stage.sidecar(resizer.run, QUICK):
        await stage.bound()
        await stage.ask(size="2Gi")
        claim = await stage.until_claim(at("NodeResizePending"))
        assert sizes(claim) == {
            "request": "2Gi",
            "capacity": "1Gi",
            "allocated": "2Gi",
            "state": "NodeResizePending",
        }
        assert (await stage.volume()).spec.capacity["storage"] == "2Gi"
        assert conditions(claim)["FileSystemResizePending"] == WAITING
        assert "Resizing" in conditions(claim)
        assert await stage.said("FileSystemResizeRequired") == "Require file system resize of volume on node"
        assert await stage.said("Resizing") == f"External resizer is resizing volume {claim.spec.volume_name}"
        (request,) = stage.driver.requests_of("ControllerExpandVolume")
        assert request.volume_id == f"vol-{claim.spec.volume_name}"
        assert request.capacity_range.required_bytes == 2 * GI
        mode = request.volume_capability.access_mode
        assert mode.mode == mode.SINGLE_NODE_WRITER
        await node_finishes(stage)
        await asyncio.sleep(0.2)
        claim = await stage.claim()
        assert sizes(claim)["capacity"] == "2Gi"
        assert not claim.status.conditions
        assert asked(stage) == [2 * GI]


@both
async def test_without_a_pod_it_stays_pending_for_the_node() -> None:
    async with expanding() as stage:
        await stage.bound()
        await stage.ask(size="2Gi")
        await stage.until_claim(at("NodeResizePending"))
        await stage.rest(3600)
        assert sizes(await stage.claim())["state"] == "NodeResizePending"
        assert asked(stage) == [2 * GI]


async def test_a_volume_that_needs_no_node_is_finished_at_once() -> None:
    async with real("expand") as stage, stage.sidecar(resizer.run, QUICK):
        stage.driver.node_expansion = False
        await stage.bound()
        await stage.ask(size="1500M")
        claim = await stage.until_claim(settled("1500M"))
        assert sizes(claim)["state"] == ""
        assert claim.metadata.annotations[NODE_EXPANSION_NOT_REQUIRED_ANNOTATION] == "true"
        assert await stage.said("VolumeResizeSuccessful") == "Resize volume succeeded"
        assert (await stage.volume()).spec.capacity["storage"] == "1500M"
        stage.driver.node_expansion = True
        await stage.ask(size="2Gi")
        claim = await stage.until_claim(at("NodeResizePending"))
        assert NODE_EXPANSION_NOT_REQUIRED_ANNOTATION not in claim.metadata.annotations


@pytest.mark.parametrize("point", ["rpc:ControllerExpandVolume:before", "rpc:ControllerExpandVolume:after"])
async def test_a_crash_around_the_call_before_the_volume_is_patched_repeats_it(point: str) -> None:
    async with real("expand") as stage:
        await stage.bound()
        async with stage.process("resizer", failpoint=point) as process:
            await stage.ask(size="2Gi")
            await stage.killed(process)
        claim = await stage.claim()
        assert sizes(claim)["state"] == "ControllerResizeInProgress"
        assert sizes(claim)["allocated"] == "2Gi"
        assert (await stage.volume()).spec.capacity["storage"] == "1Gi"
        async with stage.process("resizer"):
            await stage.until_claim(at("NodeResizePending"))
        assert (await stage.volume()).spec.capacity["storage"] == "2Gi"
        assert asked(stage) == [2 * GI] * (2 if point.endswith("after") else 1)


@both
async def test_a_size_out_of_range_is_infeasible_until_the_request_is_lowered() -> None:
    async with expanding() as stage:
        stage.driver.node_expansion = False
        await stage.bound()
        stage.driver.always("ControllerExpandVolume", Fail(Code.OUT_OF_RANGE, "too big"))
        await stage.ask(size="100Ti")
        claim = await stage.until_claim(at("ControllerResizeInfeasible"))
        error = "rpc error: code = OutOfRange desc = too big"
        assert conditions(claim)["ControllerResizeError"] == f"failed to expand pvc with {error}"
        reported = (
            f'resize volume "{claim.spec.volume_name}" by resizer "test.csi.example.com" failed: {error}'
        )
        assert await stage.said("VolumeResizeFailed") == reported
        await stage.called("ControllerExpandVolume", 2, pause=pauses().retry_interval_max)
        with pytest.raises(Invalid, match=r"field can not be less than status\.capacity"):
            await stage.ask(size="1Gi")
        stage.driver.always("ControllerExpandVolume", None)
        await stage.ask(size="2Gi")
        claim = await stage.until_claim(settled("2Gi"))
        assert sizes(claim)["allocated"] == "2Gi"
        assert (await stage.volume()).spec.capacity["storage"] == "2Gi"


async def test_infeasible_waits_as_long_as_its_flag_says() -> None:
    settings = resizer.ResizerOptions(retry_interval_start=0.05, retry_interval_max=0.5)
    async with real("expand") as stage, stage.sidecar(resizer.run, settings):
        await stage.bound()
        stage.driver.script("ControllerExpandVolume", Fail(Code.INVALID_ARGUMENT))
        await stage.ask(size="2Gi")
        await stage.until_claim(at("ControllerResizeInfeasible"))
        await stage.until_claim(at("NodeResizePending"))
        assert len(asked(stage)) == 2
        assert stage.driver.pauses("ControllerExpandVolume")[0] > 0.5 - GRAIN


@both
async def test_an_uncertain_target_is_finished_before_a_smaller_request_counts() -> None:
    async with expanding() as stage:
        stage.driver.node_expansion = False
        await stage.bound()
        stage.driver.script("ControllerExpandVolume", Lose(Code.DEADLINE_EXCEEDED), hold := Hold())
        await stage.ask(size="5Gi")
        await stage.said("VolumeResizeFailed")
        claim = await stage.claim()
        assert (sizes(claim)["state"], sizes(claim)["allocated"]) == ("ControllerResizeInProgress", "5Gi")
        assert "ControllerResizeError" not in conditions(claim)
        await stage.ask(size="3Gi")
        hold.release()
        claim = await stage.until_claim(settled("5Gi"))
        assert sizes(claim)["request"] == "3Gi"
        assert (await stage.volume()).spec.capacity["storage"] == "5Gi"
        assert asked(stage) == [5 * GI, 5 * GI]


@pytest.mark.virtual
async def test_after_a_final_error_the_new_request_is_adopted() -> None:
    async with virtual("expand") as stage, stage.sidecar(resizer.run, resizer.ResizerOptions()):
        await stage.bound()
        stage.driver.script("ControllerExpandVolume", Fail(Code.INTERNAL, "no"))
        await stage.ask(size="5Gi")
        claim = await stage.until_claim(lambda c: "ControllerResizeError" in conditions(c))
        assert sizes(claim)["state"] == "ControllerResizeInProgress"
        await stage.ask(size="3Gi")
        claim = await stage.until_claim(at("NodeResizePending"))
        assert sizes(claim)["allocated"] == "3Gi"
        assert asked(stage) == [5 * GI, 3 * GI]


async def test_after_a_restart_an_expansion_in_progress_counts_as_uncertain() -> None:
    async with real("expand") as stage:
        await stage.bound()
        stage.driver.script("ControllerExpandVolume", Fail(Code.INTERNAL))
        slow = "--retry-interval-start=100s"
        async with stage.process("resizer", slow) as process:
            await stage.ask(size="5Gi")
            await stage.until_claim(lambda c: "ControllerResizeError" in conditions(c))
            process.kill()
            await stage.killed(process)
        await stage.ask(size="3Gi")
        async with stage.process("resizer"):
            claim = await stage.until_claim(at("NodeResizePending"))
        assert sizes(claim)["allocated"] == "5Gi"
        assert asked(stage) == [5 * GI, 5 * GI]


@both
async def test_an_offline_driver_is_asked_once_and_again_when_the_pod_is_gone() -> None:
    async with expanding("offline") as stage:
        await stage.bound()
        await stage.client.create(account())
        await stage.client.create(pod("web", "data", on="worker-1"))
        stage.driver.script("ControllerExpandVolume", Fail(Code.FAILED_PRECONDITION, "in use"))
        await stage.ask(size="2Gi")
        await stage.said("VolumeResizeFailed")
        await stage.rest(1200)
        assert len(asked(stage)) == 1
        assert await stage.said("VolumeResizeFailed") == (
            "Unable to expand default/data because CSI driver test.csi.example.com only supports offline "
            "expansion and volume is currently in-use"
        )
        await stage.client.delete(Pod, "web", "default", grace=0)
        await stage.until_claim(at("NodeResizePending"))
        assert len(asked(stage)) == 2


@both
async def test_a_pod_that_ended_does_not_use_the_volume() -> None:
    async with expanding("offline") as stage:
        await stage.bound()
        await stage.client.create(account())
        await stage.client.create(pod("web", "data", on="worker-1"))
        stage.driver.script("ControllerExpandVolume", Fail(Code.FAILED_PRECONDITION, "in use"))
        await stage.ask(size="2Gi")
        await stage.said("VolumeResizeFailed")
        await stage.rest(30)
        ended = {"status": {"phase": "Succeeded"}}
        await stage.client.patch(Pod, "web", "default", merge=ended, subresource="status")
        await stage.until_claim(at("NodeResizePending"))


@pytest.mark.virtual
async def test_without_the_flag_an_offline_driver_is_asked_again_and_again() -> None:
    settings = resizer.ResizerOptions(handle_volume_inuse_error=False)
    async with virtual("expand", "offline") as stage, stage.sidecar(resizer.run, settings):
        await stage.bound()
        await stage.client.create(account())
        await stage.client.create(pod("web", "data", on="worker-1"))
        stage.driver.always("ControllerExpandVolume", Fail(Code.FAILED_PRECONDITION, "in use"))
        await stage.ask(size="2Gi")
        await asyncio.sleep(10)
        assert len(asked(stage)) == 4  # at once, then after 1, 2 and 4 seconds


@both
async def test_a_request_raised_while_the_node_works_waits_for_the_node() -> None:
    async with expanding() as stage:
        await stage.bound()
        await stage.ask(size="2Gi")
        await stage.until_claim(at("NodeResizePending"))
        await stage.ask(size="3Gi")
        await stage.rest(1200)
        assert asked(stage) == [2 * GI]
        await node_finishes(stage)
        claim = await stage.until_claim(
            lambda c: at("NodeResizePending")(c) and sizes(c)["allocated"] == "3Gi"
        )
        assert sizes(claim)["capacity"] == "2Gi"
        assert asked(stage) == [2 * GI, 3 * GI]


@both
async def test_an_expansion_that_the_node_cannot_do_is_asked_again_and_handed_over_again() -> None:
    async with expanding() as stage:
        await stage.bound()
        await stage.ask(size="2Gi")
        await stage.until_claim(at("NodeResizePending"))
        status = {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}
        await stage.client.patch(
            PersistentVolumeClaim, "data", "default", strategic={"status": status}, subresource="status"
        )
        await stage.until_claim(at("NodeResizePending"))
        assert asked(stage) == [2 * GI, 2 * GI]


async def test_a_driver_that_grows_volumes_on_the_node_alone_is_not_called() -> None:
    async with real("node-expand") as stage, stage.sidecar(resizer.run, QUICK):
        await stage.bound()
        await stage.ask(size="2Gi")
        claim = await stage.until_claim(at("NodeResizePending"))
        assert sizes(claim)["allocated"] == "2Gi"
        assert (await stage.volume()).spec.capacity["storage"] == "2Gi"


@pytest.mark.virtual
async def test_a_driver_that_can_neither_grow_nor_modify_gets_no_resizer() -> None:
    async with virtual() as stage:
        with pytest.raises(Unsupported, match="CSI driver does not support resize nor modify"):
            async with stage.sidecar(resizer.run, resizer.ResizerOptions()):
                await asyncio.sleep(1)


@pytest.mark.virtual
async def test_the_secret_for_expansions_goes_to_the_driver_and_its_absence_is_told() -> None:
    async with virtual("expand") as stage, stage.sidecar(resizer.run, resizer.ResizerOptions()):
        await stage.bound()
        reference = {"controllerExpandSecretRef": {"name": "key", "namespace": "default"}}
        name = (await stage.claim()).spec.volume_name
        await stage.client.patch(PersistentVolume, name, merge={"spec": {"csi": reference}})
        await stage.ask(size="2Gi")
        assert 'failed to load secret "default/key"' in await stage.said("VolumeResizeFailed")
        assert sizes(await stage.claim())["state"] == "ControllerResizeInProgress"
        made = Secret(metadata=ObjectMeta(name="key", namespace="default"), data={"user": b"me"})
        await stage.client.create(made)
        await stage.until_claim(at("NodeResizePending"))
        (request,) = stage.driver.requests_of("ControllerExpandVolume")
        assert dict(request.secrets) == {"user": "me"}


@pytest.mark.virtual
async def test_the_size_before_is_noted_where_the_gate_is_on_until_the_node_is_done() -> None:
    note = "volume.alpha.kubernetes.io/pre-resize-capacity"
    settings = resizer.ResizerOptions(feature_gates={"AnnotateFsResize": True})
    async with virtual("expand") as stage, stage.sidecar(resizer.run, settings):
        await stage.bound()
        await stage.ask(size="2Gi")
        await stage.until_claim(at("NodeResizePending"))
        assert (await stage.volume()).metadata.annotations[note] == "1Gi"
        await node_finishes(stage)
        await asyncio.sleep(5)
        assert note not in (await stage.volume()).metadata.annotations


@both
async def test_failures_come_back_with_doubling_pauses() -> None:
    async with expanding() as stage:
        await stage.bound()
        stage.driver.always("ControllerExpandVolume", Fail(Code.INTERNAL))
        await stage.ask(size="2Gi")
        first = pauses().retry_interval_start
        await stage.called("ControllerExpandVolume", 4, pause=first)
        for pause, least in zip(stage.driver.pauses("ControllerExpandVolume"), (1, 2, 4), strict=False):
            assert pause > least * first - GRAIN
        stage.driver.always("ControllerExpandVolume", None)
        await stage.until_claim(at("NodeResizePending"))


@both
async def test_what_the_user_asks_for_during_a_call_is_next() -> None:
    async with expanding() as stage:
        stage.driver.node_expansion = False
        await stage.bound()
        stage.driver.script("ControllerExpandVolume", hold := Hold())
        await stage.ask(size="2Gi")
        await hold.reached_event.wait()
        await stage.ask(size="3Gi")
        hold.release()
        await stage.until_claim(settled("3Gi"))
        assert asked(stage) == [2 * GI, 3 * GI]
