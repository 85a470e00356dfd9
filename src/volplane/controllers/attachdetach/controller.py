"""The attach/detach controller. A key is a volume, by its unique name as in node status.

Every change of a pod, claim, volume, attachment, node or driver wakes the volumes that it is about. Only this
process knows when it first saw something (the timers of the plan) and which failures it has reported; all of
that may be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, assert_never

from volplane.api import names
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import ObjectMeta
from volplane.api.storage import CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec
from volplane.base import clock, metrics, trace
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.controllers.attachdetach import plan as p
from volplane.controllers.attachdetach import volume_counts
from volplane.controllers.attachdetach.facts import (
    inline_unique_names,
    is_flex,
    is_managed,
    listed_volumes,
    plugin_of,
    relevant_node_fields,
    relevant_pod_fields,
    split,
    unique_name,
    uses,
    volume_driver,
)
from volplane.controllers.attachdetach.flex import FlexVolumes
from volplane.controllers.attachdetach.inline_volumes import InTreePodVolumes, inline_attachment, inline_names
from volplane.controllers.attachdetach.memory import AttachDetachMemory
from volplane.controllers.attachdetach.state_comparison import compare
from volplane.controllers.attachdetach.volume_counts import AttachDetachObjects
from volplane.controllers.attachdetach.volumes_attached import VolumesAttached
from volplane.loops.controller import PLANNED_IN_A_ROW, Controller, RetryableError
from volplane.loops.storage_metrics import observe_operation
from volplane.loops.volume_states import ATTACH_DETACH_ROLE, ComparedVolume, StateComparison, group_waits
from volplane.rules import access, pods, taints
from volplane.rules.attachments import attached_node, attached_volume
from volplane.rules.binding import claim_key, claimant, is_pair
from volplane.rules.csi_translation import find_csi_source
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.volumes.flex.attachment import attached_flex_volume
from volplane.volumes.flex.options import DEVICE_PATH

if TYPE_CHECKING:  # it needs inotify; `explain` runs this controller without one
    from volplane.volumes.flex.prober import FlexProber

log = logging.getLogger(__name__)

COMPONENT = "attachdetach-controller"
STILL_IN_USE = "volume is still in use by node, according to Node status"

forced_detaches = metrics.counter(
    "attachdetach_controller_forced_detaches",
    "Number of times the A/D Controller performed a forced detach",
    ["reason"],
)


class AttachDetach(Controller[str, p.AttachDetachView, p.Step]):
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
        attach_timeout: float = p.ATTACH_TIMEOUT,
        retry_interval_max: float = 122.0,
        flex_prober: FlexProber | None = None,
    ) -> None:
        """`flex_prober`: of the FlexVolume drivers; without it, all of them count as found."""
        super().__init__(client, backoff=Backoff(0.5, retry_interval_max))
        self.flex_prober = flex_prober
        self.wait_for_deleted_nodes = wait_for_deleted_nodes
        self.grace, self.answer = max_wait_for_unmount, attach_timeout
        self.force = force_detach

    def setup(self) -> None:
        self.memory = AttachDetachMemory()
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)
        self.attachments = self.watch(VolumeAttachment, self.keys_of_attachment)
        self.nodes = self.watch(Node, self.keys_of_node, observe=self.observe_node)
        self.volumes_attached = VolumesAttached(self.client, self.nodes)
        self.drivers = self.watch(CSIDriver, self.keys_of_driver)
        self.users = self.pods.index("claims", pods.claim_keys)
        self.pods_on = self.pods.index("node", pods.node_of)
        self.by_name = self.volumes.index("unique name", unique_name)
        self.by_driver = self.volumes.index("driver", volume_driver)
        self.by_claim = self.volumes.index("claimant", claimant)
        self.by_volume = self.attachments.index("volume", attached_volume)
        self.by_node = self.attachments.index("node", attached_node)
        self.inline = InTreePodVolumes(self.pods, self.attachments)
        self.flex = FlexVolumes(self.flex_prober, self.pods, self.volumes, self.attachments)
        if self.flex_prober is not None:
            self.watch_source(self.flex_prober.subscribe, self.flex.keys_of_driver)
        self.listing = self.nodes.index("volumes attached", listed_volumes)

    # --- which keys a change wakes

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterator[str]:
        pod = new or old
        assert pod is not None
        if not pod.spec.node_name:
            return
        if (
            old is not None
            and new is not None
            and old is not new
            and relevant_pod_fields(old) == relevant_pod_fields(new)
        ):
            return  # most updates of a running pod do not affect its volumes
        yield from inline_unique_names(pod)
        for key in pods.claim_keys(pod):
            yield from self._of_claim(key)
        yield from inline_names(pod)

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
        """Only volumes that a pod uses, that are attached, or that the memory knows."""
        used = self.users[claim_key(volume)] or self.by_volume[volume.name]
        for name in unique_name(volume):
            if used or name in self.listing or name in self.memory:
                yield name

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        for volume in (old, new):
            if volume is not None:
                yield from self._of_volume(volume)

    def keys_of_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> Iterator[str]:
        attachment = new or old
        assert attachment is not None
        if inline := _volume_of_attachment(attachment):
            yield from inline
            return
        volume = self.volumes.get(attachment.spec.source.persistent_volume_name or "")
        if volume is not None:
            yield from unique_name(volume)
            return
        node = self.nodes.get(attachment.spec.node_name)
        for name in listed_volumes(node) if node is not None else ():
            parts = split(name)
            if (
                parts
                and names.attachment_name(parts[1], parts[0], attachment.spec.node_name) == attachment.name
            ):
                yield name

    def keys_of_node(self, old: Node | None, new: Node | None) -> Iterator[str]:
        node = new or old
        assert node is not None
        if (
            old is not None
            and new is not None
            and old is not new
            and relevant_node_fields(old) == relevant_node_fields(new)
        ):
            changed = set(old.status.volumes_in_use) ^ set(new.status.volumes_in_use)
            yield from changed | (set(listed_volumes(old)) ^ set(listed_volumes(new)))
            return
        yield from {*node.status.volumes_in_use, *listed_volumes(node)}
        for attachment in self.by_node[node.name]:
            yield from self.keys_of_attachment(None, attachment)
        if old is None or (new is not None and is_managed(old) != is_managed(new)):
            for pod in self.pods_on[
                node.name
            ]:  # the node is managed from now on: wake all volumes of its pods
                yield from self.keys_of_pod(None, pod)

    def keys_of_driver(self, old: CSIDriver | None, new: CSIDriver | None) -> Iterator[str]:
        driver = new or old
        assert driver is not None
        if old is None or new is None or old.spec.attach_required != new.spec.attach_required:
            for volume in self.by_driver[driver.name]:
                yield from unique_name(volume)

    def observe_node(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            # Not the node itself: an attachment to it may be created at this moment.
            self.memory.forget_nodes(lambda name: bool(self.by_node[name]))
        self.memory.observe_node(old, new)
        self.volumes_attached.observe_node(old, new)

    # --- what the caches show

    def view(self, key: str) -> p.AttachDetachView:
        volumes = self.by_name[key]  # mostly one; two PersistentVolumes may refer to the same disk
        inline = self.inline.find(key) if not volumes else None
        volume = volumes[0] if volumes else inline
        source = find_csi_source(volume)
        driver, handle = (source.driver, source.volume_handle) if source else split(key) or ("", "")
        missing = self.flex.missing_driver(key)
        attachments = self._attachments(key, volumes)
        attached_to = {a.spec.node_name for a in attachments}
        wanted: dict[str, list[Pod]] = {}
        for each in volumes:
            self._add_wanted(wanted, each, attached_to)
        if volume is not None and self.is_attachable(volume):
            self._add_inline_wanted(wanted, self.inline.users(key), attached_to)
        if is_flex(key):
            self._add_inline_wanted(wanted, self.flex.users(key), attached_to)
        listed = [node.name for node in self.listing[key]]
        return p.AttachDetachView(
            title=volume.name if volume is not None else handle or key,
            driver=driver,
            handle=handle,
            inline=inline.spec if inline is not None else None,
            unique_name=key,
            is_flex=is_flex(key),
            flex_missing=missing,
            flex_loading=bool(missing) and self.flex.is_loading(key),
            shareable=access.is_shareable(volume),
            wanted=wanted,
            attachments=[self._existing(key, a) for a in attachments],
            nodes={name: self._node_facts(key, name) for name in {*attached_to, *wanted, *listed}},
            reported=self.memory.reported_conflicts(key),
            grace=self.grace,
            answer=self.answer,
            force=self.force,
        )

    def _attachments(self, key: str, volumes: list[PersistentVolume]) -> list[VolumeAttachment]:
        if is_flex(key):
            return self.flex.attachments(key)
        found = [a for volume in volumes for a in self.by_volume[volume.name]] + self.inline.attachments(key)
        if not volumes:
            found += self._attachments_by_name(key, {a.name for a in found})
        if len(found) < 2:  # most volumes
            return found
        return sorted(found, key=lambda a: (a.spec.node_name, not _is_made_by_hand(a, key)))

    def _attachments_by_name(self, key: str, known: set[str]) -> list[VolumeAttachment]:
        """Of a volume whose object is gone: on nodes that list or want it, by the names they must have."""
        parts = split(key)
        if parts is None:
            return []
        driver, handle = parts
        nodes = [node.name for node in self.listing[key]]
        nodes += [pod.spec.node_name for pod in self.inline.users(key)]
        named = {names.attachment_name(handle, driver, node) for node in nodes}
        return [a for name in named - known if (a := self.attachments.get(name)) is not None]

    def _add_wanted(
        self, wanted: dict[str, list[Pod]], volume: PersistentVolume, attached_to: set[str]
    ) -> None:
        if volume.spec.claim_ref is None or not self.is_attachable(volume):
            return
        claim = self.claims.at(claim_key(volume))
        paired = claim is not None and is_pair(claim, volume)
        for pod in self.users[claim_key(volume)]:
            node = pod.spec.node_name
            # Where it is attached already, it stays wanted even if its claim, volume or node object is gone.
            if (
                not node
                or pods.has_released_volumes(pod)
                or not (node in attached_to or (paired and self._is_managed(node)))
            ):
                continue
            if claim is None or uses(pod, claim):
                wanted.setdefault(node, []).append(pod)

    def _add_inline_wanted(
        self, wanted: dict[str, list[Pod]], users: Iterable[Pod], attached_to: set[str]
    ) -> None:
        for pod in users:
            node = pod.spec.node_name
            if node in attached_to or self._is_managed(node):
                wanted.setdefault(node, []).append(pod)

    def is_attachable(self, volume: PersistentVolume) -> bool:
        if volume.spec.flex_volume is not None:
            return self.flex.may_attach(volume.spec.flex_volume.driver)
        source = find_csi_source(volume)
        driver = self.drivers.get(source.driver) if source is not None else None
        return driver is None or driver.spec.attach_required is not False

    def _is_managed(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and is_managed(node)

    def _existing(self, key: str, a: VolumeAttachment) -> p.ExistingAttachment:
        node = a.spec.node_name
        return p.ExistingAttachment(
            node=node,
            name=a.name,
            uid=a.uid,
            attached=a.status.attached,
            device_path=a.status.attachment_metadata.get(DEVICE_PATH, "") if is_flex(key) else "",
            deleting=a.is_deleting,
            by_hand=_is_made_by_hand(a, key),
            attach_error=a.status.attach_error.message if a.status.attach_error else "",
            detach_error=a.status.detach_error.message if a.status.detach_error else "",
            unwanted_for=self.memory.elapsed_time(key, node, "unwanted"),
            waiting_for=self.memory.elapsed_time(key, node, "detach" if a.is_deleting else "attach"),
        )

    def _node_facts(self, key: str, name: str) -> p.NodeFacts:
        node = self.volumes_attached.newest(name)
        if node is None:
            last = self.memory.last_in_use(name)
            gone = (
                last is not None and not self.wait_for_deleted_nodes
            )  # seen to be deleted, so the deletion was intended
            # A node that this process never saw may still use the volume.
            return p.NodeFacts(ready=False, gone=gone, in_use=last is None or key in last)
        entry = next((v for v in node.status.volumes_attached if v.name == key), None)
        return p.NodeFacts(
            ready=taints.is_ready(node),
            fenced=taints.is_out_of_service(node),
            in_use=key in node.status.volumes_in_use,
            listed=entry is not None,
            device_path=entry.device_path if entry is not None else "",
        )

    # --- what to do

    def plan(self, view: p.AttachDetachView) -> Iterator[p.Step | CommonStep]:
        return p.plan(view)

    def update_memory(
        self, key: str, view: p.AttachDetachView | None, steps: Sequence[p.Step | CommonStep]
    ) -> None:
        assert view is not None
        for seconds in self.memory.finished_detaches(key, view):
            observe_operation(plugin_of(key), "volume_detach", seconds, failed=False)
        self.memory.update(key, view)

    async def compare_states(self) -> StateComparison:
        waits = group_waits(self.waits)
        found: list[ComparedVolume] = []
        for number, key in enumerate(self.list_keys(), 1):
            if number % PLANNED_IN_A_ROW == 0:
                await asyncio.sleep(0)
            view = self.view(key)
            found += compare(key, plugin_of(key), view, self.plan(view), waits.get(key, ()))
        return StateComparison(ATTACH_DETACH_ROLE, found)

    def list_keys(self) -> list[str]:
        """All volumes that are needed, attached, or listed as attached."""
        used = (key for volume in self.volumes.all() for key in self._of_volume(volume))
        listed = (key for node in self.nodes.all() for key in listed_volumes(node))
        attached = (key for attachment in self.attachments.all() for key in _volume_of_attachment(attachment))
        on_nodes = [pod for pod in self.pods.all() if pod.spec.node_name]
        inline = (key for pod in on_nodes for key in (*inline_unique_names(pod), *inline_names(pod)))
        return sorted({*used, *listed, *attached, *inline})

    @contextmanager
    def counting(self) -> Iterator[None]:
        with (
            volume_counts.total_volumes.counting(self._copy_objects, volume_counts.count_volumes),
            volume_counts.volumes_in_use.counting(self._copy_objects, volume_counts.count_in_use),
        ):
            yield

    def _copy_objects(self) -> AttachDetachObjects:
        flex = self.flex_prober.drivers.values() if self.flex_prober is not None else ()
        without_attach = {driver.name for driver in flex if not driver.capabilities.attach}
        without_attach |= {d.name for d in self.drivers.all() if d.spec.attach_required is False}
        return AttachDetachObjects(
            self.pods.all(),
            self.claims.all(),
            self.volumes.all(),
            self.attachments.all(),
            frozenset(without_attach),
        )

    # --- doing it

    async def act(self, key: str, view: p.AttachDetachView, step: p.Step) -> None:
        match step:
            case p.CreateAttachment(node):
                await self._create_attachment(view, node)
            case p.DeleteAttachment():
                await self._delete_attachment(key, view, step)
            case p.AddToVolumesAttached(node, device_path):
                self.memory.forget_failures(key, node)
                if await self.volumes_attached.add(node, key, device_path):
                    self._observe_attach(key, view, node, failed=False)
                    trace.mark(COMPONENT, "attached", _subject(view, node), node=node, volume=view.title)
                    self._record_on_pods(
                        view, node, "Normal", "SuccessfulAttachVolume", p.success_message(view.title)
                    )
            case p.RemoveFromVolumesAttached(node):
                await self.volumes_attached.remove(node, key)
            case p.ReportAttachFailure(node, error):
                self._report_failure(key, view, node, error)
            case p.ReportMultiAttach(node, users):
                self.memory.note_conflict(key, node)
                for pod in view.wanted[node]:
                    message = p.conflict_message(view.title, pod, users)
                    self.events.event(pod, "Warning", "FailedAttachVolume", message)
            case _:
                assert_never(step)

    async def _create_attachment(self, view: p.AttachDetachView, node: str) -> None:
        attachment = self.flex.build_attachment(view, node) if view.is_flex else _build_attachment(view, node)
        with trace.span(COMPONENT, "attach", f"va/{attachment.name}", node=node, volume=view.title):
            await self.client.create(attachment, exists_ok=True)

    async def _delete_attachment(self, key: str, view: p.AttachDetachView, step: p.DeleteAttachment) -> None:
        existing = step.attachment
        with trace.span(COMPONENT, "detach", f"va/{existing.name}", node=existing.node, volume=view.title):
            if step.check:
                node = await self.client.find(Node, existing.node)
                if node is not None and key in node.status.volumes_in_use:
                    raise RetryableError(STILL_IN_USE)
            await self.client.delete(VolumeAttachment, existing.name, uid=existing.uid, missing_ok=True)
        if step.forced:
            log.warning("%s: detached from %s by force: %s", view.title, existing.node, step.forced)
            forced_detaches.labels(step.forced).inc()

    def _report_failure(self, key: str, view: p.AttachDetachView, node: str, error: str) -> None:
        """Record the failure on the pods, at most once per backoff."""
        due = self.memory.failure_due(key, node)
        if clock.now() >= due - p.TIMER_TOLERANCE:
            self._record_on_pods(
                view, node, "Warning", "FailedAttachVolume", p.failure_message(view.title, error)
            )
            self._observe_attach(key, view, node, failed=True)
            due = self.memory.note_failure(key, node, self.backoff)
        wait = Wait(WaitReason.ATTACH_FAILED, WaitData(node=node), due - clock.now(), message=error)
        self.queue.later(key, wait)

    def _observe_attach(self, key: str, view: p.AttachDetachView, node: str, *, failed: bool) -> None:
        for existing in view.attachments:
            if existing.node == node:
                observe_operation(plugin_of(key), "volume_attach", existing.waiting_for, failed=failed)

    def _record_on_pods(
        self, view: p.AttachDetachView, node: str, type: str, reason: str, message: str
    ) -> None:
        for pod in view.wanted.get(node, ()):
            self.events.event(pod, type, reason, message)


def _build_attachment(view: p.AttachDetachView, node: str) -> VolumeAttachment:
    inline = VolumeAttachmentSource(inline_volume_spec=view.inline)
    named = VolumeAttachmentSource(persistent_volume_name=view.title)
    return VolumeAttachment(
        metadata=ObjectMeta(name=view.attachment_name(node)),
        spec=VolumeAttachmentSpec(
            attacher=view.driver,
            node_name=node,
            source=inline if view.inline is not None else named,
        ),
    )


def _volume_of_attachment(attachment: VolumeAttachment) -> list[str]:
    """The unique name of the volume, if the attachment itself has it; others name a PersistentVolume."""
    return attached_flex_volume(attachment) or inline_attachment(attachment)


def _subject(view: p.AttachDetachView, node: str) -> str:
    return f"va/{view.attachment_name(node)}"


def _is_made_by_hand(attachment: VolumeAttachment, key: str) -> bool:
    """Whether its name is not the one that this controller derives."""
    if is_flex(key):
        return attachment.name != names.flex_attachment_name(key, attachment.spec.node_name)
    parts = split(key)
    if parts is None:
        return False
    driver, handle = parts
    return attachment.name != names.attachment_name(handle, driver, attachment.spec.node_name)
