"""Keeps the pods of each StatefulSet, one name after the other.

What a set does to different pods happens at the same time; the plan says how much that may be. The status
is written first, so that a pod that cannot be made does not hide what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, assert_never

from msgspec import to_builtins

from volplane.api import codec
from volplane.api.apps import ControllerRevision, StatefulSet
from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.api.errors import AlreadyExists, APIError, Conflict
from volplane.base import clock
from volplane.controllers.statefulset import identity
from volplane.controllers.statefulset.plan import (
    Adopt,
    Create,
    Deed,
    Delete,
    Forget,
    Label,
    Own,
    Record,
    Release,
    Renumber,
    Report,
    Supply,
    View,
    plan,
)
from volplane.loops.controller import Controller
from volplane.rules.steps import Say, Wait
from volplane.rules.workloads import (
    controller_of,
    controller_uids,
    orphan_namespaces,
    owner_keys,
    owner_reference,
)


class StatefulSets(Controller[str]):
    name = "statefulset-controller"

    def setup(self) -> None:
        self.sets = self.watch(StatefulSet, lambda old, new: [new.key] if new else [])
        self.pods = self.watch(Pod, self._set_of_pod)
        self.revisions = self.watch(
            ControllerRevision, lambda *revisions: owner_keys("StatefulSet", *revisions)
        )
        self.claims = self.watch(PersistentVolumeClaim, self._sets_of_claim)
        self.own_pods = self.pods.index("controller", controller_uids)
        self.own_revisions = self.revisions.index("controller", controller_uids)
        self.orphan_pods = self.pods.index("orphans", orphan_namespaces)
        self.orphan_revisions = self.revisions.index("orphans", orphan_namespaces)

    # --- whom a change wakes

    def _set_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        yield from owner_keys("StatefulSet", old, new)
        pod = new or old
        if pod is not None and controller_of(pod) is None:
            parent, _ = identity.parse(pod.name)
            if parent in self.sets.names(pod.namespace):  # it may want to be adopted, or leaves a name free
                yield f"{pod.namespace}/{parent}"

    def _sets_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterable[str]:
        """Only what a pod may wait for: a claim that goes, or changes hands."""
        if new is None or (old is not None and _hands(old) != _hands(new)):
            claim = old or new
            assert claim is not None
            yield from self._candidates(claim)

    def _candidates(self, claim: PersistentVolumeClaim) -> Iterator[str]:
        """`data-my-db-0` may be of `my-db` or of `db`."""
        rest, _ = identity.parse(claim.name)
        known = self.sets.names(claim.namespace)
        while "-" in rest:
            _, _, rest = rest.partition("-")
            if rest in known:
                yield f"{claim.namespace}/{rest}"

    # --- the work

    def view(self, wanted: StatefulSet) -> View:
        where = wanted.namespace
        return View(
            wanted,
            clock.wall(),
            pods=self.own_pods[wanted.uid],
            revisions=self.own_revisions[wanted.uid],
            claims=self.claims.names(where),
            orphans=[*self.orphan_pods[where], *self.orphan_revisions[where]],
        )

    async def reconcile(self, key: str) -> None:
        wanted = self.sets.at(key)
        if wanted is None:
            return
        deeds: list[Deed] = []
        for step in plan(self.view(wanted)):
            match step:
                case Adopt(orphan):
                    await self._adopt(wanted, orphan)
                case Release(pod):
                    await self._hand_over(pod, None)
                case Record(revision):
                    await self._record(wanted, revision)
                case Renumber(revision, number):
                    await self.client.patch(
                        ControllerRevision,
                        revision.name,
                        revision.namespace,
                        merge={"revision": number},
                        uid=revision.uid,
                    )
                case Forget(revision):
                    await self.client.delete(
                        ControllerRevision,
                        revision.name,
                        revision.namespace,
                        uid=revision.uid,
                        missing_ok=True,
                    )
                case Report(status):
                    await self._report(wanted, codec.exactly(status))
                case Create() | Supply() | Own() | Label() | Delete():
                    deeds.append(step)
                case Wait(seconds, why):
                    self.queue.later(key, seconds, why)
                case Say(type, reason, message):
                    self.events.event(wanted, type, reason, message)
                case _:
                    assert_never(step)
        await self._act(wanted, deeds)

    async def _act(self, wanted: StatefulSet, deeds: list[Deed]) -> None:
        # Whose a claim is stands before the pod goes that it may go with.
        for deed in deeds:
            if isinstance(deed, Own):
                await self._own(deed)
        async with asyncio.TaskGroup() as group:
            for deed in deeds:
                match deed:
                    case Create(pod, claims):
                        group.create_task(self._create(wanted, pod, claims))
                    case Supply(pod, claims):
                        group.create_task(self._supply(wanted, pod, claims))
                    case Label(pod, labels):
                        group.create_task(self._label(wanted, pod, dict(labels)))
                    case Delete(pod):
                        group.create_task(self._delete(wanted, pod))
                    case Own():
                        pass
                    case _:
                        assert_never(deed)

    async def _report(self, wanted: StatefulSet, status: dict[str, Any]) -> None:
        await self.client.patch(
            StatefulSet,
            wanted.name,
            wanted.namespace,
            merge={"status": status},
            subresource="status",
            uid=wanted.uid,
            missing_ok=True,
        )

    # --- whose they are

    async def _adopt(self, wanted: StatefulSet, orphan: Pod | ControllerRevision) -> None:
        live = await self.client.find(StatefulSet, wanted.name, wanted.namespace)
        if live is None or live.uid != wanted.uid or live.is_deleting:
            raise Conflict(f"{wanted.name} is going and adopts nobody")
        await self._hand_over(orphan, wanted)

    async def _hand_over(self, obj: Pod | ControllerRevision, to: StatefulSet | None) -> None:
        """Give the object a controller, or none; at this revision only, since another may reach for it."""
        others = [to_builtins(r) for r in obj.metadata.owner_references if not r.controller]
        mine = [to_builtins(owner_reference(to))] if to else []
        await self.client.patch(
            type(obj),
            obj.name,
            obj.namespace,
            merge={"metadata": {"ownerReferences": [*others, *mine] or None}},
            uid=obj.uid,
            revision=obj.metadata.resource_version,
            missing_ok=True,
        )

    async def _own(self, deed: Own) -> None:
        claim = deed.claim
        await self.client.patch(
            PersistentVolumeClaim,
            claim.name,
            claim.namespace,
            merge={"metadata": {"ownerReferences": [to_builtins(r) for r in deed.owners] or None}},
            uid=claim.uid,
            revision=claim.metadata.resource_version,
            missing_ok=True,
        )

    # --- revisions

    async def _record(self, wanted: StatefulSet, revision: ControllerRevision) -> None:
        held = await self.client.create(revision, exists_ok=True)
        if held.data == revision.data and _is_controlled(held, wanted):
            return
        # Another template under the same short name: the next plan counts one further and finds a free one.
        count = (wanted.status.collision_count or 0) + 1
        await self._report(wanted, {"collisionCount": count})
        raise Conflict(f"controller revision {revision.name} has another template")

    # --- pods and their claims

    async def _create(self, wanted: StatefulSet, pod: Pod, claims: Iterable[PersistentVolumeClaim]) -> None:
        try:
            for claim in claims:
                await self._make_claim(wanted, pod, claim)
            await self.client.create(pod)
        except AlreadyExists:
            raise  # somebody's pod of this name; its end wakes us
        except APIError as error:
            self._said(wanted, "Create", f"Pod {pod.name}", error)
            raise
        self._said(wanted, "Create", f"Pod {pod.name}")

    async def _supply(self, wanted: StatefulSet, pod: Pod, claims: Iterable[PersistentVolumeClaim]) -> None:
        for claim in claims:
            await self._make_claim(wanted, pod, claim)

    async def _make_claim(self, wanted: StatefulSet, pod: Pod, claim: PersistentVolumeClaim) -> None:
        try:
            await self.client.create(claim, exists_ok=True)
        except APIError as error:
            self._said(wanted, "Create", f"Claim {claim.name} for Pod {pod.name}", error)
            raise
        text = f"Create Claim {claim.name} Pod {pod.name} in StatefulSet {wanted.name} success"
        self.events.event(wanted, "Normal", "SuccessfulCreate", text)

    async def _label(self, wanted: StatefulSet, pod: Pod, labels: dict[str, str]) -> None:
        await self.client.patch(
            Pod, pod.name, pod.namespace, merge={"metadata": {"labels": labels}}, uid=pod.uid, missing_ok=True
        )
        self._said(wanted, "Update", f"Pod {pod.name}")

    async def _delete(self, wanted: StatefulSet, pod: Pod) -> None:
        try:
            await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, missing_ok=True)
        except APIError as error:
            self._said(wanted, "Delete", f"Pod {pod.name}", error)
            raise
        self._said(wanted, "Delete", f"Pod {pod.name}")

    def _said(self, wanted: StatefulSet, verb: str, what: str, error: APIError | None = None) -> None:
        text = f"{verb} {what} in StatefulSet {wanted.name}"
        if error is None:
            self.events.event(wanted, "Normal", f"Successful{verb}", f"{text} successful")
        else:
            self.events.event(wanted, "Warning", f"Failed{verb}", f"{text} failed error: {error}")


def _hands(claim: PersistentVolumeClaim) -> tuple[Any, ...]:
    return claim.is_deleting, claim.metadata.owner_references


def _is_controlled(revision: ControllerRevision, by: StatefulSet) -> bool:
    return by.uid in controller_uids(revision)
