"""Reconcile the pods of each StatefulSet, one ordinal after the other.

Steps for different pods are carried out concurrently; the plan decides how many there are. The status is
written first, so that a pod that cannot be created does not keep it from being updated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_never

from msgspec import to_builtins

from volplane.api import codec
from volplane.api.apps import ControllerRevision, StatefulSet
from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.api.errors import AlreadyExists, APIError, Conflict
from volplane.base import clock
from volplane.controllers.statefulset import identity
from volplane.controllers.statefulset.plan import (
    CreateClaims,
    CreatePodWithClaims,
    CreateRevision,
    DeleteRevision,
    PodStep,
    SetOwnerRefs,
    SetPodLabels,
    SetRevisionNumber,
    SetStatefulSetStatus,
    StatefulSetView,
    Step,
    plan,
)
from volplane.loops import adoption
from volplane.loops.controller import Controller
from volplane.rules.adoption import AdoptObject, ReleaseObject
from volplane.rules.steps import CommonStep
from volplane.rules.workloads import (
    DeletePod,
    controller_of,
    controller_uids,
    orphan_namespaces,
    owner_keys,
)


class StatefulSets(Controller[str, StatefulSetView, Step]):
    name = "statefulset-controller"

    def setup(self) -> None:
        self.sets = self.watch(StatefulSet, lambda old, new: [new.key] if new else [])
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.revisions = self.watch(
            ControllerRevision, lambda *revisions: owner_keys("StatefulSet", *revisions)
        )
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.own_pods = self.pods.index("controller", controller_uids)
        self.own_revisions = self.revisions.index("controller", controller_uids)
        self.orphan_pods = self.pods.index("orphans", orphan_namespaces)
        self.orphan_revisions = self.revisions.index("orphans", orphan_namespaces)

    # --- which keys a change wakes

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        yield from owner_keys("StatefulSet", old, new)
        pod = new or old
        if pod is not None and controller_of(pod) is None:
            parent, _ = identity.parse(pod.name)
            if parent in self.sets.names(pod.namespace):  # it may be adopted, or it frees a name
                yield f"{pod.namespace}/{parent}"

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterable[str]:
        """Only changes that a pod may wait for: a claim is deleted or gets another owner."""
        if new is None or (old is not None and _relevant_fields(old) != _relevant_fields(new)):
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

    # --- what to do

    def view(self, key: str) -> StatefulSetView | None:
        wanted = self.sets.at(key)
        if wanted is None:
            return None
        where = wanted.namespace
        return StatefulSetView(
            wanted,
            clock.wall(),
            pods=self.own_pods[wanted.uid],
            revisions=self.own_revisions[wanted.uid],
            claims=self.claims.names(where),
            orphans=[*self.orphan_pods[where], *self.orphan_revisions[where]],
        )

    def plan(self, view: StatefulSetView) -> Iterator[Step | CommonStep]:
        return plan(view)

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterator[Sequence[Step | CommonStep]]:
        """The set itself first, then the claims' owners, then all pods concurrently.

        A claim has its owner before a pod is deleted with which the claim may be deleted.
        """
        yield from ([step] for step in steps if not isinstance(step, PodStep))
        yield from ([step] for step in steps if isinstance(step, SetOwnerRefs))
        yield [step for step in steps if isinstance(step, PodStep) and not isinstance(step, SetOwnerRefs)]

    def subject(self, view: StatefulSetView) -> StatefulSet:
        return view.wanted

    async def act(self, key: str, view: StatefulSetView, step: Step) -> None:
        wanted = view.wanted
        match step:
            case AdoptObject() | ReleaseObject():
                await adoption.carry_out(self.client, wanted, step)
            case CreateRevision(revision):
                await self._create_revision(wanted, revision)
            case SetRevisionNumber(revision, number):
                await self.client.patch(
                    ControllerRevision,
                    revision.name,
                    revision.namespace,
                    merge={"revision": number},
                    uid=revision.uid,
                )
            case DeleteRevision(revision):
                await self.client.delete(
                    ControllerRevision,
                    revision.name,
                    revision.namespace,
                    uid=revision.uid,
                    missing_ok=True,
                )
            case SetStatefulSetStatus(status):
                await self._set_status(wanted, codec.full_merge_patch(status))
            case SetOwnerRefs():
                await self._set_owner_refs(step)
            case CreatePodWithClaims(pod, claims):
                await self._create(wanted, pod, claims)
            case CreateClaims(pod, claims):
                await self._create_claims(wanted, pod, claims)
            case SetPodLabels(pod, labels):
                await self._set_labels(wanted, pod, dict(labels))
            case DeletePod(pod):
                await self._delete(wanted, pod)
            case _:
                assert_never(step)

    async def _set_status(self, wanted: StatefulSet, status: dict[str, Any]) -> None:
        await self.client.patch(
            StatefulSet,
            wanted.name,
            wanted.namespace,
            merge={"status": status},
            subresource="status",
            uid=wanted.uid,
            missing_ok=True,
        )

    # --- owners

    async def _set_owner_refs(self, step: SetOwnerRefs) -> None:
        claim = step.claim
        await self.client.patch(
            PersistentVolumeClaim,
            claim.name,
            claim.namespace,
            merge={"metadata": {"ownerReferences": [to_builtins(r) for r in step.owners] or None}},
            uid=claim.uid,
            revision=claim.metadata.resource_version,
            missing_ok=True,
        )

    # --- revisions

    async def _create_revision(self, wanted: StatefulSet, revision: ControllerRevision) -> None:
        held = await self.client.create(revision, exists_ok=True)
        if held.data == revision.data and _is_controlled(held, wanted):
            return
        # A hash collision: the next plan uses another collision count.
        count = (wanted.status.collision_count or 0) + 1
        await self._set_status(wanted, {"collisionCount": count})
        raise Conflict(f"controller revision {revision.name} has another template")

    # --- pods and their claims

    async def _create(self, wanted: StatefulSet, pod: Pod, claims: Iterable[PersistentVolumeClaim]) -> None:
        try:
            for claim in claims:
                await self._create_claim(wanted, pod, claim)
            await self.client.create(pod)
        except AlreadyExists:
            raise  # another owner's pod of this name; its deletion wakes the set
        except APIError as error:
            self._record_event(wanted, "Create", f"Pod {pod.name}", error)
            raise
        self._record_event(wanted, "Create", f"Pod {pod.name}")

    async def _create_claims(
        self, wanted: StatefulSet, pod: Pod, claims: Iterable[PersistentVolumeClaim]
    ) -> None:
        for claim in claims:
            await self._create_claim(wanted, pod, claim)

    async def _create_claim(self, wanted: StatefulSet, pod: Pod, claim: PersistentVolumeClaim) -> None:
        try:
            await self.client.create(claim, exists_ok=True)
        except APIError as error:
            self._record_event(wanted, "Create", f"Claim {claim.name} for Pod {pod.name}", error)
            raise
        text = f"Create Claim {claim.name} Pod {pod.name} in StatefulSet {wanted.name} success"
        self.events.event(wanted, "Normal", "SuccessfulCreate", text)

    async def _set_labels(self, wanted: StatefulSet, pod: Pod, labels: dict[str, str]) -> None:
        await self.client.patch(
            Pod, pod.name, pod.namespace, merge={"metadata": {"labels": labels}}, uid=pod.uid, missing_ok=True
        )
        self._record_event(wanted, "Update", f"Pod {pod.name}")

    async def _delete(self, wanted: StatefulSet, pod: Pod) -> None:
        try:
            await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, missing_ok=True)
        except APIError as error:
            self._record_event(wanted, "Delete", f"Pod {pod.name}", error)
            raise
        self._record_event(wanted, "Delete", f"Pod {pod.name}")

    def _record_event(self, wanted: StatefulSet, verb: str, what: str, error: APIError | None = None) -> None:
        text = f"{verb} {what} in StatefulSet {wanted.name}"
        if error is None:
            self.events.event(wanted, "Normal", f"Successful{verb}", f"{text} successful")
        else:
            self.events.event(wanted, "Warning", f"Failed{verb}", f"{text} failed error: {error}")


def _relevant_fields(claim: PersistentVolumeClaim) -> tuple[Any, ...]:
    return claim.is_deleting, claim.metadata.owner_references


def _is_controlled(revision: ControllerRevision, by: StatefulSet) -> bool:
    return by.uid in controller_uids(revision)
