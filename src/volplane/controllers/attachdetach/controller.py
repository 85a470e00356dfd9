"""One key per volume: its unique name, as node status carries it.

Every change of a pod, claim, volume, attachment, node or driver wakes the volumes it is about. What only
this process knows is when it first saw something (the timers of the plan) and whom it has told; all of that
may be lost.

The subtle thing: a node that is deleted takes its `volumesInUse` with it. What it said last is remembered,
and of a node that this process never saw the worst is assumed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import assert_never

from volplane.api import names
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import ObjectMeta
from volplane.api.storage import CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec
from volplane.base import clock, metrics, trace
from volplane.client.client import Client
from volplane.controllers.attachdetach import plan as p
from volplane.controllers.attachdetach.facts import (
    attached_node,
    attached_volume,
    bearing,
    claimed_by,
    is_managed,
    listing_of,
    node_of,
    split,
    stance,
    unique_name,
    uses,
    volume_driver,
)
from volplane.controllers.attachdetach.listing import Listing
from volplane.loops.controller import Controller, Refused
from volplane.loops.queue import Backoff
from volplane.rules import access, pods, taints
from volplane.rules.binding import claim_key, is_pair
from volplane.rules.steps import Wait

log = logging.getLogger(__name__)

COMPONENT = "attachdetach-controller"
STILL_IN_USE = "volume is still in use by node, according to Node status"

forced_detaches = metrics.counter(
    "attachdetach_controller_forced_detaches",
    "Number of times the A/D Controller performed a forced detach",
    ["reason"],
)


class AttachDetach(Controller[str]):
    name = "persistentvolume-attach-detach-controller"
    component = COMPONENT
    workers = 256  # a worker only waits for its own writes
    resync = 180.0

    def __init__(
        self,
        client: Client,
        *,
        max_wait_for_unmount: float = p.UNMOUNT_GRACE,
        force_detach: bool = True,
        wait_for_deleted_nodes: bool = False,
        attach_timeout: float = p.ANSWER,
        retry_interval_max: float = 122.0,
    ) -> None:
        self.backoff = Backoff(0.5, retry_interval_max)
        super().__init__(client)
        self.wait_for_deleted_nodes = wait_for_deleted_nodes
        self.grace, self.answer = max_wait_for_unmount, attach_timeout
        self.force = force_detach
        self._since: dict[str, dict[tuple[str, str], float]] = {}  # volume → (node, what) → loop time
        # volume → node → how often its pods heard of a failure (of a conflict: once), and when not before
        self._failures: dict[str, dict[str, tuple[int, float]]] = {}
        self._told: dict[str, dict[str, tuple[int, float]]] = {}
        self._last_in_use: dict[str, frozenset[str]] = {}  # of nodes that are gone

    def setup(self) -> None:
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)
        self.attachments = self.watch(VolumeAttachment, self.keys_of_attachment)
        self.nodes = self.watch(Node, self.keys_of_node)
        self.drivers = self.watch(CSIDriver, self.keys_of_driver)
        self.users = self.pods.index("claims", pods.claim_keys)
        self.pods_on = self.pods.index("node", node_of)
        self.by_name = self.volumes.index("unique name", unique_name)
        self.by_driver = self.volumes.index("driver", volume_driver)
        self.by_claim = self.volumes.index("claimant", claimed_by)
        self.by_volume = self.attachments.index("volume", attached_volume)
        self.by_node = self.attachments.index("node", attached_node)
        self.listings = self.nodes.index("volumes attached", listing_of)
        self.listing = Listing(self.client, self.nodes)

    # --- whom a change wakes

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterator[str]:
        pod = new or old
        assert pod is not None
        if not pod.spec.node_name:
            return
        if old is not None and new is not None and old is not new and stance(old) == stance(new):
            return  # most updates of a running pod say nothing about its volumes
        for key in pods.claim_keys(pod):
            yield from self._of_claim(key)

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        assert claim is not None
        yield from self._of_claim(claim.key)

    def _of_claim(self, key: str) -> Iterator[str]:
        for volume in self.by_claim[key]:
            yield from self._of_volume(volume)

    def _of_volume(self, volume: PersistentVolume) -> Iterator[str]:
        """What no pod uses, nothing is attached of and nobody remembers wakes nobody."""
        used = self.users[claim_key(volume)] or self.by_volume[volume.name]
        for name in unique_name(volume):
            books = (self._since, self._told, self._failures)
            if used or name in self.listings or any(name in book for book in books):
                yield name

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        for volume in (old, new):
            if volume is not None:
                yield from self._of_volume(volume)

    def keys_of_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> Iterator[str]:
        attachment = new or old
        assert attachment is not None
        volume = self.volumes.get(attachment.spec.source.persistent_volume_name or "")
        if volume is not None:
            yield from unique_name(volume)
            return
        node = self.nodes.get(attachment.spec.node_name)
        for name in listing_of(node) if node is not None else ():
            parts = split(name)
            if parts and names.attachment(parts[1], parts[0], attachment.spec.node_name) == attachment.name:
                yield name

    def keys_of_node(self, old: Node | None, new: Node | None) -> Iterator[str]:
        node = new or old
        assert node is not None
        if new is None:
            self._last_in_use[node.name] = frozenset(node.status.volumes_in_use)
        elif old is None:
            self._last_in_use.pop(node.name, None)
        elif old is not new and bearing(old) == bearing(new):
            changed = set(old.status.volumes_in_use) ^ set(new.status.volumes_in_use)
            yield from changed | (set(listing_of(old)) ^ set(listing_of(new)))
            return
        yield from {*node.status.volumes_in_use, *listing_of(node)}
        for attachment in self.by_node[node.name]:
            yield from self.keys_of_attachment(None, attachment)
        if old is None or (new is not None and is_managed(old) != is_managed(new)):
            for pod in self.pods_on[node.name]:  # a node that comes under our care: whatever its pods use
                yield from self.keys_of_pod(None, pod)

    def keys_of_driver(self, old: CSIDriver | None, new: CSIDriver | None) -> Iterator[str]:
        driver = new or old
        assert driver is not None
        if old is None or new is None or old.spec.attach_required != new.spec.attach_required:
            for volume in self.by_driver[driver.name]:
                yield from unique_name(volume)

    # --- what the caches show

    def view(self, key: str) -> p.View:
        volumes = self.by_name[key]  # mostly one; two may stand for the same disk
        volume = volumes[0] if volumes else None
        source = volume.spec.csi if volume is not None else None
        driver, handle = (source.driver, source.volume_handle) if source else split(key) or ("", "")
        attachments = self._attachments(key, volumes)
        holding = {a.spec.node_name for a in attachments}
        wanted: dict[str, list[Pod]] = {}
        for each in volumes:
            self._want(wanted, each, holding)
        self._keep_books(key, wanted, attachments)
        listed = [node.name for node in self.listings[key]]
        return p.View(
            title=volume.name if volume is not None else handle or key,
            driver=driver,
            handle=handle,
            shareable=access.is_shareable(volume),
            wanted=wanted,
            held=[self._held(key, a) for a in attachments],
            places={name: self._place(key, name) for name in {*holding, *wanted, *listed}},
            told=frozenset(self._told.get(key, ())),
            grace=self.grace,
            answer=self.answer,
            force=self.force,
        )

    def _attachments(self, key: str, volumes: list[PersistentVolume]) -> list[VolumeAttachment]:
        if volumes:
            found = [a for volume in volumes for a in self.by_volume[volume.name]]
            return sorted(found, key=lambda a: a.spec.node_name)
        parts = split(key)
        if parts is None:
            return []
        driver, handle = parts
        named = (names.attachment(handle, driver, node.name) for node in self.listings[key])
        return [a for name in sorted(named) if (a := self.attachments.get(name)) is not None]

    def _want(self, wanted: dict[str, list[Pod]], volume: PersistentVolume, holding: set[str]) -> None:
        if volume.spec.claim_ref is None or not self.is_attachable(volume):
            return
        claim = self.claims.at(claim_key(volume))
        paired = claim is not None and is_pair(claim, volume)
        for pod in self.users[claim_key(volume)]:
            node = pod.spec.node_name
            # Where it is attached already, a pod keeps it even if claim, volume or node object went away.
            if (
                not node
                or pods.has_let_go(pod)
                or not (node in holding or (paired and self._is_managed(node)))
            ):
                continue
            if claim is None or uses(pod, claim):
                wanted.setdefault(node, []).append(pod)

    def is_attachable(self, volume: PersistentVolume) -> bool:
        driver = self.drivers.get(volume.spec.csi.driver) if volume.spec.csi is not None else None
        return driver is None or driver.spec.attach_required is not False

    def _is_managed(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and is_managed(node)

    def _held(self, key: str, a: VolumeAttachment) -> p.Held:
        node = a.spec.node_name
        return p.Held(
            node=node,
            name=a.name,
            uid=a.uid,
            attached=a.status.attached,
            deleting=a.is_deleting,
            attach_error=a.status.attach_error.message if a.status.attach_error else "",
            detach_error=a.status.detach_error.message if a.status.detach_error else "",
            unwanted_for=self._elapsed(key, node, "unwanted"),
            waiting_for=self._elapsed(key, node, "detach" if a.is_deleting else "attach"),
        )

    def _place(self, key: str, name: str) -> p.Place:
        node = self.listing.newest(name)
        if node is None:
            last = self._last_in_use.get(name)
            gone = last is not None and not self.wait_for_deleted_nodes  # we saw it go: somebody meant it
            return p.Place(ready=False, gone=gone, in_use=last is None or key in last)
        return p.Place(
            ready=taints.is_ready(node),
            fenced=taints.is_out_of_service(node),
            in_use=key in node.status.volumes_in_use,
            listed=any(v.name == key for v in node.status.volumes_attached),
        )

    # --- time as this process saw it pass, and whom it told

    def _keep_books(
        self, key: str, wanted: dict[str, list[Pod]], attachments: list[VolumeAttachment]
    ) -> None:
        """Timers run for exactly what is the case now."""
        running: set[tuple[str, str]] = set()
        for a in attachments:
            node = a.spec.node_name
            if node not in wanted:
                running.add((node, "unwanted"))
            elif not a.status.attached and (node, "unwanted") in self._since.get(key, {}):
                running.add((node, "unwanted"))  # wanted again, but only an attached one stops the clock
            if a.is_deleting:
                running.add((node, "detach"))
            elif not a.status.attached:
                running.add((node, "attach"))
        now, before = clock.now(), self._since.get(key, {})
        self._since[key] = {timer: before.get(timer, now) for timer in running}
        if not running:
            del self._since[key]
        for book in (self._told, self._failures):
            for node in book.get(key, {}).keys() - wanted.keys():
                del book[key][node]
            if not book.get(key, True):
                del book[key]

    def _elapsed(self, key: str, node: str, what: str) -> float:
        since = self._since.get(key, {}).get((node, what))
        return clock.now() - since if since is not None else 0.0

    # --- one volume

    async def reconcile(self, key: str) -> None:
        view = self.view(key)
        for step in list(p.plan(view)):
            await self._act(key, view, step)

    async def _act(self, key: str, view: p.View, step: p.Step) -> None:
        match step:
            case p.Attach(node):
                await self._attach(key, view, node)
            case p.Detach():
                await self._detach(key, view, step)
            case p.List(node):
                self._failures.get(key, {}).pop(node, None)
                if await self.listing.put(node, key):
                    trace.mark(COMPONENT, "attached", _subject(view, node), node=node, volume=view.title)
                    self._tell(view, node, "Normal", "SuccessfulAttachVolume", p.success_message(view.title))
            case p.Unlist(node):
                await self.listing.remove(node, key)
            case p.Fail(node, error):
                self._fail(key, view, node, error)
            case p.Conflict(node, users):
                self._told.setdefault(key, {})[node] = (1, 0.0)
                for pod in view.wanted[node]:
                    message = p.conflict_message(view.title, pod, users)
                    self.events.event(pod, "Warning", "FailedAttachVolume", message)
            case Wait(seconds, why):
                self.queue.later(key, seconds, why)
            case _:
                assert_never(step)

    async def _attach(self, key: str, view: p.View, node: str) -> None:
        attachment = VolumeAttachment(
            metadata=ObjectMeta(name=names.attachment(view.handle, view.driver, node)),
            spec=VolumeAttachmentSpec(
                attacher=view.driver,
                node_name=node,
                source=VolumeAttachmentSource(persistent_volume_name=view.title),
            ),
        )
        with trace.span(COMPONENT, "attach", f"va/{attachment.name}", node=node, volume=view.title):
            await self.client.create(attachment, exists_ok=True)

    async def _detach(self, key: str, view: p.View, step: p.Detach) -> None:
        held = step.held
        with trace.span(COMPONENT, "detach", f"va/{held.name}", node=held.node, volume=view.title):
            if step.check:
                node = await self.client.find(Node, held.node)
                if node is not None and key in node.status.volumes_in_use:
                    raise Refused(STILL_IN_USE)
            await self.client.delete(VolumeAttachment, held.name, uid=held.uid, missing_ok=True)
        if step.forced:
            log.warning("%s: detached from %s by force: %s", view.title, held.node, step.forced)
            forced_detaches.labels(step.forced).inc()

    def _fail(self, key: str, view: p.View, node: str, error: str) -> None:
        """Tell the pods, then not again before a pause that doubles; each telling is a new try."""
        failures = self._failures.setdefault(key, {})
        count, due = failures.get(node, (0, 0.0))
        now = clock.now()
        if now >= due - p.EARLY:
            self._tell(view, node, "Warning", "FailedAttachVolume", p.failure_message(view.title, error))
            due = now + self.backoff.pause(count + 1)
            failures[node] = (count + 1, due)
            self._since.get(key, {}).pop((node, "attach"), None)
        self.queue.later(key, due - now, error)

    def _tell(self, view: p.View, node: str, type: str, reason: str, message: str) -> None:
        for pod in view.wanted.get(node, ()):
            self.events.event(pod, type, reason, message)


def _subject(view: p.View, node: str) -> str:
    return f"va/{names.attachment(view.handle, view.driver, node)}"
