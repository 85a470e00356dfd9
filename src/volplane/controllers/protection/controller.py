"""Controllers that hold finalizers: for claims, for volumes, for the classes of their attributes.

The subtle thing: before a claim's finalizer goes, the pods of its namespace are listed live, since a pod
may be on its way through the caches. Claims that are checked at the same time share a list, but only one
that begins after they asked: an older list may not show the pod that matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TypeVar, assert_never

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttributesClass
from volplane.client.client import Client
from volplane.controllers.protection.plan import (
    Protect,
    Recheck,
    Release,
    Step,
    classes_of,
    is_at_rest,
    plan_attributes,
    plan_claim,
    plan_volume,
)
from volplane.loops.controller import Controller
from volplane.rules import pods
from volplane.rules.binding import CLAIM_PROTECTION, VOLUME_PROTECTION
from volplane.rules.steps import Wait

T = TypeVar("T", PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass)


class Guard(Controller[str]):
    """Acts out what the two have in common."""

    workers = 64

    async def act(self, key: str, of: T, step: Step) -> None:
        match step:
            case Protect(finalizers) | Release(finalizers):
                await self.client.patch(
                    type(of),
                    of.name,
                    of.namespace,
                    merge={"metadata": {"finalizers": list(finalizers)}},
                    uid=of.uid,
                    revision=of.metadata.resource_version,
                    missing_ok=True,
                )
            case Wait(seconds, why):
                self.queue.later(key, seconds, why)
            case Recheck():
                raise AssertionError("a plan on proven facts asks for no proof")
            case _:
                assert_never(step)


class ClaimProtection(Guard):
    name = "persistentvolumeclaim-protection-controller"

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.lists = Lists(client)

    def setup(self) -> None:
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.users = self.pods.index("claims", pods.claim_keys)

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterable[str]:
        return [new.key] if new is not None and not is_at_rest(new, CLAIM_PROTECTION) else []

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterator[str]:
        for key in pods.claim_keys(old) if old is not None else ():
            claim = self.claims.at(key)
            if claim is not None and claim.is_deleting:
                yield key

    async def reconcile(self, key: str) -> None:
        claim = self.claims.at(key)
        if claim is None:
            return
        steps = list(plan_claim(claim, self.users[key]))
        if steps and isinstance(steps[0], Recheck):
            live = await self.lists.pods(claim.namespace)
            steps = list(plan_claim(claim, live, proven=True))
        for step in steps:
            await self.act(key, claim, step)


class VolumeProtection(Guard):
    name = "persistentvolume-protection-controller"

    def setup(self) -> None:
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        return [new.key] if new is not None and not is_at_rest(new, VOLUME_PROTECTION) else []

    async def reconcile(self, key: str) -> None:
        volume = self.volumes.get(key)
        if volume is None:
            return
        for step in plan_volume(volume):
            await self.act(key, volume, step)


class AttributesProtection(Guard):
    """Live lists before the finalizer goes: they cost much, but such a class is deleted once in a while."""

    name = "volumeattributesclass-protection-controller"

    def setup(self) -> None:
        self.classes = self.watch(VolumeAttributesClass, lambda old, new: [new.key] if new else [])
        self.claims = self.watch(PersistentVolumeClaim, self._left)
        self.volumes = self.watch(PersistentVolume, self._left)
        self.by_claim = self.claims.index("any attributes class", classes_of)
        self.by_volume = self.volumes.index("any attributes class", classes_of)

    def _left(
        self,
        old: PersistentVolume | PersistentVolumeClaim | None,
        new: PersistentVolume | PersistentVolumeClaim | None,
    ) -> Iterator[str]:
        before = classes_of(old) if old is not None else []
        now = classes_of(new) if new is not None else []
        yield from (name for name in before if name not in now)

    async def reconcile(self, key: str) -> None:
        attributes = self.classes.get(key)
        if attributes is None:
            return
        users = _named(self.by_claim[key], self.by_volume[key])
        steps = list(plan_attributes(attributes, users))
        if steps and isinstance(steps[0], Recheck):
            claims = await self.client.list(PersistentVolumeClaim)
            volumes = await self.client.list(PersistentVolume)
            users = _named(
                (claim for claim in claims if key in classes_of(claim)),
                (volume for volume in volumes if key in classes_of(volume)),
            )
            steps = list(plan_attributes(attributes, users, proven=True))
        for step in steps:
            await self.act(key, attributes, step)


def _named(claims: Iterable[PersistentVolumeClaim], volumes: Iterable[PersistentVolume]) -> list[str]:
    return [*(f"claim {claim.key}" for claim in claims), *(f"volume {volume.name}" for volume in volumes)]


class Lists:
    """Live lists of pods, shared by those who ask before the list begins."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._locks: dict[str, asyncio.Lock] = {}
        self._next: dict[str, asyncio.Future[list[Pod]]] = {}

    async def pods(self, namespace: str) -> list[Pod]:
        answer = self._next.get(namespace)
        if answer is None:
            answer = self._next[namespace] = asyncio.get_running_loop().create_future()
        lock = self._locks.setdefault(namespace, asyncio.Lock())
        async with lock:  # whoever enters first after a list ended asks for all who came meanwhile
            if not answer.done():
                await self._ask(namespace, answer)
        return answer.result()

    async def _ask(self, namespace: str, answer: asyncio.Future[list[Pod]]) -> None:
        del self._next[namespace]
        try:
            answer.set_result(await self.client.list(Pod, namespace))
        except Exception as error:
            answer.set_exception(error)
        except asyncio.CancelledError:
            answer.cancel()
            raise
