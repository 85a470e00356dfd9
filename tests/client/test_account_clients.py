"""What acts as a service account: its token, and updates instead of patches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.apiserver.conftest import served
from tests.contract.api_server.people import RBAC, grant, role, rule
from tests.loops.inprocess import world
from volplane.api.authorization import (
    ResourceAttributes,
    SelfSubjectAccessReview,
    SelfSubjectAccessReviewSpec,
)
from volplane.api.core import ConfigMap, ServiceAccount
from volplane.api.errors import Conflict, Forbidden, Unauthorized
from volplane.api.meta import ObjectMeta
from volplane.base import clock, failpoint
from volplane.client import account_token, kubeconfig
from volplane.client.account_token import LIFE, AccountToken
from volplane.client.cache import Caches
from volplane.client.client import Client
from volplane.client.updating_client import UpdatingClient
from volplane.loops.leader import LeaseExpired

__all__ = ["served"]


@asynccontextmanager
async def updating(api: Any, directory: Path, *verbs: str) -> AsyncIterator[tuple[Client, Client]]:
    """The clients of a user who has these verbs for ConfigMaps, and of the administrator."""
    await grant(api, "robot", rule(" ".join(verbs), "configmaps"))
    reader = kubeconfig.load(api.server.kubeconfig)
    own = kubeconfig.load(api.server.write_kubeconfig(directory / "robot.kubeconfig", "robot"))
    async with Caches(reader) as caches:
        yield (
            UpdatingClient(own, reader, caches=caches, component="robot"),
            Client(reader, caches=caches, component="admin"),
        )
    await own.close()
    await reader.close()


def config(name: str = "c", **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


async def test_a_patch_is_an_update_where_only_that_is_allowed(served: Any, tmp_path: Path) -> None:
    async with served() as api, updating(api, tmp_path, "update") as (robot, admin):
        made = await admin.create(config(kept="1", removed="1"))
        patch = {"data": {"added": "1", "removed": None}}
        changed = await robot.patch(ConfigMap, "c", "default", merge=patch, uid=made.uid)
        assert changed.data == {"kept": "1", "added": "1"}
        assert (await admin.get(ConfigMap, "c", "default")).data == changed.data
        owners = [entry.manager for entry in changed.metadata.managed_fields]
        assert "robot" in owners
        assert (await robot.get(ConfigMap, "c", "default")).data == changed.data
        with pytest.raises(Conflict):
            await robot.patch(ConfigMap, "c", "default", merge=patch, revision=made.metadata.resource_version)
        with pytest.raises(Conflict, match="another object"):
            await robot.patch(ConfigMap, "c", "default", merge=patch, uid="00000000-0000")
        assert await robot.patch(ConfigMap, "none", "default", merge=patch, missing_ok=True) is None
        with pytest.raises(Forbidden, match='cannot patch resource "configmaps"'):
            await robot.patch(ConfigMap, "c", "default", strategic=patch)


async def test_updates_at_the_same_time_are_repeated(served: Any, tmp_path: Path) -> None:
    async with served() as api, updating(api, tmp_path, "update") as (robot, admin):
        await admin.create(config())
        await asyncio.gather(
            *(robot.patch(ConfigMap, "c", "default", merge={"data": {key: key}}) for key in "abc")
        )
        assert (await admin.get(ConfigMap, "c", "default")).data == {key: key for key in "abc"}


async def test_nothing_is_written_if_the_lease_expires_while_the_object_is_read(
    served: Any, tmp_path: Path
) -> None:
    async with served() as api, updating(api, tmp_path, "update") as (robot, admin):
        await admin.create(config())
        checks = iter((None, LeaseExpired("not renewed in time")))

        def check() -> None:
            if (error := next(checks)) is not None:
                raise error

        robot.check_write = check
        with pytest.raises(LeaseExpired):
            await robot.patch(ConfigMap, "c", "default", merge={"data": {"a": "1"}})
        assert (await admin.get(ConfigMap, "c", "default")).data == {}


async def test_who_may_patch_patches(served: Any, tmp_path: Path) -> None:
    async with served() as api, updating(api, tmp_path, "patch") as (robot, admin):
        await admin.create(config())
        changed = await robot.patch(ConfigMap, "c", "default", merge={"data": {"a": "1"}})
        assert changed.data == {"a": "1"}


async def test_after_a_refusal_the_server_is_asked_again_what_is_allowed(served: Any, tmp_path: Path) -> None:
    async def add(key: str) -> None:
        await robot.patch(ConfigMap, "c", "default", merge={"data": {key: "1"}})

    async def set_verbs(*verbs: str) -> None:
        made = role("robot-may", rule(" ".join(verbs), "configmaps"))
        assert (await api.put(f"{RBAC}/clusterroles/robot-may", made)).status == 200
        expected = {verb: verb in verbs for verb in ("update", "patch")}
        async with asyncio.timeout(30):
            while await allowed_verbs() != expected:  # noqa: ASYNC110 (the server reads roles from a watch)
                await asyncio.sleep(0.01)

    async def allowed_verbs() -> dict[str, bool]:
        found = {}
        for verb in ("update", "patch"):
            attributes = ResourceAttributes(verb=verb, version="v1", resource="configmaps")
            spec = SelfSubjectAccessReviewSpec(resource_attributes=attributes)
            answer = await robot.transport.create(SelfSubjectAccessReview(spec=spec))
            found[verb] = answer.status.allowed
        return found

    async with served() as api, updating(api, tmp_path, "list") as (robot, admin):
        await admin.create(config())
        with pytest.raises(Forbidden, match='cannot update resource "configmaps"'):
            await add("a")
        await set_verbs("patch")
        await add("b")
        await set_verbs("update")
        with pytest.raises(Forbidden, match='cannot patch resource "configmaps"'):
            await add("c")
        await add("d")
        assert (await admin.get(ConfigMap, "c", "default")).data == {"b": "1", "d": "1"}


async def test_an_update_has_fail_points(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as api, updating(api, tmp_path, "update") as (robot, admin):
        await admin.create(config())
        await robot.patch(ConfigMap, "c", "default", merge={"data": {"a": "1"}})
        hit: list[str] = []
        monkeypatch.setattr(failpoint, "is_armed", True)
        monkeypatch.setattr(failpoint, "hit", hit.append)
        await robot.patch(ConfigMap, "c", "default", merge={"data": {"b": "1"}})
        monkeypatch.undo()
        asked = [name for name in hit if name.startswith("ask:")]
        assert asked == ["ask:update:configmaps:before", "ask:update:configmaps:after"]


@pytest.mark.virtual
async def test_a_token_is_kept_for_a_while_if_the_local_clock_is_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = SimpleNamespace(
        now=clock.now, parse=clock.parse, wall=lambda: clock.wall() + timedelta(seconds=2 * LIFE)
    )
    monkeypatch.setattr(account_token, "clock", ahead)
    async with world() as env:
        source = AccountToken(env.client, "default", "robot")
        first = await source.get_credentials()
        await asyncio.sleep(account_token.MIN_USE / 2)
        assert await source.get_credentials() == first
        await asyncio.sleep(account_token.MIN_USE)
        assert await source.get_credentials() != first


@pytest.mark.virtual
async def test_a_token_is_renewed_before_it_expires() -> None:
    async with world() as env:
        source = AccountToken(env.client, "default", "robot")
        first, again = await asyncio.gather(source.get_credentials(), source.get_credentials())
        assert first == again
        assert await env.client.find(ServiceAccount, "robot", "default") is not None
        await asyncio.sleep(0.7 * LIFE)
        assert await source.get_credentials() == first
        await asyncio.sleep(0.2 * LIFE)
        second = await source.get_credentials()
        assert second != first
        source.reject(first)
        assert await source.get_credentials() == second
        source.reject(second)
        assert await source.get_credentials() != second


@pytest.mark.virtual
async def test_an_account_without_a_token_says_why() -> None:
    async with world() as env:
        source = AccountToken(env.client, "nowhere", "robot")
        with pytest.raises(
            Unauthorized, match='no token for service account nowhere/robot: namespaces "nowh'
        ):
            await source.get_credentials()
