"""The status of quotas on the real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.controllers.garbage.test_garbage_custom import Widget, definition
from tests.controllers.objects import account, claim, pod
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api import codec
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import ConfigMap, Pod, ResourceQuota
from volplane.api.meta import ObjectMeta
from volplane.controllers.quota.controller import ResourceQuotas
from volplane.controllers.quota.plan import SetQuotaStatus, plan
from volplane.rules.quotas.usage import usage_of
from volplane.rules.waits import Wait

pytestmark = pytest.mark.virtual


def quota(name: str = "q", **hard: str) -> ResourceQuota:
    whole = {"metadata": {"name": name, "namespace": "default"}, "spec": {"hard": hard}}
    return codec.convert(ResourceQuota, whole)


@asynccontextmanager
async def counting() -> AsyncIterator[InProcessEnv]:
    async with world() as env, running(ResourceQuotas(env.role("quota")).run()):
        await env.client.create(account())
        yield env


async def shows(env: InProcessEnv, name: str = "q", **used: str) -> None:
    async def test() -> bool:
        return dict((await env.client.get(ResourceQuota, name, "default")).status.used) == used

    await until(test)


async def test_the_status_follows_pods_claims_and_other_objects() -> None:
    async with counting() as env:
        hard = {"pods": "5", "requests.cpu": "4", "requests.storage": "9Gi", "count/configmaps": "9"}
        await env.client.create(quota(**hard))
        await shows(env, pods="0", **{"requests.cpu": "0", "requests.storage": "0", "count/configmaps": "0"})
        asks = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m"}}}]
        for name in ("a", "b"):
            await env.client.create(pod(name, containers=asks))
        await env.client.create(claim("data", "2Gi"))
        await env.client.create(ConfigMap(metadata=ObjectMeta(name="m", namespace="default")))
        await shows(
            env, pods="2", **{"requests.cpu": "1", "requests.storage": "2Gi", "count/configmaps": "1"}
        )
        await env.client.patch(
            Pod, "a", "default", merge={"status": {"phase": "Failed"}}, subresource="status"
        )
        await env.client.delete(ConfigMap, "m", "default")
        await shows(
            env, pods="1", **{"requests.cpu": "500m", "requests.storage": "2Gi", "count/configmaps": "0"}
        )
        found = await env.client.get(ResourceQuota, "q", "default")
        assert dict(found.status.hard) == hard


async def test_a_quota_that_comes_later_counts_what_exists() -> None:
    async with counting() as env:
        await env.client.create(ConfigMap(metadata=ObjectMeta(name="m", namespace="default")))
        await env.client.create(quota(secrets="3"))
        await shows(env, secrets="0")
        await env.client.create(quota("later", configmaps="3"))
        await shows(env, "later", configmaps="1")
        await env.client.patch(
            ResourceQuota, "later", "default", merge={"spec": {"hard": {"configmaps": None}}}
        )
        await shows(env, "later")


async def test_custom_objects_count_while_their_kind_is_served() -> None:
    async with counting() as env:
        await env.client.create(quota(**{"count/widgets.example.com": "2"}))
        await asyncio.sleep(1)
        assert not (await env.client.get(ResourceQuota, "q", "default")).status.used
        await env.client.create(definition())
        await shows(env, **{"count/widgets.example.com": "0"})
        await env.client.create(Widget(metadata=ObjectMeta(name="w", namespace="default")))
        await shows(env, **{"count/widgets.example.com": "1"})
        await env.client.create(quota("later", **{"count/widgets.example.com": "2"}))
        await shows(env, "later", **{"count/widgets.example.com": "1"})
        await env.client.delete(CustomResourceDefinition, "widgets.example.com")


async def test_a_kind_is_followed_when_a_quota_names_it() -> None:
    async with counting() as env:
        await env.client.create(definition())
        await env.client.create(Widget(metadata=ObjectMeta(name="w", namespace="default")))
        await asyncio.sleep(1)
        await env.client.create(quota(**{"count/widgets.example.com": "2"}))
        await shows(env, **{"count/widgets.example.com": "1"})


def test_a_terminating_pod_is_waited_for() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    deleted = {"name": "p", "deletionTimestamp": "2026-01-01T00:00:05Z", "deletionGracePeriodSeconds": 30}
    usage = usage_of("pods", codec.convert(Pod, {"metadata": deleted}))
    status, wait = plan(quota(pods="1"), {"pods": [usage]}, now)
    assert status == SetQuotaStatus({"pods": "1"}, {"pods": "1"})
    assert isinstance(wait, Wait)
    assert wait.seconds == pytest.approx(35, abs=0.01)


def test_what_cannot_be_counted_keeps_its_status() -> None:
    whole: Any = quota(pods="1", **{"count/gone.example.com": "2"})
    held = codec.convert(
        ResourceQuota,
        {**codec.to_dict(whole), "status": {"used": {"count/gone.example.com": "1", "secrets": "4"}}},
    )
    (step,) = plan(held, {"pods": []}, datetime.now(UTC))
    assert step == SetQuotaStatus(held.spec.hard, {"count/gone.example.com": "1", "pods": "0"})
