"""Expansion, as the control plane does it: contract provisioning D.1 and D.2, and D's cases to test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contract.provisioning.operations_env import (
    GI,
    OperationsEnv,
    conditions,
    operations_env,
    real,
    sizes,
    virtual,
)
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
async def expanding(*features: str) -> AsyncIterator[OperationsEnv]:
    async with operations_env("expand", *features) as env, env.sidecar(resizer.run, pauses()):
        yield env


def at(state: str) -> Any:
    return lambda claim: sizes(claim)["state"] == state


def settled(size: str) -> Any:
    return lambda claim: sizes(claim)["capacity"] == size and not claim.status.conditions


async def node_finishes(env: OperationsEnv, name: str = "data") -> None:
    """What the kubelet writes when it has grown the file system."""
    claim = await env.claim(name)
    status = {
        "capacity": {"storage": claim.status.allocated_resources["storage"]},
        "conditions": resizing.conditions(claim, drop=resizing.CONDITIONS),
        "allocatedResourceStatuses": {"storage": None},
    }
    await env.client.patch(
        PersistentVolumeClaim, name, "default", strategic={"status": status}, subresource="status"
    )


def asked(env: OperationsEnv) -> list[int]:
    return [r.capacity_range.required_bytes for r in env.driver.requests_of("ControllerExpandVolume")]


async def test_a_mounted_claim_grows_and_waits_for_its_node() -> None:
    async with real("expand") as env, env.sidecar(resizer.run, QUICK):
        await env.bound()
        await env.ask(size="2Gi")
        claim = await env.until_claim(at("NodeResizePending"))
        assert sizes(claim) == {
            "request": "2Gi",
            "capacity": "1Gi",
            "allocated": "2Gi",
            "state": "NodeResizePending",
        }
        assert (await env.volume()).spec.capacity["storage"] == "2Gi"
        assert conditions(claim)["FileSystemResizePending"] == WAITING
        assert "Resizing" in conditions(claim)
        assert await env.said("FileSystemResizeRequired") == "Require file system resize of volume on node"
        assert await env.said("Resizing") == f"External resizer is resizing volume {claim.spec.volume_name}"
        (request,) = env.driver.requests_of("ControllerExpandVolume")
        assert request.volume_id == f"vol-{claim.spec.volume_name}"
        assert request.capacity_range.required_bytes == 2 * GI
        mode = request.volume_capability.access_mode
        assert mode.mode == mode.SINGLE_NODE_WRITER
        await node_finishes(env)
        await asyncio.sleep(0.2)
        claim = await env.claim()
        assert sizes(claim)["capacity"] == "2Gi"
        assert not claim.status.conditions
        assert asked(env) == [2 * GI]


@both
async def test_without_a_pod_it_stays_pending_for_the_node() -> None:
    async with expanding() as env:
        await env.bound()
        await env.ask(size="2Gi")
        await env.until_claim(at("NodeResizePending"))
        await env.rest(3600)
        assert sizes(await env.claim())["state"] == "NodeResizePending"
        assert asked(env) == [2 * GI]


async def test_a_volume_that_needs_no_node_is_finished_at_once() -> None:
    async with real("expand") as env, env.sidecar(resizer.run, QUICK):
        env.driver.node_expansion = False
        await env.bound()
        await env.ask(size="1500M")
        claim = await env.until_claim(settled("1500M"))
        assert sizes(claim)["state"] == ""
        assert claim.metadata.annotations[NODE_EXPANSION_NOT_REQUIRED_ANNOTATION] == "true"
        assert await env.said("VolumeResizeSuccessful") == "Resize volume succeeded"
        assert (await env.volume()).spec.capacity["storage"] == "1500M"
        env.driver.node_expansion = True
        await env.ask(size="2Gi")
        claim = await env.until_claim(at("NodeResizePending"))
        assert NODE_EXPANSION_NOT_REQUIRED_ANNOTATION not in claim.metadata.annotations


@pytest.mark.parametrize("point", ["rpc:ControllerExpandVolume:before", "rpc:ControllerExpandVolume:after"])
async def test_a_crash_around_the_call_before_the_volume_is_patched_repeats_it(point: str) -> None:
    async with real("expand") as env:
        await env.bound()
        async with env.process("resizer", failpoint=point) as process:
            await env.ask(size="2Gi")
            await env.killed(process)
        claim = await env.claim()
        assert sizes(claim)["state"] == "ControllerResizeInProgress"
        assert sizes(claim)["allocated"] == "2Gi"
        assert (await env.volume()).spec.capacity["storage"] == "1Gi"
        async with env.process("resizer"):
            await env.until_claim(at("NodeResizePending"))
        assert (await env.volume()).spec.capacity["storage"] == "2Gi"
        assert asked(env) == [2 * GI] * (2 if point.endswith("after") else 1)


@both
async def test_a_size_out_of_range_is_infeasible_until_the_request_is_lowered() -> None:
    async with expanding() as env:
        env.driver.node_expansion = False
        await env.bound()
        env.driver.always("ControllerExpandVolume", Fail(Code.OUT_OF_RANGE, "too big"))
        await env.ask(size="100Ti")
        claim = await env.until_claim(at("ControllerResizeInfeasible"))
        error = "rpc error: code = OutOfRange desc = too big"
        assert conditions(claim)["ControllerResizeError"] == f"failed to expand pvc with {error}"
        reported = (
            f'resize volume "{claim.spec.volume_name}" by resizer "test.csi.example.com" failed: {error}'
        )
        assert await env.said("VolumeResizeFailed") == reported
        await env.called("ControllerExpandVolume", 2, pause=pauses().retry_interval_max)
        with pytest.raises(Invalid, match=r"field can not be less than status\.capacity"):
            await env.ask(size="1Gi")
        env.driver.always("ControllerExpandVolume", None)
        await env.ask(size="2Gi")
        claim = await env.until_claim(settled("2Gi"))
        assert sizes(claim)["allocated"] == "2Gi"
        assert (await env.volume()).spec.capacity["storage"] == "2Gi"


async def test_infeasible_waits_as_long_as_its_flag_says() -> None:
    settings = resizer.ResizerOptions(retry_interval_start=0.05, retry_interval_max=0.5)
    async with real("expand") as env, env.sidecar(resizer.run, settings):
        await env.bound()
        env.driver.script("ControllerExpandVolume", Fail(Code.INVALID_ARGUMENT))
        await env.ask(size="2Gi")
        await env.until_claim(at("ControllerResizeInfeasible"))
        await env.until_claim(at("NodeResizePending"))
        assert len(asked(env)) == 2
        assert env.driver.pauses("ControllerExpandVolume")[0] > 0.5 - GRAIN


@both
async def test_an_uncertain_target_is_finished_before_a_smaller_request_counts() -> None:
    async with expanding() as env:
        env.driver.node_expansion = False
        await env.bound()
        env.driver.script("ControllerExpandVolume", Lose(Code.DEADLINE_EXCEEDED), hold := Hold())
        await env.ask(size="5Gi")
        await env.said("VolumeResizeFailed")
        claim = await env.claim()
        assert (sizes(claim)["state"], sizes(claim)["allocated"]) == ("ControllerResizeInProgress", "5Gi")
        assert "ControllerResizeError" not in conditions(claim)
        await env.ask(size="3Gi")
        hold.release()
        claim = await env.until_claim(settled("5Gi"))
        assert sizes(claim)["request"] == "3Gi"
        assert (await env.volume()).spec.capacity["storage"] == "5Gi"
        assert asked(env) == [5 * GI, 5 * GI]


@pytest.mark.virtual
async def test_after_a_final_error_the_new_request_is_adopted() -> None:
    async with virtual("expand") as env, env.sidecar(resizer.run, resizer.ResizerOptions()):
        await env.bound()
        env.driver.script("ControllerExpandVolume", Fail(Code.INTERNAL, "no"))
        await env.ask(size="5Gi")
        claim = await env.until_claim(lambda c: "ControllerResizeError" in conditions(c))
        assert sizes(claim)["state"] == "ControllerResizeInProgress"
        await env.ask(size="3Gi")
        claim = await env.until_claim(at("NodeResizePending"))
        assert sizes(claim)["allocated"] == "3Gi"
        assert asked(env) == [5 * GI, 3 * GI]


async def test_after_a_restart_an_expansion_in_progress_counts_as_uncertain() -> None:
    async with real("expand") as env:
        await env.bound()
        env.driver.script("ControllerExpandVolume", Fail(Code.INTERNAL))
        slow = "--retry-interval-start=100s"
        async with env.process("resizer", slow) as process:
            await env.ask(size="5Gi")
            await env.until_claim(lambda c: "ControllerResizeError" in conditions(c))
            process.kill()
            await env.killed(process)
        await env.ask(size="3Gi")
        async with env.process("resizer"):
            claim = await env.until_claim(at("NodeResizePending"))
        assert sizes(claim)["allocated"] == "5Gi"
        assert asked(env) == [5 * GI, 5 * GI]


@both
async def test_an_offline_driver_is_asked_once_and_again_when_the_pod_is_gone() -> None:
    async with expanding("offline") as env:
        await env.bound()
        await env.client.create(account())
        await env.client.create(pod("web", "data", on="worker-1"))
        env.driver.script("ControllerExpandVolume", Fail(Code.FAILED_PRECONDITION, "in use"))
        await env.ask(size="2Gi")
        await env.said("VolumeResizeFailed")
        await env.rest(1200)
        assert len(asked(env)) == 1
        assert await env.said("VolumeResizeFailed") == (
            "Unable to expand default/data because CSI driver test.csi.example.com only supports offline "
            "expansion and volume is currently in-use"
        )
        await env.client.delete(Pod, "web", "default", grace=0)
        await env.until_claim(at("NodeResizePending"))
        assert len(asked(env)) == 2


@both
async def test_a_pod_that_ended_does_not_use_the_volume() -> None:
    async with expanding("offline") as env:
        await env.bound()
        await env.client.create(account())
        await env.client.create(pod("web", "data", on="worker-1"))
        env.driver.script("ControllerExpandVolume", Fail(Code.FAILED_PRECONDITION, "in use"))
        await env.ask(size="2Gi")
        await env.said("VolumeResizeFailed")
        await env.rest(30)
        ended = {"status": {"phase": "Succeeded"}}
        await env.client.patch(Pod, "web", "default", merge=ended, subresource="status")
        await env.until_claim(at("NodeResizePending"))


@pytest.mark.virtual
async def test_without_the_flag_an_offline_driver_is_asked_again_and_again() -> None:
    settings = resizer.ResizerOptions(handle_volume_inuse_error=False)
    async with virtual("expand", "offline") as env, env.sidecar(resizer.run, settings):
        await env.bound()
        await env.client.create(account())
        await env.client.create(pod("web", "data", on="worker-1"))
        env.driver.always("ControllerExpandVolume", Fail(Code.FAILED_PRECONDITION, "in use"))
        await env.ask(size="2Gi")
        await asyncio.sleep(10)
        assert len(asked(env)) == 4  # at once, then after 1, 2 and 4 seconds


@both
async def test_a_request_raised_while_the_node_works_waits_for_the_node() -> None:
    async with expanding() as env:
        await env.bound()
        await env.ask(size="2Gi")
        await env.until_claim(at("NodeResizePending"))
        await env.ask(size="3Gi")
        await env.rest(1200)
        assert asked(env) == [2 * GI]
        await node_finishes(env)
        claim = await env.until_claim(lambda c: at("NodeResizePending")(c) and sizes(c)["allocated"] == "3Gi")
        assert sizes(claim)["capacity"] == "2Gi"
        assert asked(env) == [2 * GI, 3 * GI]


@both
async def test_an_expansion_that_the_node_cannot_do_is_asked_again_and_handed_over_again() -> None:
    async with expanding() as env:
        await env.bound()
        await env.ask(size="2Gi")
        await env.until_claim(at("NodeResizePending"))
        status = {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}
        await env.client.patch(
            PersistentVolumeClaim, "data", "default", strategic={"status": status}, subresource="status"
        )
        await env.until_claim(at("NodeResizePending"))
        assert asked(env) == [2 * GI, 2 * GI]


async def test_a_driver_that_grows_volumes_on_the_node_alone_is_not_called() -> None:
    async with real("node-expand") as env, env.sidecar(resizer.run, QUICK):
        await env.bound()
        await env.ask(size="2Gi")
        claim = await env.until_claim(at("NodeResizePending"))
        assert sizes(claim)["allocated"] == "2Gi"
        assert (await env.volume()).spec.capacity["storage"] == "2Gi"


@pytest.mark.virtual
async def test_a_driver_that_can_neither_grow_nor_modify_gets_no_resizer() -> None:
    async with virtual() as env:
        with pytest.raises(Unsupported, match="CSI driver does not support resize nor modify"):
            async with env.sidecar(resizer.run, resizer.ResizerOptions()):
                await asyncio.sleep(1)


@pytest.mark.virtual
async def test_the_secret_for_expansions_goes_to_the_driver_and_its_absence_is_told() -> None:
    async with virtual("expand") as env, env.sidecar(resizer.run, resizer.ResizerOptions()):
        await env.bound()
        reference = {"controllerExpandSecretRef": {"name": "key", "namespace": "default"}}
        name = (await env.claim()).spec.volume_name
        await env.client.patch(PersistentVolume, name, merge={"spec": {"csi": reference}})
        await env.ask(size="2Gi")
        assert 'failed to load secret "default/key"' in await env.said("VolumeResizeFailed")
        assert sizes(await env.claim())["state"] == "ControllerResizeInProgress"
        made = Secret(metadata=ObjectMeta(name="key", namespace="default"), data={"user": b"me"})
        await env.client.create(made)
        await env.until_claim(at("NodeResizePending"))
        (request,) = env.driver.requests_of("ControllerExpandVolume")
        assert dict(request.secrets) == {"user": "me"}


@pytest.mark.virtual
async def test_the_size_before_is_noted_where_the_gate_is_on_until_the_node_is_done() -> None:
    note = "volume.alpha.kubernetes.io/pre-resize-capacity"
    settings = resizer.ResizerOptions(feature_gates={"AnnotateFsResize": True})
    async with virtual("expand") as env, env.sidecar(resizer.run, settings):
        await env.bound()
        await env.ask(size="2Gi")
        await env.until_claim(at("NodeResizePending"))
        assert (await env.volume()).metadata.annotations[note] == "1Gi"
        await node_finishes(env)
        await asyncio.sleep(5)
        assert note not in (await env.volume()).metadata.annotations


@both
async def test_failures_come_back_with_doubling_pauses() -> None:
    async with expanding() as env:
        await env.bound()
        env.driver.always("ControllerExpandVolume", Fail(Code.INTERNAL))
        await env.ask(size="2Gi")
        first = pauses().retry_interval_start
        await env.called("ControllerExpandVolume", 4, pause=first)
        for pause, least in zip(env.driver.pauses("ControllerExpandVolume"), (1, 2, 4), strict=False):
            assert pause > least * first - GRAIN
        env.driver.always("ControllerExpandVolume", None)
        await env.until_claim(at("NodeResizePending"))


@both
async def test_what_the_user_asks_for_during_a_call_is_next() -> None:
    async with expanding() as env:
        env.driver.node_expansion = False
        await env.bound()
        env.driver.script("ControllerExpandVolume", hold := Hold())
        await env.ask(size="2Gi")
        await hold.reached_event.wait()
        await env.ask(size="3Gi")
        hold.release()
        await env.until_claim(settled("3Gi"))
        assert asked(env) == [2 * GI, 3 * GI]
