"""Claims and volumes as keys of one queue: `pvc/<namespace>/<name>` and `pv/<name>`.

Every change wakes the side it happened on and the side it is about; a volume that comes free wakes the
claims that wait for one of its class. What a plan decides is written one patch after the other, and the
first that does not go through ends the round: the next plan goes on from what was written.

The subtle thing: several claims are planned at the same time and may want the same volume. Whoever takes it
first notes that here, before the write is on its way, so that the others look further instead of losing a
race; the volume's resourceVersion is what really decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import structs

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.storage import StorageClass
from volplane.base import clock, trace
from volplane.client.client import Client
from volplane.controllers.binder.plan import ClaimView, VolumeView, plan_claim, plan_volume
from volplane.controllers.binder.recycling import is_scrubbable, pod_for, scrubbed_by
from volplane.controllers.binder.steps import (
    Adopt,
    Amend,
    ClaimStep,
    HandOff,
    Patch,
    Point,
    Recheck,
    Scrub,
    Settle,
    Sweep,
    Take,
    Turn,
    Unbind,
    VolumeStep,
    Wake,
    together,
)
from volplane.loops.controller import Controller
from volplane.rules import classes, pods
from volplane.rules.binding import (
    BETA_STORAGE_CLASS,
    BETA_STORAGE_PROVISIONER,
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    MIGRATED_TO,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    claim_class,
    claim_key,
    volume_class,
)
from volplane.rules.steps import Say, Wait

log = logging.getLogger(__name__)

COMPONENT = "persistentvolume-controller"
UNSET = "\0unset"  # the index key of claims that name no class; "" is a class of its own
NOTES = (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    STORAGE_PROVISIONER,
    BETA_STORAGE_PROVISIONER,
    BETA_STORAGE_CLASS,
    MIGRATED_TO,
    SELECTED_NODE,
)
NAMES = {Take: "claimRef", Point: "volumeName", HandOff: "storage-provisioner", Adopt: "default class"}


def unclaimed_class(volume: PersistentVolume) -> list[str]:
    return [volume_class(volume)] if volume.spec.claim_ref is None else []


def claimant(volume: PersistentVolume) -> list[str]:
    key = claim_key(volume)
    return [key] if key else []


def waiting_class(claim: PersistentVolumeClaim) -> list[str]:
    if claim.spec.volume_name or BIND_COMPLETED in claim.metadata.annotations:
        return []
    name = claim_class(claim)
    return [UNSET if name is None else name]


def named_volume(claim: PersistentVolumeClaim) -> list[str]:
    return [claim.spec.volume_name] if claim.spec.volume_name else []


def is_same(old: PersistentVolumeClaim, new: PersistentVolumeClaim) -> bool:
    """To the binder: nothing of what its plans read is different."""
    if old.uid != new.uid or old.spec != new.spec or old.status != new.status:
        return False
    before, now = old.metadata.annotations, new.metadata.annotations
    return before == now or all(before.get(note) == now.get(note) for note in NOTES)


class Binder(Controller[str]):
    name = "persistentvolume-binder-controller"
    component = COMPONENT
    workers = 64

    def __init__(self, client: Client, *, sync_period: float = 15.0, dynamic: bool = True) -> None:
        super().__init__(client)
        self.resync = sync_period
        self.dynamic = dynamic
        self._taken: dict[str, tuple[str, int]] = {}  # volume → claim uid, revision (0: not written yet)
        self._said: dict[str, dict[tuple[str, str], float]] = {}  # uid → (reason, message) → when

    def setup(self) -> None:
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)
        self.classes = self.watch(StorageClass, self.keys_of_class)
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.unclaimed = self.volumes.index("unclaimed by class", unclaimed_class)
        self.claimed = self.volumes.index("claimant", claimant)
        self.waiting = self.claims.index("waiting by class", waiting_class)
        self.naming = self.claims.index("named volume", named_volume)
        self.users = self.pods.index("claims", pods.claim_keys)

    # --- whom a change wakes

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        assert claim is not None
        if new is None or BIND_COMPLETED in new.metadata.annotations:
            self._said.pop(claim.uid, None)
        if old is not None and new is not None and old is not new and is_same(old, new):
            return  # finalizers, and what others note on it
        if new is not None:
            yield f"pvc/{claim.key}"
        if claim.spec.volume_name:
            yield f"pv/{claim.spec.volume_name}"
        for volume in self.claimed[claim.key]:
            yield f"pv/{volume.name}"

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        volume = new or old
        assert volume is not None
        self._seen(volume, gone=new is None)
        if new is None:
            self._said.pop(volume.uid, None)
        else:
            yield f"pv/{volume.name}"
        if old is new:
            return  # a round over everything: the others have their own turn
        for side in (old, new):
            if side is not None and side.spec.claim_ref is not None:
                yield f"pvc/{claim_key(side)}"
        for claim in self.naming[volume.name]:
            yield f"pvc/{claim.key}"
        if new is not None and new.spec.claim_ref is None and new.status.phase == "Available":
            name = volume_class(new)
            yield from self._waiting_for(name)
            if not name:
                yield from self._waiting_for(UNSET)

    def keys_of_class(self, old: StorageClass | None, new: StorageClass | None) -> Iterator[str]:
        changed = new or old
        assert changed is not None
        yield from self._waiting_for(changed.name)
        if new is not None and classes.is_default(new):
            yield from self._waiting_for(UNSET)

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterator[str]:
        """Only what the events of waiting claims tell: a pod came, was scheduled, or is gone."""
        pod = new or old
        assert pod is not None
        if scrubbed := scrubbed_by(pod):
            yield f"pv/{scrubbed}"
        if new is None:
            held = [v for key in pods.claim_keys(pod) for v in self.claimed[key]]
            yield from (f"pv/{v.name}" for v in held if is_scrubbable(v))
        if old is not None and new is not None and old.spec.node_name == new.spec.node_name:
            return
        for key in pods.claim_keys(pod):
            claim = self.claims.at(key)
            if claim is not None and waiting_class(claim):
                yield f"pvc/{key}"

    def _waiting_for(self, name: str) -> Iterator[str]:
        return (f"pvc/{claim.key}" for claim in self.waiting[name])

    # --- one key

    def glance(self, key: str) -> bool:
        """A bound pair, or a volume whose claim is at it: of the seven times that the two are woken on their
        way to each other, four.
        """
        kind, _, name = key.partition("/")
        steps: Sequence[ClaimStep | VolumeStep]
        if kind == "pv":
            volume = self.volumes.get(name)
            steps = [] if volume is None else list(plan_volume(self.view_volume(volume)))
        else:
            claim = self.claims.at(name)
            if claim is not None and waiting_class(claim):
                return False  # takes a look at what is unclaimed, and mostly a write
            steps = [] if claim is None else list(plan_claim(self.view_claim(claim)))
        wakes = [step for step in steps if isinstance(step, Wake)]
        if len(wakes) < len(steps):
            return False
        for wake in wakes:
            self.queue.add(f"pvc/{wake.claim}")
        return True

    async def reconcile(self, key: str) -> None:
        kind, _, rest = key.partition("/")
        if kind == "pvc":
            await self._reconcile_claim(key, rest)
        else:
            await self._reconcile_volume(key, rest)

    async def _reconcile_claim(self, key: str, name: str) -> None:
        claim = self.claims.at(name)
        if claim is None:
            return
        steps = list(plan_claim(self.view_claim(claim)))
        for step in steps:  # before the first await: what this claim takes, nobody else looks at
            if isinstance(step, Take):
                self._taken[step.volume.name] = (claim.uid, 0)
        for batch in together(steps):
            if not await self._act_all(key, claim, batch):
                break

    async def _reconcile_volume(self, key: str, name: str) -> None:
        volume = self.volumes.get(name)
        if volume is None:
            return
        view = self.view_volume(volume)
        steps = list(plan_volume(view))
        if steps and isinstance(steps[0], Recheck):
            namespace, _, claim = steps[0].claim.partition("/")
            found = await self.client.find(PersistentVolumeClaim, claim, namespace)
            steps = list(plan_volume(structs.replace(view, claim=found, proven=True)))
        for step in steps:
            if not await self._act(key, volume, step):
                break

    def view_claim(self, claim: PersistentVolumeClaim) -> ClaimView:
        if not waiting_class(claim):
            named = claim.spec.volume_name
            return ClaimView(claim, volume=self.volumes.get(named) if named else None)
        name = claim_class(claim)
        default = None if name is not None else classes.default(self.classes.all())
        unclaimed = [v for v in self.unclaimed[name or ""] if not self._is_taken(v, claim)]
        unscheduled = [
            p.name for p in self.users[claim.key] if not p.spec.node_name and not pods.has_ended(p)
        ]
        return ClaimView(
            claim,
            candidates=[*self.claimed[claim.key], *unclaimed],
            unclaimed=[v for each in self.unclaimed for v in self.unclaimed[each]],
            storage_class=self.classes.get(name) if name else None,
            default_class=default.name if default is not None else "",
            pods=sorted(unscheduled),
            dynamic=self.dynamic,
        )

    def view_volume(self, volume: PersistentVolume) -> VolumeView:
        if not is_scrubbable(volume):
            return VolumeView(volume, self._claim_of(volume))
        users = [p.key for p in self.users[claim_key(volume)] if not pods.has_ended(p)]
        scrubber = pod_for(volume)
        found = self.pods.get(scrubber.name, scrubber.namespace)
        return VolumeView(volume, self._claim_of(volume), users=users, scrubber=found)

    def _claim_of(self, volume: PersistentVolume) -> PersistentVolumeClaim | None:
        ref = volume.spec.claim_ref
        return self.claims.get(ref.name, ref.namespace) if ref is not None else None

    # --- acting

    async def _act_all(self, key: str, about: Resource, batch: Sequence[ClaimStep]) -> bool:
        if len(batch) == 1:
            return await self._act(key, about, batch[0])
        async with asyncio.TaskGroup() as group:
            acts = [group.create_task(self._act(key, about, step)) for step in batch]
        return all(act.result() for act in acts)

    async def _act(self, key: str, about: Resource, step: ClaimStep | VolumeStep) -> bool:
        """Whether the rest of the plan still holds."""
        match step:
            case Take(volume, claim):
                return await self._take(key, step, volume, claim)
            case Turn(volume, phase):
                return await self._patch(key, volume, step.patch, f"volume {phase}", status=True)
            case Point(_, claim) | Adopt(claim) | HandOff(claim):
                return await self._patch(key, claim, step.patch, NAMES[type(step)], guarded=True)
            case Settle(claim, phase):
                return await self._patch(key, claim, step.patch, f"claim {phase}", status=True)
            case Unbind(volume):
                return await self._patch(key, volume, step.patch, "unbind", guarded=True)
            case Amend(target):
                return await self._patch(key, target, step.patch, "amend", guarded=True)
            case Scrub(pod):
                await self.client.create(pod, exists_ok=True)
            case Sweep(pod):
                await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, grace=0, missing_ok=True)
            case Say():
                self._say(step.about or about, step)
            case Wait(seconds, why):
                self.queue.later(key, seconds, why)
            case Wake(claim):
                self.queue.add(f"pvc/{claim}")
            case Recheck():
                raise AssertionError("a plan on proven facts asks for no proof")
            case _:
                assert_never(step)
        return True

    async def _take(
        self, key: str, step: Take, volume: PersistentVolume, claim: PersistentVolumeClaim
    ) -> bool:
        written = 0
        try:
            with trace.span(COMPONENT, "bind claimRef", key, volume=volume.name):
                revision = volume.metadata.resource_version
                made = await self.client.patch(
                    PersistentVolume, volume.name, merge=step.patch, revision=revision, missing_ok=True
                )
                written = made.revision if made is not None else 0
        finally:
            if written and self.volumes.revision < written:
                self._taken[volume.name] = (claim.uid, written)
            else:
                self._taken.pop(volume.name, None)
        return bool(written)

    async def _patch(
        self,
        key: str,
        target: PersistentVolume | PersistentVolumeClaim,
        patch: Patch,
        what: str,
        *,
        status: bool = False,
        guarded: bool = False,
    ) -> bool:
        """`guarded`: only over the very object that was planned on. False when the object is gone."""
        with trace.span(COMPONENT, what, key, target=target.name):
            made = await self.client.patch(
                type(target),
                target.name,
                target.namespace,
                merge=patch,
                subresource="status" if status else "",
                uid=target.uid,
                revision=target.metadata.resource_version if guarded else "",
                missing_ok=True,
            )
        return made is not None

    def _say(self, about: Resource, say: Say) -> None:
        """Once a round: being woken by one's own writes is no news."""
        said = self._said.setdefault(about.uid, {})
        now = clock.now()
        last = said.get((say.reason, say.message))
        if last is not None and (not self.resync or now - last < self.resync * 0.9):
            return
        said[say.reason, say.message] = now
        trace.mark(
            COMPONENT, say.reason, f"{'pv' if isinstance(about, PersistentVolume) else 'pvc'}/{about.key}"
        )
        self.events.event(about, say.type, say.reason, say.message)

    # --- who takes what

    def _is_taken(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
        taken = self._taken.get(volume.name)
        return taken is not None and taken[0] != claim.uid

    def _seen(self, volume: PersistentVolume, *, gone: bool) -> None:
        taken = self._taken.get(volume.name)
        if taken is not None and (gone or 0 < taken[1] <= volume.revision):
            del self._taken[volume.name]
