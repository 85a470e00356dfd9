"""Owners and dependents of custom kinds, on the real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.loops.inprocess import running, until, world
from volplane.api import codec, kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import ConfigMap, Event, PersistentVolume, Secret
from volplane.api.meta import ObjectMeta, OwnerReference, Resource
from volplane.api.rbac import ClusterRole
from volplane.client.client import Client
from volplane.controllers.garbage.controller import BUILT_IN_KINDS, GarbageCollector

pytestmark = pytest.mark.virtual

Widget = kinds.define_metadata_only_type("example.com", "v1", "Widget", "widgets", namespaced=True)
Field = kinds.define_metadata_only_type("example.com", "v1", "Field", "fields", namespaced=False)


def definition(kind: str = "Widget", scope: str = "Namespaced", *older: str) -> CustomResourceDefinition:
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [
        {"name": name, "served": True, "storage": name == "v1", "schema": schema} for name in ("v1", *older)
    ]
    spec = {
        "group": "example.com",
        "scope": scope,
        "names": {"plural": plural, "kind": kind, "singular": kind.lower(), "listKind": f"{kind}List"},
        "versions": versions,
    }
    return codec.convert(
        CustomResourceDefinition, {"metadata": {"name": f"{plural}.example.com"}, "spec": spec}
    )


def owned_by(owner: Resource, **more: Any) -> OwnerReference:
    kind = kinds.of(type(owner))
    given = {"api_version": kind.api_version, "kind": kind.kind, **more}
    return OwnerReference(name=owner.name, uid=owner.uid, **given)


def make_object(of: type[Any], name: str, *owners: OwnerReference, **more: Any) -> Any:
    namespace = "default" if kinds.of(of).namespaced else ""
    return of(metadata=ObjectMeta(name=name, namespace=namespace, owner_references=owners, **more))


class Owned:
    """A widget, and what belongs to it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def define(self, *definitions: CustomResourceDefinition) -> None:
        for each in definitions:
            await self.client.create(each)

            async def is_served(name: str = each.name) -> bool:
                held = await self.client.get(CustomResourceDefinition, name)
                return any(c.type == "Established" and c.status == "True" for c in held.status.conditions)

            await until(is_served)

    async def widget(self, name: str = "w", *owners: OwnerReference, **more: Any) -> Resource:
        return await self.client.create(make_object(Widget, name, *owners, **more))

    async def config(self, name: str, *owners: OwnerReference, **more: Any) -> ConfigMap:
        return await self.client.create(make_object(ConfigMap, name, *owners, **more))

    async def wait_until_gone(self, of: type[Resource], name: str) -> None:
        async def absent() -> bool:
            return await self.client.find(of, name, "default" if kinds.of(of).namespaced else "") is None

        await until(absent)

    async def stays(self, of: type[Resource], name: str) -> Resource:
        await asyncio.sleep(120)
        return await self.client.get(of, name, "default" if kinds.of(of).namespaced else "")


@asynccontextmanager
async def cluster(*definitions: CustomResourceDefinition) -> AsyncIterator[Owned]:
    async with world() as around, running(GarbageCollector(around.role("kcm")).run()):
        owned = Owned(around.client)
        await owned.define(*definitions)
        yield owned


async def test_what_a_custom_object_owns_goes_with_it() -> None:
    async with cluster(definition()) as c:
        widget = await c.widget()
        await c.config("mine", owned_by(widget))
        await c.client.delete(Widget, "w", "default", propagation="Background")
        await c.wait_until_gone(ConfigMap, "mine")


async def test_a_custom_object_goes_with_its_built_in_owner() -> None:
    async with cluster(definition()) as c:
        owner = await c.config("owner")
        await c.widget("w", owned_by(owner))
        await c.client.delete(ConfigMap, "owner", "default")
        await c.wait_until_gone(Widget, "w")


async def test_ownership_goes_on_through_custom_objects() -> None:
    async with cluster(definition(), definition("Field", "Cluster")) as c:
        field = await c.client.create(make_object(Field, "f"))
        widget = await c.widget("w", owned_by(field))
        await c.config("mine", owned_by(widget))
        await c.client.delete(Field, "f")
        await c.wait_until_gone(Widget, "w")
        await c.wait_until_gone(ConfigMap, "mine")


async def test_in_the_foreground_a_custom_owner_stays_until_what_blocks_it_is_gone() -> None:
    async with cluster(definition()) as c:
        widget = await c.widget()
        held = await c.config(
            "mine", owned_by(widget, block_owner_deletion=True), finalizers=("example.com/wait",)
        )
        await c.client.delete(Widget, "w", "default", propagation="Foreground")
        waiting = await c.stays(Widget, "w")
        assert waiting.metadata.finalizers == ("foregroundDeletion",)
        assert (await c.client.get(ConfigMap, "mine", "default")).is_deleting
        await c.client.patch(ConfigMap, held.name, "default", merge={"metadata": {"finalizers": None}})
        await c.wait_until_gone(Widget, "w")


async def test_an_orphan_of_a_custom_object_loses_its_owner_and_stays() -> None:
    async with cluster(definition()) as c:
        widget = await c.widget()
        await c.config("mine", owned_by(widget))
        await c.client.delete(Widget, "w", "default", propagation="Orphan")
        await c.wait_until_gone(Widget, "w")
        assert (await c.stays(ConfigMap, "mine")).metadata.owner_references == ()


async def test_a_reference_may_name_any_version_that_is_served() -> None:
    async with cluster(definition("Widget", "Namespaced", "v1beta1")) as c:
        widget = await c.widget()
        await c.config("mine", owned_by(widget, api_version="example.com/v1beta1"))
        await c.stays(ConfigMap, "mine")
        await c.client.delete(Widget, "w", "default")
        await c.wait_until_gone(ConfigMap, "mine")


async def test_an_owner_that_never_was_is_absent_and_one_of_an_unknown_kind_is_not() -> None:
    async with cluster() as c:
        reference = OwnerReference(api_version="example.com/v1", kind="Widget", name="w", uid="u-1")
        await c.config("mine", reference)
        await c.stays(ConfigMap, "mine")
        await c.define(definition())  # now it can be judged
        await c.wait_until_gone(ConfigMap, "mine")


async def test_what_belongs_to_a_kind_goes_when_the_kind_does() -> None:
    async with cluster(definition()) as c:
        widget = await c.widget()
        await c.config("mine", owned_by(widget))
        await c.client.delete(CustomResourceDefinition, "widgets.example.com")
        await c.wait_until_gone(CustomResourceDefinition, "widgets.example.com")
        await c.wait_until_gone(ConfigMap, "mine")


async def test_a_kind_that_comes_again_is_followed_again() -> None:
    async with cluster(definition()) as c:
        await c.client.delete(CustomResourceDefinition, "widgets.example.com")
        await c.wait_until_gone(CustomResourceDefinition, "widgets.example.com")
        await c.define(definition())
        widget = await c.widget()
        await c.config("mine", owned_by(widget))
        await c.client.delete(Widget, "w", "default")
        await c.wait_until_gone(ConfigMap, "mine")


async def test_what_was_there_before_the_controller_is_collected_too() -> None:
    async with world() as around:
        c = Owned(around.client)
        await c.define(definition())
        widget = await c.widget()
        await c.config("mine", owned_by(widget))
        await c.config("theirs", owned_by(await c.widget("lives")))
        await c.client.delete(Widget, "w", "default")
        async with running(GarbageCollector(around.role("kcm")).run()):
            await c.wait_until_gone(ConfigMap, "mine")
            await c.stays(ConfigMap, "theirs")


@pytest.mark.parametrize("of", [PersistentVolume, ClusterRole], ids=lambda of: of.__name__)
async def test_an_object_without_a_namespace_cannot_belong_to_one_that_has_one(of: type[Any]) -> None:
    async with cluster(definition()) as c:
        widget = await c.widget()
        obj = make_object(of, "wide", owned_by(widget))
        if of is PersistentVolume:
            spec = {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "d.example.com", "volumeHandle": "v"},
            }
            obj = codec.convert(of, {**codec.to_dict(obj), "spec": spec})
        await c.client.create(obj)

        async def list_messages() -> list[str]:
            events = await c.client.list(Event)
            return [e.message for e in events if e.reason == "OwnerRefInvalidNamespace"]

        assert await until(list_messages) == [
            f"ownerRef [example.com/v1/Widget, namespace: , name: w, uid: {widget.uid}]"
            ' does not exist in namespace ""'
        ]
        await c.client.delete(Widget, "w", "default")
        await c.stays(of, "wide")


async def test_every_built_in_kind_that_can_be_made_and_deleted_is_followed() -> None:
    names = {kinds.of(of).resource for of in BUILT_IN_KINDS}
    assert {
        "poddisruptionbudgets.policy",
        "roles.rbac.authorization.k8s.io",
        "leases.coordination.k8s.io",
        "ingresses.networking.k8s.io",
    } < names
    assert not names & {
        "events",
        "events.events.k8s.io",
        "componentstatuses",
    }


async def test_a_secret_with_a_living_and_a_dead_custom_owner_keeps_the_living() -> None:
    async with cluster(definition()) as c:
        first, second = await c.widget("first"), await c.widget("second")
        await c.client.create(make_object(Secret, "shared", owned_by(first), owned_by(second)))
        await c.client.delete(Widget, "first", "default")

        async def is_left() -> bool:
            held = await c.client.get(Secret, "shared", "default")
            return [r.name for r in held.metadata.owner_references] == ["second"]

        await until(is_left)


async def test_a_circle_of_owners_does_not_stop_a_foreground_deletion() -> None:
    async with world() as env:
        client = env.client
        maps = [await client.create(make_object(ConfigMap, name)) for name in ("a", "b", "c")]
        for at, one in enumerate(maps):
            owner = codec.to_dict(owned_by(maps[at - 1], block_owner_deletion=True, controller=True))
            patch = {"metadata": {"ownerReferences": [owner]}}
            await client.patch(ConfigMap, one.name, "default", merge=patch)
        async with running(GarbageCollector(env.role("gc")).run()):
            await client.delete(ConfigMap, "a", "default", propagation="Foreground")

            async def gone() -> bool:
                return not await client.list(ConfigMap, "default")

            assert await until(gone)
