"""Controllers that hold protection finalizers: of claims, volumes, and VolumeAttributesClasses.

Before a claim's finalizer is removed, the pods of its namespace are listed live, since a pod may not have
reached the caches yet. Claims that are verified at the same time share a list, but only one that starts after
they asked: an older list may not show the pod that matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import TypeVar, assert_never

from msgspec import structs

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.finalizers import PV_PROTECTION_FINALIZER, PVC_PROTECTION_FINALIZER
from volplane.api.storage import VolumeAttributesClass
from volplane.client.client import Client
from volplane.controllers.protection.plan import (
    AddFinalizer,
    AttributesProtectionView,
    ClaimProtectionView,
    RemoveFinalizer,
    Step,
    VerifyUnused,
    classes_of,
    is_protected,
    plan_attributes,
    plan_claim,
    plan_volume,
)
from volplane.loops.controller import Controller, Replan
from volplane.rules import pods
from volplane.rules.waits import Wait

V = TypeVar("V")
Protected = PersistentVolume | PersistentVolumeClaim | VolumeAttributesClass


class Protection(Controller[str, V, Step]):
    """The shared part of the three: how a step is carried out."""

    workers = 64

    def subject(self, view: V) -> Protected:
        raise NotImplementedError

    async def verify(self, view: V) -> V:
        """The view with its users as read from the server."""
        raise NotImplementedError

    async def act(self, key: str, view: V, step: Step) -> Replan[V] | None:
        match step:
            case AddFinalizer(finalizers) | RemoveFinalizer(finalizers):
                protected = self.subject(view)
                await self.client.patch(
                    type(protected),
                    protected.name,
                    protected.namespace,
                    merge={"metadata": {"finalizers": list(finalizers)}},
                    uid=protected.uid,
                    revision=protected.metadata.resource_version,
                    missing_ok=True,
                )
            case VerifyUnused():
                return Replan(await self.verify(view))
            case _:
                assert_never(step)
        return None


class ClaimProtection(Protection[ClaimProtectionView]):
    name = "persistentvolumeclaim-protection-controller"

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.live_lists = LiveLists(client)

    def setup(self) -> None:
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.users = self.pods.index("claims", pods.claim_keys)

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterable[str]:
        return [new.key] if new is not None and not is_protected(new, PVC_PROTECTION_FINALIZER) else []

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterator[str]:
        for key in pods.claim_keys(old) if old is not None else ():
            claim = self.claims.at(key)
            if claim is not None and claim.is_deleting:
                yield key

    def view(self, key: str) -> ClaimProtectionView | None:
        claim = self.claims.at(key)
        return ClaimProtectionView(claim, self.users[key]) if claim is not None else None

    def plan(self, view: ClaimProtectionView) -> Iterator[Step | Wait]:
        return plan_claim(view.claim, view.users, proven=view.proven)

    def subject(self, view: ClaimProtectionView) -> PersistentVolumeClaim:
        return view.claim

    async def verify(self, view: ClaimProtectionView) -> ClaimProtectionView:
        live = await self.live_lists.list_pods(view.claim.namespace)
        return ClaimProtectionView(view.claim, live, proven=True)


class VolumeProtection(Protection[PersistentVolume]):
    name = "persistentvolume-protection-controller"

    def setup(self) -> None:
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        return [new.key] if new is not None and not is_protected(new, PV_PROTECTION_FINALIZER) else []

    def view(self, key: str) -> PersistentVolume | None:
        return self.volumes.get(key)

    def plan(self, view: PersistentVolume) -> Iterator[Step | Wait]:
        return plan_volume(view)

    def subject(self, view: PersistentVolume) -> PersistentVolume:
        return view


class AttributesProtection(Protection[AttributesProtectionView]):
    """Lists claims and volumes live before the finalizer is removed: expensive, but rare."""

    name = "volumeattributesclass-protection-controller"

    def setup(self) -> None:
        self.classes = self.watch(VolumeAttributesClass, lambda old, new: [new.key] if new else [])
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_user)
        self.volumes = self.watch(PersistentVolume, self.keys_of_user)
        self.by_claim = self.claims.index("any attributes class", classes_of)
        self.by_volume = self.volumes.index("any attributes class", classes_of)

    def keys_of_user(
        self,
        old: PersistentVolume | PersistentVolumeClaim | None,
        new: PersistentVolume | PersistentVolumeClaim | None,
    ) -> Iterator[str]:
        """The classes that a claim or volume no longer refers to."""
        before = classes_of(old) if old is not None else []
        if before:
            now = classes_of(new) if new is not None else []
            yield from (name for name in before if name not in now)

    def view(self, key: str) -> AttributesProtectionView | None:
        attributes = self.classes.get(key)
        if attributes is None:
            return None
        return AttributesProtectionView(attributes, _describe_users(self.by_claim[key], self.by_volume[key]))

    def plan(self, view: AttributesProtectionView) -> Iterator[Step | Wait]:
        return plan_attributes(view.attributes, view.users, proven=view.proven)

    def subject(self, view: AttributesProtectionView) -> VolumeAttributesClass:
        return view.attributes

    async def verify(self, view: AttributesProtectionView) -> AttributesProtectionView:
        name = view.attributes.name
        claims = await self.client.list(PersistentVolumeClaim)
        volumes = await self.client.list(PersistentVolume)
        users = _describe_users(
            (claim for claim in claims if name in classes_of(claim)),
            (volume for volume in volumes if name in classes_of(volume)),
        )
        return structs.replace(view, users=users, proven=True)


def _describe_users(
    claims: Iterable[PersistentVolumeClaim], volumes: Iterable[PersistentVolume]
) -> list[str]:
    return [*(f"claim {claim.key}" for claim in claims), *(f"volume {volume.name}" for volume in volumes)]


class LiveLists:
    """Live lists of pods, shared by all who ask before a list starts."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._locks: dict[str, asyncio.Lock] = {}
        self._next: dict[str, asyncio.Future[list[Pod]]] = {}

    async def list_pods(self, namespace: str) -> list[Pod]:
        answer = self._next.get(namespace)
        if answer is None:
            answer = self._next[namespace] = asyncio.get_running_loop().create_future()
        lock = self._locks.setdefault(namespace, asyncio.Lock())
        async with lock:  # the first caller after a list has ended lists for all that are waiting
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
