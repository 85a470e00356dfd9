"""Creates volumes for claims: write the request to the claim, call the driver, create the PersistentVolume.

A volume could leak between the call and the last write. The request on the claim, with a finalizer, prevents
that: it is removed only after a success or a final error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never

from msgspec import Struct, structs

from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim
from volplane.api.errors import AlreadyExists, APIError, Conflict, Forbidden
from volplane.api.finalizers import PROVISIONING_INTENT_FINALIZER
from volplane.api.meta import ObjectMeta
from volplane.api.snapshot import VolumeSnapshot
from volplane.api.storage import CSINode, CSINodeDriver, CSINodeSpec, StorageClass, VolumeAttributesClass
from volplane.base import clock, trace
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.csi import convert
from volplane.csi.outcome import CallError, ProvisioningOutcome, classify_provisioning
from volplane.loops.controller import Controller, Outcome, Replan, RetryableError, Stop
from volplane.loops.events import EventRecorder
from volplane.rules import binding, classes
from volplane.rules.provisioning_intent import has_intent
from volplane.rules.steps import TICK, CommonStep
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.sidecars.base import DriverClient
from volplane.sidecars.provisioner import plan as plans
from volplane.sidecars.provisioner import provision_request as provision_requests
from volplane.sidecars.provisioner import sources
from volplane.sidecars.provisioner.controller import create_volume, provision_metrics
from volplane.sidecars.provisioner.controller import sources as holding
from volplane.sidecars.provisioner.controller.create_volume import UnexpectedVolume
from volplane.sidecars.provisioner.controller.driver_info import build_driver_info
from volplane.sidecars.provisioner.controller.in_flight import InFlightCall, InFlightCalls
from volplane.sidecars.provisioner.controller.node_claim_race import NodeClaimRace
from volplane.sidecars.provisioner.plan import (
    ClaimForNode,
    CreateVolume,
    ProvisionInputs,
    RemoveIntent,
    ReportProvisionError,
    Reschedule,
)
from volplane.sidecars.provisioner.provision_request import ProvisionRequest
from volplane.sidecars.provisioner.settings import ProvisionerOptions

log = logging.getLogger(__name__)

COMPONENT = "csi-provisioner"
SAVE_BACKOFF = Backoff(0.005, 1000.0)  # the volume exists, and only its object has to be created
REMOVE_INTENT_DELAY = 5.0  # seconds by which removing a request is delayed while other volumes are created
# Seconds without our writes after a volume was saved: they would make the binder's writes conflict, and one
# of those removes the request. A binder that leaves it is not waited for once the claim is Bound.
BIND_GRACE = 2.0


def _class_of(claim: PersistentVolumeClaim) -> list[str]:
    return [] if claim.spec.volume_name else [binding.claim_class(claim) or ""]


class ClaimProvisionView(Struct, frozen=True):
    """A claim, the objects that it depends on, and what this process remembers of calls for it."""

    key: str
    claim: PersistentVolumeClaim | None
    abandoned: Sequence[InFlightCall] = ()  # calls in flight for an earlier claim of that name
    unsaved: PersistentVolume | None = None  # the volume exists, and its object does not
    inputs: ProvisionInputs = ProvisionInputs()
    provision_request: ProvisionRequest | None = None
    outdated: bool = False  # the volume was saved for this claim and deleted again
    is_read: bool = True  # the live objects that the claim needs were read


class ResumeCreate(Struct, frozen=True):
    """Repeat the call for a claim whose finalizer was removed by force."""

    attempt: InFlightCall


class SaveVolume(Struct, frozen=True):
    """Create the PersistentVolume of a volume that exists."""

    volume: PersistentVolume


class ForgetVolume(Struct, frozen=True):
    """The PersistentVolume was deleted again: remove the request, and plan for the claim as it is now.

    The claim may be deleted, too, and its cache behind: the request in it would create another volume.
    """


class ReadLive(Struct, frozen=True):
    """Read the objects that are not watched: snapshots, and a VolumeAttributesClass."""


Step = plans.Step | ResumeCreate | SaveVolume | ForgetVolume | ReadLive


class ProvisionerMemory:
    """What only this process knows of claims: calls in flight, created volumes, refusals."""

    def __init__(self, node_race: NodeClaimRace | None = None) -> None:
        self.attempts = InFlightCalls()
        self.unsaved: dict[str, PersistentVolume] = {}  # by the claim's uid
        self.binding: dict[str, float] = {}  # uid → when the binder's grace ends
        self.resting: dict[str, float] = {}  # keys of claims whose request stays while others are created
        self.infeasible: dict[str, tuple[str, float]] = {}  # uid → class uid, no retry before
        self.unnoted: set[str] = set()  # uids of claims whose request may not be written
        self.waiting_for_nodes: set[str] = set()  # keys that wait for a new node or registration
        self.follows_snapshots = False
        self.node_race = node_race

    def observe_claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        if new is not None and new.spec.volume_name and new.uid in self.binding and not has_intent(new):
            del self.binding[new.uid]  # the binder has removed the request
        if new is None and old is not None:
            self.infeasible.pop(old.uid, None)
            self.binding.pop(old.uid, None)
            if self.node_race is not None:
                self.node_race.forget(old.uid)

    def abandoned_attempts(self, key: str, claim: PersistentVolumeClaim | None) -> list[InFlightCall]:
        """Calls in flight for a deleted claim of that name, whose finalizer was removed by force."""
        if claim is not None and claim.uid in self.attempts:
            return []  # one claim of a name at a time
        return self.attempts.list_by_key(key)

    def infeasible_class(self, claim: PersistentVolumeClaim) -> tuple[str, float] | None:
        """The class that the driver refused for this claim, and the seconds before it is asked again."""
        storage_class, until = self.infeasible.get(claim.uid, ("", 0.0))
        left = until - clock.now()
        return (storage_class, left) if left > TICK else None


class ClaimProvisioner(Controller[str, ClaimProvisionView, Step]):
    name = "csi-provisioner"
    resync = 900.0

    def __init__(
        self,
        client: Client,
        driver: DriverClient,
        settings: ProvisionerOptions,
        *,
        events: EventRecorder,
        identity: str,
        node_race: NodeClaimRace | None = None,
        on_capacity_change: Callable[[str], None] = lambda storage_class: None,
    ) -> None:
        super().__init__(
            client,
            events=events,
            workers=settings.worker_threads,
            backoff=Backoff(settings.retry_interval_start, settings.retry_interval_max),
        )
        self.driver, self.settings, self.identity = driver, settings, identity
        self.node_race, self.on_capacity_change = node_race, on_capacity_change
        self.driver_info = build_driver_info(
            driver,
            settings,
            node_race.node if node_race else "",
            dict(node_race.segments) if node_race else None,
        )

    def setup(self) -> None:
        self.memory = ProvisionerMemory(self.node_race)
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim, observe=self.memory.observe_claim)
        self.volumes = self.watch(PersistentVolume)
        self.classes = self.watch(StorageClass, self.keys_of_class)
        self.by_class = self.claims.index("unbound class", _class_of)
        self.by_source = self.claims.index("source", sources.source_keys)
        if self.driver_info.has_topology and self.node_race is None:
            self.nodes = self.watch(Node, self.keys_of_place)
            self.registrations = self.watch(CSINode, self.keys_of_place)

    # --- which keys a change wakes

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        if claim is not None and old is not new and self.by_source:
            yield from (clone.key for clone in self.by_source[f"{sources.CLAIM}/{claim.key}"])
        if (new is None or not self._is_relevant(new)) and (old is None or not self._is_relevant(old)):
            return
        if new is not None and new.uid in self.memory.binding and self._is_as_planned(new):
            if new.status.phase == "Bound" and has_intent(new):
                yield new.key  # its binder does not remove the request
            return  # the binder is binding it; at last, a timer removes the request
        if claim is not None and (
            old is new or plans.relevant_claim_fields(old) != plans.relevant_claim_fields(new)
        ):
            yield claim.key

    def _is_as_planned(self, claim: PersistentVolumeClaim) -> bool:
        wanted = plans.volume_name(claim, self.driver_info)
        return not claim.is_deleting and claim.spec.volume_name in ("", wanted)

    def _is_relevant(self, claim: PersistentVolumeClaim) -> bool:
        """The claim concerns us: most claims are bound, or for another driver."""
        memory, uid = self.memory, claim.metadata.uid
        if uid in memory.attempts or uid in memory.unsaved or uid in memory.binding:
            return True
        return plans.wants_volume(claim, self.driver.name) or has_intent(claim)

    async def watch_snapshots(self) -> None:
        """Watch snapshots, if the cluster serves them by now."""
        memory = self.memory
        if memory.follows_snapshots or not await holding.serves_snapshots(self.client):
            return
        if not memory.follows_snapshots:
            memory.follows_snapshots = True
            self.watch(VolumeSnapshot, self.keys_of_snapshot)

    def keys_of_snapshot(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> Iterator[str]:
        if new is not None and old is not new:
            yield from (claim.key for claim in self.by_source[f"{sources.SNAPSHOT}/{new.key}"])

    def keys_of_class(self, old: StorageClass | None, new: StorageClass | None) -> Iterator[str]:
        if new is not None and old is None and classes.driver_name(new.provisioner) == self.driver.name:
            yield from (claim.key for claim in self.by_class[new.name])

    def keys_of_place(self, old: Node | CSINode | None, new: Node | CSINode | None) -> Iterable[str]:
        if new is None or _topology_fields(old) == _topology_fields(new):
            return ()
        return list(self.memory.waiting_for_nodes)

    # --- what the caches show

    def view(self, key: str) -> ClaimProvisionView | None:
        claim = self.claims.at(key)
        abandoned = self.memory.abandoned_attempts(key, claim)
        if claim is None:
            return ClaimProvisionView(key, None, abandoned) if abandoned else None
        inputs = self._inputs(claim)
        return ClaimProvisionView(
            key,
            claim,
            abandoned,
            unsaved=self.memory.unsaved.get(claim.uid),
            inputs=inputs,
            provision_request=self._read_request(claim),
            outdated=inputs.volume is None and claim.uid in self.memory.binding,
            is_read=not _needs_live_read(claim),
        )

    def _read_request(self, claim: PersistentVolumeClaim) -> ProvisionRequest | None:
        attempt = self.memory.attempts.get(claim.uid)
        return provision_requests.read_request(claim, self.driver.name) or (
            attempt.request if attempt else None
        )

    def _inputs(self, claim: PersistentVolumeClaim) -> ProvisionInputs:
        name = plans.volume_name(claim, self.driver_info)
        return ProvisionInputs(
            storage_class=self.classes.get(binding.claim_class(claim) or ""),
            volume=self.volumes.get(name) or self.volumes.get(f"pvc-{claim.uid}"),
            nodes=self._nodes(),
            registrations=self._registrations(),
            infeasible=self.memory.infeasible_class(claim),
        )

    def _nodes(self) -> Mapping[str, Node]:
        if self.node_race is not None:  # with --node-deployment, the driver reports its own topology
            return {self.node_race.node: Node(metadata=ObjectMeta(labels=dict(self.node_race.segments)))}
        return self.nodes.names() if self.driver_info.has_topology else {}

    def _registrations(self) -> Mapping[str, CSINode]:
        if self.node_race is not None:
            entry = CSINodeDriver(name=self.driver.name, topology_keys=tuple(sorted(self.node_race.segments)))
            return {self.node_race.node: CSINode(spec=CSINodeSpec(drivers=(entry,)))}
        return self.registrations.names() if self.driver_info.has_topology else {}

    # --- what to do

    def plan(self, view: ClaimProvisionView) -> Iterator[Step | CommonStep]:
        yield from (ResumeCreate(attempt) for attempt in view.abandoned)
        if view.claim is None:
            return
        if view.unsaved is not None:
            yield SaveVolume(view.unsaved)
        elif not view.is_read:
            yield ReadLive()
        elif view.outdated:
            yield ForgetVolume()
        else:
            yield from plans.plan(view.claim, view.inputs, view.provision_request, self.driver_info)

    def update_memory(
        self, key: str, view: ClaimProvisionView | None, steps: Sequence[Step | CommonStep]
    ) -> None:
        # Before acting: a node that appears in between must wake the claim.
        if any(isinstance(step, ReportProvisionError) and step.needs_nodes for step in steps):
            self.memory.waiting_for_nodes.add(key)
        else:
            self.memory.waiting_for_nodes.discard(key)
        if view is not None and view.claim is not None and view.inputs.infeasible is None:
            self.memory.infeasible.pop(view.claim.uid, None)

    # --- doing it

    def subject(self, view: ClaimProvisionView) -> PersistentVolumeClaim:
        assert view.claim is not None
        return view.claim

    async def act(self, key: str, view: ClaimProvisionView, step: Step) -> Outcome[ClaimProvisionView]:
        if isinstance(step, ResumeCreate):
            await self._create(step.attempt.claim, step.attempt.request)
            return None
        claim = self.subject(view)
        match step:
            case SaveVolume(volume):
                await self._save(claim, volume)
            case ReadLive():
                inputs = await self._read_live(claim)
                return Replan(structs.replace(view, abandoned=(), inputs=inputs, is_read=True))
            case ForgetVolume():
                self.memory.binding.pop(claim.uid, None)
                await self._remove_intent(claim)
                current = await self.client.find(PersistentVolumeClaim, claim.name, claim.namespace)
                if current is None or current.uid != claim.uid:
                    return Stop()
                return Replan(structs.replace(view, claim=current, provision_request=None, outdated=False))
            case CreateVolume(provision_request):
                await self._create(claim, provision_request)
            case RemoveIntent():
                await self._remove_intent_in_turn(claim)
            case ReportProvisionError(message, quiet):
                if not quiet:
                    self._record_failure(claim, binding.claim_class(claim) or "", message)
            case ClaimForNode():
                await self._claim_for_node(claim)
            case Reschedule(node, why):
                await self._reschedule(claim, node, why)
            case _:
                assert_never(step)
        return None

    async def _read_live(self, claim: PersistentVolumeClaim) -> ProvisionInputs:
        source = await holding.read_source(self.client, claim, self.claims, self.volumes)
        if source.snapshot is not None:
            await self.watch_snapshots()
        attributes = None
        if wanted := claim.spec.volume_attributes_class_name:
            attributes = await self.client.find(VolumeAttributesClass, wanted)
        return structs.replace(self._inputs(claim), source=source, attributes=attributes)

    async def _claim_for_node(self, claim: PersistentVolumeClaim) -> None:
        """The provisioners of all nodes see a claim with immediate binding: each waits for a random time."""
        storage_class = self.classes.get(binding.claim_class(claim) or "")
        if (
            self.node_race is None
            or storage_class is None
            or not self.settings.node_deployment_immediate_binding
        ):
            return
        left = self.node_race.seconds_left(claim)
        if left <= TICK and await self.node_race.try_claim(claim, storage_class):
            return
        left = max(self.node_race.seconds_left(claim), 0.0)
        self.queue.later(claim.key, Wait(WaitReason.OTHER_NODE_FIRST, seconds=left))

    async def _create(self, claim: PersistentVolumeClaim, provision_request: ProvisionRequest) -> None:
        about = {
            "PVC": claim.key,
            "StorageClass": provision_request.storage_class,
            "PV": provision_request.name,
        }
        log.info("Started provisioning", extra=about)
        self.events.normal(
            claim, "Provisioning", f'External provisioner is provisioning volume for claim "{claim.key}"'
        )
        try:
            request = await create_volume.build_create_request(self.client, self.driver, provision_request)
        except (
            RetryableError,
            convert.UnsupportedModes,
        ) as error:  # the driver was not called: an earlier call may still be in flight
            self._record_failure(claim, provision_request.storage_class, str(error))
            raise RetryableError(str(error)) from error
        if (
            provision_requests.read_request(claim, self.driver.name) is None
            and claim.uid not in self.memory.attempts
        ):
            if provision_request.content is not None:
                source = await holding.read_source(self.client, claim, self.claims, self.volumes)
                await holding.protect(self.client, provision_request.content, source)
            await self._write_intent(claim, provision_request)
        self.memory.attempts.begin(claim, provision_request)
        started = clock.now()
        try:
            reply = await self.driver.call(
                "CreateVolume",
                request,
                timeout=self.settings.timeout,
                subject=f"pvc/{claim.key}",
                migrated=provision_request.is_migrated,
            )
            volume = await create_volume.accept_reply(
                self.client,
                self.driver,
                claim,
                provision_request,
                reply,
                identity=self.identity,
                timeout=self.settings.timeout,
            )
        except (CallError, UnexpectedVolume) as error:
            provision_metrics.count_provision_failure(provision_request)
            return await self._handle_failure(claim, provision_request, error)
        provision_metrics.count_provisioned(provision_request, clock.now() - started)
        log.info("Volume is provisioned", extra={**about, "volumeHandle": reply.volume.volume_id})
        await self._save(claim, volume)

    async def _write_intent(self, claim: PersistentVolumeClaim, provision_request: ProvisionRequest) -> None:
        """Write the request before the call. This fails for a claim that is being deleted."""
        patch = {
            "metadata": {
                "finalizers": [PROVISIONING_INTENT_FINALIZER],
                "annotations": {
                    PROVISIONING_INTENT_FINALIZER: provision_requests.encode_request(provision_request)
                },
            }
        }
        try:
            with trace.span(COMPONENT, "write order", f"pvc/{claim.key}"):
                there = await self._patch_claim(claim, patch)
            if not there:
                raise RetryableError(f"claim {claim.key} was deleted")
        except Forbidden as error:
            # RBAC rules written for upstream do not allow the patch: go on without it, as upstream does.
            log.warning("the provision request of %s cannot be written to the claim: %s", claim.key, error)
            self.memory.unnoted.add(claim.uid)

    async def _handle_failure(
        self, claim: PersistentVolumeClaim, provision_request: ProvisionRequest, error: Exception
    ) -> None:
        """What a failed call means for the claim."""
        kind = classify_provisioning(error)
        if kind is ProvisioningOutcome.BACKGROUND:
            self._record_failure(claim, provision_request.storage_class, str(error))
            raise RetryableError(str(error)) from error
        self.memory.attempts.end(claim.uid)
        if kind is ProvisioningOutcome.EXHAUSTED and provision_request.topological and provision_request.node:
            return await self._reschedule(claim, provision_request.node, str(error))
        if kind is ProvisioningOutcome.INFEASIBLE:
            delayed = "Volume provisioning failed with infeasible error. Retries will be delayed."
            self.events.warning(claim, "ProvisioningFailed", f"{delayed} {error}")
            until = clock.now() + self.settings.infeasible_retry_interval
            self.memory.infeasible[claim.uid] = (provision_request.class_uid, until)
        else:
            self._record_failure(claim, provision_request.storage_class, str(error))
        await self._remove_intent(claim)
        if not self._is_wanted(claim):
            self.memory.infeasible.pop(claim.uid, None)
        elif kind is ProvisioningOutcome.INFEASIBLE:
            data = WaitData(driver=self.driver.name, class_name=provision_request.storage_class)
            seconds = self.settings.infeasible_retry_interval
            wait = Wait(WaitReason.PROVISIONING_INFEASIBLE, data, seconds, message=str(error))
            self.queue.later(claim.key, wait)
        else:
            raise RetryableError(str(error)) from error

    def _is_wanted(self, claim: PersistentVolumeClaim) -> bool:
        current = self.claims.at(claim.key)
        return current is not None and current.uid == claim.uid and not current.is_deleting

    async def _reschedule(self, claim: PersistentVolumeClaim, node: str, why: str) -> None:
        """Remove the selected node, so that the scheduler selects another, unless it already has."""
        self._record_failure(claim, binding.claim_class(claim) or "", why)
        fresh = await self.client.find(PersistentVolumeClaim, claim.name, claim.namespace)
        if fresh is None or fresh.uid != claim.uid:
            return
        if fresh.metadata.annotations.get(SELECTED_NODE_ANNOTATION) != node:
            await self._remove_intent(claim)
            return self.queue.add(claim.key)
        log.info("removing the selected node", extra={"PVC": claim.key, "node": node, "err": why})
        patch = {
            "metadata": {
                "$deleteFromPrimitiveList/finalizers": [PROVISIONING_INTENT_FINALIZER],
                "annotations": {PROVISIONING_INTENT_FINALIZER: None, SELECTED_NODE_ANNOTATION: None},
            }
        }
        try:
            await self._patch_claim(claim, patch, revision=fresh.metadata.resource_version)
        except APIError as error:
            raise RetryableError(f"{why}; the selected node cannot be removed: {error}") from error

    async def _save(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """Create the PersistentVolume, with endless retries because the volume exists."""
        try:
            with trace.span(COMPONENT, "save volume", f"pvc/{claim.key}", volume=volume.name):
                await self.client.create(volume)
        except AlreadyExists:
            log.debug("PersistentVolume %s exists already", volume.name)
        except APIError as error:
            self.memory.unsaved[claim.uid] = volume
            raise RetryableError(
                f"volume {volume.name} cannot be created: {error}", backoff=SAVE_BACKOFF
            ) from error
        self.memory.unsaved.pop(claim.uid, None)
        self.events.normal(claim, "ProvisioningSucceeded", f"Successfully provisioned volume {volume.name}")
        log.info("Succeeded in saving volume", extra={"PVC": claim.key, "PV": volume.name})
        self.memory.attempts.end(claim.uid)
        if not self.memory.attempts:
            self._wake_resting()
        self.on_capacity_change(volume.spec.storage_class_name)
        self.memory.binding[claim.uid] = clock.now() + BIND_GRACE
        await self._remove_intent_in_turn(claim)

    async def _remove_intent_in_turn(self, claim: PersistentVolumeClaim) -> None:
        """Remove the request after the binder's grace, or at once if the claim is being deleted."""
        until, current = self.memory.binding.get(claim.uid, 0.0), self.claims.at(claim.key)
        left = until - clock.now()
        if current is not None and current.status.phase == "Bound":
            left = min(left, 0.0)
        if self.memory.attempts and left > -REMOVE_INTENT_DELAY:
            left += REMOVE_INTENT_DELAY  # volumes come first: nothing waits for this write
            self.memory.resting[claim.key] = until
        if left > TICK and claim.uid not in self.memory.unnoted and self._is_wanted(claim):
            return self.queue.later(claim.key, Wait(WaitReason.BINDING_BEFORE_CLEANUP, seconds=left))
        self.memory.binding.pop(claim.uid, None)
        await self._remove_intent(claim)

    def _wake_resting(self) -> None:
        for key, until in self.memory.resting.items():
            self.queue.later(key, Wait(WaitReason.BINDING_BEFORE_CLEANUP, seconds=until - clock.now()))
        self.memory.resting.clear()

    async def _remove_intent(self, claim: PersistentVolumeClaim) -> None:
        if claim.uid in self.memory.unnoted:
            return self.memory.unnoted.discard(claim.uid)
        patch = {
            "metadata": {
                "$deleteFromPrimitiveList/finalizers": [PROVISIONING_INTENT_FINALIZER],
                "annotations": {PROVISIONING_INTENT_FINALIZER: None},
            }
        }
        with trace.span(COMPONENT, "remove order", f"pvc/{claim.key}"):
            await self._patch_claim(claim, patch)

    async def _patch_claim(self, claim: PersistentVolumeClaim, patch: Any, revision: str = "") -> bool:
        """Whether the claim was patched; False if it is gone or replaced."""
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

    def _record_failure(self, claim: PersistentVolumeClaim, storage_class: str, why: str) -> None:
        text = f'failed to provision volume with StorageClass "{storage_class}": {why}'
        self.events.warning(claim, "ProvisioningFailed", text)


def _needs_live_read(claim: PersistentVolumeClaim) -> bool:
    """The plan depends on objects that are not watched and must be read."""
    return sources.source_reference(claim) is not None or bool(claim.spec.volume_attributes_class_name)


def _topology_fields(obj: Node | CSINode | None) -> object:
    return obj.metadata.labels if isinstance(obj, Node) else obj.spec if obj is not None else None
