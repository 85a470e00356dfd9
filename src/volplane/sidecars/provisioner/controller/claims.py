"""Claims become volumes: the order is written down, the driver called, the volume's object saved.

Between the first two lies the one instant at which a disk can leak; the order on the claim, with a finalizer,
closes it. The subtle thing: only a success or a final error takes the order off again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, assert_never

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim
from volplane.api.errors import AlreadyExists, APIError, Conflict, Forbidden
from volplane.api.meta import ObjectMeta
from volplane.api.snapshot import VolumeSnapshot
from volplane.api.storage import CSINode, CSINodeDriver, CSINodeSpec, StorageClass, VolumeAttributesClass
from volplane.base import clock, trace
from volplane.client.client import Client
from volplane.csi import convert
from volplane.csi.outcome import CallError, Provisioning, classify_provisioning
from volplane.loops.controller import Controller, RetryableError
from volplane.loops.events import Recorder
from volplane.loops.queue import Backoff
from volplane.rules import binding, classes
from volplane.rules.steps import TICK, Say, Wait
from volplane.sidecars import Driver
from volplane.sidecars.provisioner import order as orders
from volplane.sidecars.provisioner import plan as plans
from volplane.sidecars.provisioner import sources
from volplane.sidecars.provisioner.controller import counts, making
from volplane.sidecars.provisioner.controller import sources as holding
from volplane.sidecars.provisioner.controller.attempts import Attempt, Attempts
from volplane.sidecars.provisioner.controller.facts import facts
from volplane.sidecars.provisioner.controller.making import Unfit
from volplane.sidecars.provisioner.controller.turns import Turns
from volplane.sidecars.provisioner.order import INTENT, Order
from volplane.sidecars.provisioner.plan import Ask, Create, Fail, Reschedule, Settle, World
from volplane.sidecars.provisioner.settings import Settings

log = logging.getLogger(__name__)

COMPONENT = "csi-provisioner"
SAVING = Backoff(0.005, 1000.0)  # the volume exists: only its object has to be saved
PATIENCE = 5.0  # seconds that the end of an order stays back while others begin
SETTLING = "the volume is made, and the order is to come off"
BINDING = 0.5  # seconds that the binder has the claim to itself: it writes over the very version it has seen


def _class_of(claim: PersistentVolumeClaim) -> list[str]:
    return [] if claim.spec.volume_name else [binding.claim_class(claim) or ""]


class Claims(Controller[str]):
    name = "csi-provisioner"
    resync = 900.0

    def __init__(
        self,
        client: Client,
        driver: Driver,
        settings: Settings,
        *,
        events: Recorder,
        identity: str,
        turns: Turns | None = None,
        changed: Callable[[str], None] = lambda storage_class: None,
    ) -> None:
        self.workers = settings.worker_threads
        self.backoff = Backoff(settings.retry_interval_start, settings.retry_interval_max)
        super().__init__(client, events=events)
        self.driver, self.settings, self.identity = driver, settings, identity
        self.turns, self.changed = turns, changed
        self.facts = facts(
            driver, settings, turns.node if turns else "", dict(turns.places) if turns else None
        )
        self._snapshots = False  # whether their changes are heard
        self._attempts = Attempts()
        self._unsaved: dict[str, PersistentVolume] = {}
        self._binding: dict[str, float] = {}  # until when the binder has the claim to itself
        self._resting: dict[str, float] = {}  # keys of claims whose order stays on while others begin
        self._infeasible: dict[str, tuple[str, float]] = {}  # class uid, until when
        self._unnoted: set[str] = set()  # uids of claims whose order we may not write down
        self._placeless: set[str] = set()  # keys that a node or a registration may help

    def setup(self) -> None:
        self.claims = self.watch(PersistentVolumeClaim, self._claim_changed)
        self.volumes = self.watch(PersistentVolume)
        self.classes = self.watch(StorageClass, self._class_changed)
        self.by_class = self.claims.index("unbound class", _class_of)
        self.by_source = self.claims.index("source", sources.keys_of)
        if self.facts.has_topology and self.turns is None:
            self.nodes = self.watch(Node, self._place_changed)
            self.registrations = self.watch(CSINode, self._place_changed)

    # --- whom a change wakes

    def _claim_changed(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        if new is None and old is not None:
            self._infeasible.pop(old.uid, None)
            self._binding.pop(old.uid, None)
            if self.turns is not None:
                self.turns.forget(old.uid)
        if claim is not None and old is not new:
            yield from (clone.key for clone in self.by_source[f"{sources.CLAIM}/{claim.key}"])
        if not (new is not None and self._concerns(new)) and not (old is not None and self._concerns(old)):
            return
        if new is not None and new.uid in self._binding and self._is_as_meant(new):
            return  # the binder is at work on what we made; the order has its own time to come off
        if claim is not None and (old is new or plans.claim_facts(old) != plans.claim_facts(new)):
            yield claim.key

    def _is_as_meant(self, claim: PersistentVolumeClaim) -> bool:
        wanted = plans.volume_name(claim, self.facts)
        return not claim.is_deleting and claim.spec.volume_name in ("", wanted)

    def _concerns(self, claim: PersistentVolumeClaim) -> bool:
        """There may be something to do for it; most claims have their volume, or want another driver's."""
        if claim.uid in self._attempts or claim.uid in self._unsaved or claim.uid in self._binding:
            return True
        return orders.is_noted(claim) or plans.wants_volume(claim, self.driver.name)

    async def follow_snapshots(self) -> None:
        """Hear of snapshots, if the cluster has them by now."""
        if not self._snapshots and await holding.serves_snapshots(self.client) and not self._snapshots:
            self._snapshots = True
            self.join(VolumeSnapshot, self._snapshot_changed)

    def _snapshot_changed(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> Iterator[str]:
        if new is not None and old is not new:
            yield from (claim.key for claim in self.by_source[f"{sources.SNAPSHOT}/{new.key}"])

    def _class_changed(self, old: StorageClass | None, new: StorageClass | None) -> Iterator[str]:
        if new is not None and old is None and classes.driver(new.provisioner) == self.driver.name:
            yield from (claim.key for claim in self.by_class[new.name])

    def _place_changed(self, old: Node | CSINode | None, new: Node | CSINode | None) -> Iterable[str]:
        if not self._placeless or new is None or _places(old) == _places(new):
            return ()
        woken, self._placeless = self._placeless, set()
        return woken

    # --- the work

    async def reconcile(self, key: str) -> None:
        claim = self.claims.at(key)
        for attempt in self._left_behind(key, claim):
            await self._create(attempt.claim, attempt.order)
        if claim is None:
            return
        if claim.uid in self._unsaved:
            return await self._save(claim, self._unsaved[claim.uid])
        world = await self._world(claim)
        if world.volume is None and claim.uid in self._binding:
            # Saved, and gone again, as of a claim that took another volume meanwhile: the order has ended.
            del self._binding[claim.uid]
            await self._settle(claim)
            return self.queue.add(claim.key)
        for step in plans.plan(claim, world, self._order(claim), self.facts):
            await self._act(claim, step)

    def _left_behind(self, key: str, claim: PersistentVolumeClaim | None) -> list[Attempt]:
        """Calls that are open for a claim that is gone: without its finalizer, by somebody's force."""
        if claim is not None and claim.uid in self._attempts:
            return []  # of one name there is only one in work
        return self._attempts.named(key)

    def _order(self, claim: PersistentVolumeClaim) -> Order | None:
        attempt = self._attempts.get(claim.uid)
        return orders.noted_on(claim, self.driver.name) or (attempt.order if attempt else None)

    async def _world(self, claim: PersistentVolumeClaim) -> World:
        name = plans.volume_name(claim, self.facts)
        attributes = None
        source = await holding.look(self.client, claim, self.claims, self.volumes)
        if source.snapshot is not None:
            await self.follow_snapshots()
        if wanted := claim.spec.volume_attributes_class_name:
            attributes = await self.client.find(VolumeAttributesClass, wanted)
        return World(
            storage_class=self.classes.get(binding.claim_class(claim) or ""),
            volume=self.volumes.get(name) or self.volumes.get(f"pvc-{claim.uid}"),
            attributes=attributes,
            nodes=self._nodes(),
            registrations=self._registrations(),
            infeasible=self._verdict(claim),
            source=source,
        )

    def _nodes(self) -> Mapping[str, Node]:
        if self.turns is not None:  # beside a driver on every node, the driver itself knows where it is
            return {self.turns.node: Node(metadata=ObjectMeta(labels=dict(self.turns.places)))}
        return self.nodes.names() if self.facts.has_topology else {}

    def _registrations(self) -> Mapping[str, CSINode]:
        if self.turns is not None:
            entry = CSINodeDriver(name=self.driver.name, topology_keys=tuple(sorted(self.turns.places)))
            return {self.turns.node: CSINode(spec=CSINodeSpec(drivers=(entry,)))}
        return self.registrations.names() if self.facts.has_topology else {}

    def _verdict(self, claim: PersistentVolumeClaim) -> tuple[str, float] | None:
        """The class that the driver found wrong for this claim, and how long we take its word."""
        storage_class, until = self._infeasible.get(claim.uid, ("", 0.0))
        if until - clock.now() > TICK:
            return storage_class, until - clock.now()
        self._infeasible.pop(claim.uid, None)
        return None

    async def _act(self, claim: PersistentVolumeClaim, step: plans.Step) -> None:
        match step:
            case Create(order):
                await self._create(claim, order)
            case Settle():
                await self._settle_in_turn(claim)
            case Fail(why, quiet, placeless):
                if placeless:
                    self._placeless.add(claim.key)
                if not quiet:
                    self._say_failed(claim, binding.claim_class(claim) or "", why)
                raise RetryableError(why)
            case Ask():
                await self._ask(claim)
            case Reschedule(node, why):
                await self._reschedule(claim, node, why)
            case Say(type, reason, message):
                self.events.event(claim, type, reason, message)
            case Wait(seconds, why):
                self.queue.later(claim.key, seconds, why)
            case _:
                assert_never(step)

    async def _ask(self, claim: PersistentVolumeClaim) -> None:
        """An immediate claim that every node's provisioner sees: each in its turn."""
        storage_class = self.classes.get(binding.claim_class(claim) or "")
        if self.turns is None or storage_class is None or not self.settings.node_deployment_immediate_binding:
            return
        left = self.turns.left(claim)
        if left <= TICK and await self.turns.take(claim, storage_class):
            return
        self.queue.later(
            claim.key, max(self.turns.left(claim), 0.0), "another node may make the volume first"
        )

    async def _create(self, claim: PersistentVolumeClaim, order: Order) -> None:
        about = {"PVC": claim.key, "StorageClass": order.storage_class, "PV": order.name}
        log.info("Started provisioning", extra=about)
        self.events.normal(
            claim, "Provisioning", f'External provisioner is provisioning volume for claim "{claim.key}"'
        )
        try:
            request = await making.request(self.client, self.driver, order)
        except (
            RetryableError,
            convert.UnsupportedModes,
        ) as error:  # nothing was called: what was open stays open
            self._say_failed(claim, order.storage_class, str(error))
            raise RetryableError(str(error)) from error
        if orders.noted_on(claim, self.driver.name) is None and claim.uid not in self._attempts:
            if order.content is not None:
                source = await holding.look(self.client, claim, self.claims, self.volumes)
                await holding.protect(self.client, order.content, source)
            await self._note(claim, order)
        self._attempts.begin(claim, order)
        begun = clock.now()
        try:
            reply = await self.driver.call(
                "CreateVolume", request, timeout=self.settings.timeout, subject=f"pvc/{claim.key}"
            )
            made = await making.checked(self.client, self.driver, order, reply, timeout=self.settings.timeout)
        except (CallError, Unfit) as error:
            counts.provision_failed(order)
            return await self._judge(claim, order, error)
        counts.provisioned(order, clock.now() - begun)
        log.info("Volume is provisioned", extra={**about, "volumeHandle": made.handle})
        await self._save(claim, orders.volume(claim, order, made, self.identity))

    async def _note(self, claim: PersistentVolumeClaim, order: Order) -> None:
        """Intent before effect. A claim that is gone or going takes no finalizer, and then gets no volume."""
        patch = {"metadata": {"finalizers": [INTENT], "annotations": {INTENT: orders.written(order)}}}
        try:
            with trace.span(COMPONENT, "write order", f"pvc/{claim.key}"):
                there = await self._patch_claim(claim, patch)
            if not there:
                raise RetryableError(f"claim {claim.key} is gone")
        except Forbidden as error:
            # A cluster whose rules for provisioners know no patch: then we are as safe as upstream, not more.
            log.warning("the order for %s cannot be written down: %s", claim.key, error)
            self._unnoted.add(claim.uid)

    async def _judge(self, claim: PersistentVolumeClaim, order: Order, error: Exception) -> None:
        """What a failed call means for the claim."""
        kind = classify_provisioning(error)
        if kind is Provisioning.BACKGROUND:
            self._say_failed(claim, order.storage_class, str(error))
            raise RetryableError(str(error)) from error
        self._attempts.end(claim.uid)
        if kind is Provisioning.EXHAUSTED and order.topological and order.node:
            return await self._reschedule(claim, order.node, str(error))
        if kind is Provisioning.INFEASIBLE:
            delayed = "Volume provisioning failed with infeasible error. Retries will be delayed."
            self.events.warning(claim, "ProvisioningFailed", f"{delayed} {error}")
            until = clock.now() + self.settings.infeasible_retry_interval
            self._infeasible[claim.uid] = (order.class_uid, until)
        else:
            self._say_failed(claim, order.storage_class, str(error))
        await self._settle(claim)
        if not self._is_wanted(claim):
            self._infeasible.pop(claim.uid, None)
        elif kind is Provisioning.INFEASIBLE:
            self.queue.later(claim.key, self.settings.infeasible_retry_interval, str(error))
        else:
            raise RetryableError(str(error)) from error

    def _is_wanted(self, claim: PersistentVolumeClaim) -> bool:
        current = self.claims.at(claim.key)
        return current is not None and current.uid == claim.uid and not current.is_deleting

    async def _reschedule(self, claim: PersistentVolumeClaim, node: str, why: str) -> None:
        """Hand the node back to the scheduler, unless it has chosen another one by now."""
        self._say_failed(claim, binding.claim_class(claim) or "", why)
        fresh = await self.client.find(PersistentVolumeClaim, claim.name, claim.namespace)
        if fresh is None or fresh.uid != claim.uid:
            return
        if fresh.metadata.annotations.get(binding.SELECTED_NODE) != node:
            await self._settle(claim)
            return self.queue.add(claim.key)
        log.info("asking for another node", extra={"PVC": claim.key, "node": node, "err": why})
        patch = {
            "metadata": {
                "$deleteFromPrimitiveList/finalizers": [INTENT],
                "annotations": {INTENT: None, binding.SELECTED_NODE: None},
            }
        }
        try:
            await self._patch_claim(claim, patch, revision=fresh.metadata.resource_version)
        except APIError as error:
            raise RetryableError(f"{why}; and the node cannot be given back: {error}") from error

    async def _save(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """The volume exists, so its object has to: never give up, never delete the volume for it."""
        try:
            with trace.span(COMPONENT, "save volume", f"pvc/{claim.key}", volume=volume.name):
                await self.client.create(volume)
        except AlreadyExists:
            log.debug("volume %s was saved before", volume.name)
        except APIError as error:
            self._unsaved[claim.uid] = volume
            raise RetryableError(f"volume {volume.name} cannot be saved: {error}", backoff=SAVING) from error
        self._unsaved.pop(claim.uid, None)
        self.events.normal(claim, "ProvisioningSucceeded", f"Successfully provisioned volume {volume.name}")
        log.info("Succeeded in saving volume", extra={"PVC": claim.key, "PV": volume.name})
        self._attempts.end(claim.uid)
        if not self._attempts:
            self._end_rest()
        self.changed(volume.spec.storage_class_name)
        self._binding[claim.uid] = clock.now() + BINDING
        await self._settle_in_turn(claim)

    async def _settle_in_turn(self, claim: PersistentVolumeClaim) -> None:
        """The order comes off when the binder is through with the claim, or nobody wants it any more."""
        until = self._binding.get(claim.uid, 0.0)
        left = until - clock.now()
        if self._attempts and left > -PATIENCE:
            left += PATIENCE  # others are waiting for their volumes, and nobody for this
            self._resting[claim.key] = until
        if left > TICK and claim.uid not in self._unnoted and self._is_wanted(claim):
            return self.queue.later(claim.key, left, SETTLING)
        self._binding.pop(claim.uid, None)
        await self._settle(claim)

    def _end_rest(self) -> None:
        for key, until in self._resting.items():
            self.queue.later(key, until - clock.now(), SETTLING)
        self._resting.clear()

    async def _settle(self, claim: PersistentVolumeClaim) -> None:
        if claim.uid in self._unnoted:
            return self._unnoted.discard(claim.uid)
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [INTENT], "annotations": {INTENT: None}}}
        with trace.span(COMPONENT, "settle order", f"pvc/{claim.key}"):
            await self._patch_claim(claim, patch)

    async def _patch_claim(self, claim: PersistentVolumeClaim, patch: Any, revision: str = "") -> bool:
        """Whether the claim was there to be patched; a namesake does not count."""
        try:
            patched = await self.client.patch(
                PersistentVolumeClaim,
                claim.name,
                claim.namespace,
                strategic=patch,
                uid=claim.uid,
                revision=revision,
                missing_ok=True,
            )
        except Conflict:
            if revision:
                raise
            return False
        return patched is not None

    def _say_failed(self, claim: PersistentVolumeClaim, storage_class: str, why: str) -> None:
        text = f'failed to provision volume with StorageClass "{storage_class}": {why}'
        self.events.warning(claim, "ProvisioningFailed", text)


def _places(obj: Node | CSINode | None) -> object:
    return obj.metadata.labels if isinstance(obj, Node) else obj.spec if obj is not None else None
