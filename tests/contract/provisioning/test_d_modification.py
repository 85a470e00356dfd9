"""ModifyVolume through VolumeAttributesClass: contract provisioning D.4, and D's cases to test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contract.provisioning.operations_env import (
    OperationsEnv,
    conditions,
    operations_env,
    real,
    virtual,
)
from tests.support import scripted
from tests.support.scripted import Fail, Hold, Lose
from tests.support.timing import is_virtual
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Secret
from volplane.api.errors import Invalid
from volplane.api.meta import ObjectMeta
from volplane.api.storage import VolumeAttributesClass
from volplane.controllers.protection.controller import AttributesProtection
from volplane.csi.outcome import Code
from volplane.sidecars.resizer import service as resizer

both = pytest.mark.both

QUICK = {"retry_interval_start": 0.05, "retry_interval_max": 0.5}


async def attributes(env: OperationsEnv, *names: str) -> None:
    for name in names:
        await env.client.create(
            VolumeAttributesClass(
                metadata=ObjectMeta(name=name), driver_name=scripted.NAME, parameters={"tier": name}
            )
        )


@asynccontextmanager
async def modifying(**settings: Any) -> AsyncIterator[OperationsEnv]:
    chosen = resizer.ResizerOptions(**(dict[str, Any]() if is_virtual() else QUICK), **settings)
    async with operations_env("modify") as env, env.sidecar(resizer.run, chosen):
        await attributes(env, "a", "b", "c")
        await env.bound(volumeAttributesClassName="a")
        await env.until_claim(reached("a"))
        yield env


def reached(name: str) -> Any:
    def test(claim: PersistentVolumeClaim) -> bool:
        status = claim.status
        return status.current_volume_attributes_class_name == name and status.modify_volume_status is None

    return test


def on_its_way(status: str, target: str = "") -> Any:
    def test(claim: PersistentVolumeClaim) -> bool:
        now = claim.status.modify_volume_status
        if now is None or now.status != status:
            return False
        return now.target_volume_attributes_class_name == target

    return test


def tiers(env: OperationsEnv) -> list[str]:
    return [r.mutable_parameters["tier"] for r in env.driver.requests_of("ControllerModifyVolume")]


async def test_another_class_is_asked_of_the_driver_and_told_to_volume_and_claim() -> None:
    async with real("modify") as env, env.sidecar(resizer.run, resizer.ResizerOptions()):
        await attributes(env, "a", "b")
        await env.bound(volumeAttributesClassName="a")
        await env.until_claim(reached("a"))
        env.driver.script("ControllerModifyVolume", hold := Hold())
        await env.ask(attributes="b")
        claim = await env.until_claim(on_its_way("InProgress", "b"))
        assert conditions(claim) == {"ModifyingVolume": 'Modifying volume to "b" is in progress.'}
        hold.release()
        claim = await env.until_claim(reached("b"))
        assert not claim.status.conditions
        assert (await env.volume()).spec.volume_attributes_class_name == "b"
        assert await env.said("VolumeModify") == "external resizer is modifying volume data with vac b"
        done = "external resizer modified volume data with vac b successfully"
        assert await env.said("VolumeModifySuccessful") == done
        (request,) = env.driver.requests_of("ControllerModifyVolume")
        assert dict(request.mutable_parameters) == {"tier": "b"}


@both
async def test_a_class_that_is_missing_is_waited_for() -> None:
    async with modifying() as env:
        await env.ask(attributes="gold")
        await env.until_claim(lambda c: (s := c.status.modify_volume_status) and s.status == "Pending")
        assert await env.said("VolumeModifyFailed") == 'VAC "gold" does not exist.'
        assert not (await env.claim()).status.conditions
        await env.rest(1200)
        assert await env.count("VolumeModifyFailed") == 1
        await attributes(env, "gold")
        await env.until_claim(reached("gold"))


@both
async def test_an_uncertain_modification_is_brought_to_a_definite_answer_before_another_begins() -> None:
    async with modifying() as env:
        env.driver.script("ControllerModifyVolume", Lose(Code.DEADLINE_EXCEEDED), hold := Hold())
        await env.ask(attributes="b")
        reported = await env.said("VolumeModifyFailed")
        error = "rpc error: code = DeadlineExceeded desc = the reply was lost"
        assert reported == f"{error}. Still modifying to VAC b"
        claim = await env.claim()
        assert on_its_way("InProgress", "b")(claim)
        assert conditions(claim)["ModifyingVolume"] == 'Modifying volume to "b" is still in progress.'
        (failed,) = [c for c in claim.status.conditions if c.type == "ModifyVolumeError"]
        assert (failed.reason, failed.message) == ("DeadlineExceeded", "the reply was lost")
        await env.ask(attributes="c")
        hold.release()
        await env.until_claim(reached("c"))
        assert tiers(env) == ["b", "b", "c"]


async def test_after_a_crash_everything_in_progress_is_uncertain() -> None:
    async with real("modify") as env:
        await attributes(env, "a", "b", "c")
        await env.bound(volumeAttributesClassName="a")
        async with env.process("resizer", failpoint="rpc:ControllerModifyVolume:after") as process:
            await env.ask(attributes="b")
            await env.killed(process)
        await env.ask(attributes="c")
        async with env.process("resizer"):
            await env.until_claim(reached("c"))
        assert tiers(env) == ["b", "b", "c"]


@pytest.mark.virtual
async def test_after_another_final_error_the_next_try_takes_what_is_asked_for_now() -> None:
    async with modifying() as env:
        env.driver.script("ControllerModifyVolume", Fail(Code.INTERNAL, "no"))
        await env.ask(attributes="b")
        claim = await env.until_claim(lambda c: "ModifyVolumeError" in conditions(c))
        assert on_its_way("InProgress", "b")(claim)
        assert conditions(claim)["ModifyingVolume"] == 'Modifying volume to "b" failed. Waiting for retry.'
        await env.ask(attributes="c")
        await env.until_claim(reached("c"))
        assert tiers(env) == ["b", "c"]


@both
async def test_wrong_arguments_are_infeasible_and_retried_slowly_until_the_claim_changes() -> None:
    async with modifying() as env:
        env.driver.always("ControllerModifyVolume", Fail(Code.INVALID_ARGUMENT, "no such tier"))
        await env.ask(attributes="b")
        await env.until_claim(on_its_way("Infeasible", "b"))
        longest = 300.0 if is_virtual() else QUICK["retry_interval_max"]
        await env.called("ControllerModifyVolume", 2, pause=longest)
        env.driver.always("ControllerModifyVolume", None)
        await env.ask(attributes="c")
        await env.until_claim(reached("c"))
        assert (tiers(env)[0], tiers(env)[-1]) == ("b", "c")


@pytest.mark.virtual
async def test_a_claim_that_asks_for_none_any_more_is_left_as_it_is() -> None:
    async with virtual("modify") as env, env.sidecar(resizer.run, resizer.ResizerOptions()):
        await attributes(env, "b")
        await env.bound()
        env.driver.always("ControllerModifyVolume", Fail(Code.INVALID_ARGUMENT))
        await env.ask(attributes="b")
        await env.until_claim(on_its_way("Infeasible", "b"))
        await env.ask(attributes=None)
        assert await env.said("VolumeModifyCanceled") == "Cancelled modify."
        claim = await env.claim()
        assert set(conditions(claim)) == {"ModifyVolumeError"}
        assert on_its_way("Infeasible", "b")(claim)


@pytest.mark.virtual
async def test_a_class_once_reached_cannot_be_taken_back_to_none() -> None:
    async with modifying() as env:
        with pytest.raises(Invalid):
            await env.ask(attributes=None)


@pytest.mark.virtual
async def test_names_and_secrets_go_to_the_driver() -> None:
    async with modifying(extra_modify_metadata=True) as env:
        notes = {
            "volume.kubernetes.io/controller-modify-secret-name": "key",
            "volume.kubernetes.io/controller-modify-secret-namespace": "default",
        }
        claim = await env.claim()
        patch = {"metadata": {"annotations": notes}}
        await env.client.patch(PersistentVolume, claim.spec.volume_name, merge=patch)
        made = Secret(metadata=ObjectMeta(name="key", namespace="default"), data={"user": b"me"})
        await env.client.create(made)
        await env.ask(attributes="b")
        await env.until_claim(reached("b"))
        (request,) = env.driver.requests_of("ControllerModifyVolume")
        assert dict(request.secrets) == {"user": "me"}
        assert dict(request.mutable_parameters) == {
            "tier": "b",
            "csi.storage.k8s.io/pvc/name": "data",
            "csi.storage.k8s.io/pvc/namespace": "default",
            "csi.storage.k8s.io/pv/name": claim.spec.volume_name,
        }


@pytest.mark.virtual
async def test_with_its_gate_off_nothing_is_modified() -> None:
    settings = resizer.ResizerOptions(feature_gates={"VolumeAttributesClass": False})
    async with virtual("modify") as env, env.sidecar(resizer.run, settings):
        await attributes(env, "b")
        await env.bound()
        await env.ask(attributes="b")
        await asyncio.sleep(60)
        assert tiers(env) == []


@both
async def test_a_class_in_use_that_is_deleted_is_held_until_nothing_refers_to_it() -> None:
    async with modifying() as env, env.controllers(AttributesProtection):
        env.driver.script("ControllerModifyVolume", hold := Hold())
        await env.ask(attributes="b")
        await hold.reached_event.wait()
        await env.client.delete(VolumeAttributesClass, "a")
        await env.rest(60)
        assert (await env.client.get(VolumeAttributesClass, "a")).is_deleting
        hold.release()
        await env.until_claim(reached("b"))
        await env.gone(VolumeAttributesClass, "a")
        await env.client.delete(VolumeAttributesClass, "b")
        await env.client.delete(VolumeAttributesClass, "c")  # nobody's
        await env.gone(VolumeAttributesClass, "c")
        await env.rest(60)
        assert (await env.client.get(VolumeAttributesClass, "b")).is_deleting
        await env.client.delete(PersistentVolumeClaim, "data", "default")
        await env.gone(VolumeAttributesClass, "b")


@pytest.mark.virtual
async def test_the_finalizer_of_a_class_comes_back_when_somebody_strips_it() -> None:
    async with modifying() as env, env.controllers(AttributesProtection):
        stripped: dict[str, Any] = {"metadata": {"finalizers": []}}
        await env.client.patch(VolumeAttributesClass, "c", merge=stripped)
        await asyncio.sleep(1)
        kept = await env.client.get(VolumeAttributesClass, "c")
        assert kept.metadata.finalizers == ("kubernetes.io/vac-protection",)
