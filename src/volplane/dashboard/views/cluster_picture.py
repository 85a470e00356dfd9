"""What the cluster view shows: each volume at its place, as plain data from objects and reports.

A volume is on each node that has it attached, that a pod uses it on, or whose kubelet still has it mounted.
One that is on no node is in storage. Pure: `draw` decides everything, rendering only writes it down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.labels import BETA_ZONE_LABEL, ZONE_LABEL
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.dashboard.pieces import Tone
from volplane.explain.cluster_state import ready_since
from volplane.loops.disk_states import DiskState
from volplane.loops.volume_states import ComparedVolume
from volplane.rules import pods as pod_rules
from volplane.rules.sizes import capacity, format_size, requested_size
from volplane.rules.taints import OUT_OF_SERVICE, is_ready
from volplane.rules.waits import WaitReason

_T = TypeVar("_T")

NO_ZONE = "without a zone"
UNCERTAIN = "uncertain"


class PlaceState(StrEnum):
    """The state of a volume at one place."""

    WAITING = "waits for it"  # a pod needs it here, and it is attached elsewhere
    ATTACHING = "attaching"
    ATTACH_FAILED = "attach fails"
    ATTACHED = "attached"
    STAGED = "staged"
    MOUNTED = "mounted"
    MOUNT_FAILED = "mount fails"
    MOUNT_UNCERTAIN = "mount uncertain"
    IN_USE = "in use"  # as far as objects show it: the kubelet was not asked
    DETACHING = "detaching"
    DETACH_FAILED = "detach fails"
    NOT_KNOWN = "not known"  # the node is lost
    PROVISIONING = "not provisioned yet"
    NOT_ATTACHED = "not attached"
    AVAILABLE = "available"
    RELEASED = "released"
    LOST = "lost"
    FAILED = "failed"
    DELETING = "being deleted"

    @property
    def tone(self) -> Tone:
        return _TONES[self]


_TONES = {
    PlaceState.WAITING: Tone.WARN,
    PlaceState.ATTACHING: Tone.BUSY,
    PlaceState.ATTACH_FAILED: Tone.BAD,
    PlaceState.ATTACHED: Tone.BUSY,
    PlaceState.STAGED: Tone.BUSY,
    PlaceState.MOUNTED: Tone.GOOD,
    PlaceState.MOUNT_FAILED: Tone.BAD,
    PlaceState.MOUNT_UNCERTAIN: Tone.WARN,
    PlaceState.IN_USE: Tone.GOOD,
    PlaceState.DETACHING: Tone.BUSY,
    PlaceState.DETACH_FAILED: Tone.BAD,
    PlaceState.NOT_KNOWN: Tone.WARN,
    PlaceState.PROVISIONING: Tone.BUSY,
    PlaceState.NOT_ATTACHED: Tone.IDLE,
    PlaceState.AVAILABLE: Tone.IDLE,
    PlaceState.RELEASED: Tone.WARN,
    PlaceState.LOST: Tone.BAD,
    PlaceState.FAILED: Tone.BAD,
    PlaceState.DELETING: Tone.BUSY,
}


_BEFORE_STAGING = frozenset({PlaceState.ATTACHING, PlaceState.ATTACHED, PlaceState.MOUNT_FAILED})


class PlacedVolume(Struct, frozen=True):
    """A volume at a place: on a node, or in storage."""

    uid: str  # of the PersistentVolume, or of a claim without one
    subject: str  # pvc/default/data or pv/name
    title: str  # the claim's name, or the volume's
    namespace: str
    volume: str  # name of the PersistentVolume
    size: str
    state: PlaceState
    pods: tuple[str, ...] = ()  # of this node that use it: names, with the namespace if it is another one
    problem: str = ""
    is_shared: bool = False


class PlacedPod(Struct, frozen=True):
    namespace: str
    name: str
    state: str
    tone: Tone
    volumes: int


class AttachLimit(Struct, frozen=True):
    driver: str
    used: int
    limit: int | None


class DrawnNode(Struct, frozen=True):
    name: str
    problem: str = ""  # "" if it is ready
    since: datetime | None = None  # of the problem
    is_fenced: bool = False
    is_cordoned: bool = False
    is_missing: bool = False  # it has volumes or pods, but no Node object
    volumes: tuple[PlacedVolume, ...] = ()
    pods: tuple[PlacedPod, ...] = ()
    limits: tuple[AttachLimit, ...] = ()


class DrawnZone(Struct, frozen=True):
    name: str
    nodes: tuple[DrawnNode, ...]


class DrawnDisk(Struct, frozen=True):
    disk: DiskState
    subject: str  # of its volume; "" if no PersistentVolume has it
    title: str


class ClusterPicture(Struct, frozen=True):
    zones: tuple[DrawnZone, ...] = ()
    storage: tuple[PlacedVolume, ...] = ()  # volumes on no node
    disks: tuple[DrawnDisk, ...] = ()
    has_disk_service: bool = False

    @property
    def nodes(self) -> list[DrawnNode]:
        return [node for zone in self.zones for node in zone.nodes]


class ClusterFacts(Struct, frozen=True):
    """All that is read for a picture."""

    nodes: Sequence[Node] = ()
    pods: Sequence[Pod] = ()
    claims: Sequence[PersistentVolumeClaim] = ()
    volumes: Sequence[PersistentVolume] = ()
    attachments: Sequence[VolumeAttachment] = ()
    csi_nodes: Sequence[CSINode] = ()
    kubelets: Mapping[str, Sequence[ComparedVolume]] = {}  # by node; those that have answered
    disks: Sequence[DiskState] | None = None  # None: there is no disk service here


def draw(facts: ClusterFacts) -> ClusterPicture:
    return _Drawing(facts).draw()


class _Drawing:
    def __init__(self, facts: ClusterFacts) -> None:
        self.facts = facts
        self.nodes = {node.name: node for node in facts.nodes}
        self.claims = {claim.key: claim for claim in facts.claims}
        self.attachments = _group(facts.attachments, lambda a: a.spec.source.persistent_volume_name or "")
        self.pods_of_claim = defaultdict[str, list[Pod]](list)
        for pod in facts.pods:
            for key in pod_rules.claim_keys(pod):
                self.pods_of_claim[key].append(pod)
        self.mounts = defaultdict[str, dict[str, list[ComparedVolume]]](dict)  # by volume, by node
        for node, compared in facts.kubelets.items():
            for each in compared:
                self.mounts[each.name].setdefault(node, []).append(each)
        self.on_node = defaultdict[str, list[PlacedVolume]](list)
        self.storage: list[PlacedVolume] = []

    def draw(self) -> ClusterPicture:
        for volume in self.facts.volumes:
            self._place_volume(volume)
        for claim in self.facts.claims:
            if not claim.spec.volume_name or claim.status.phase == "Lost":
                self._place_claim(claim)
        return ClusterPicture(
            tuple(self._draw_zones()),
            tuple(sorted(self.storage, key=_title_order)),
            tuple(self._draw_disks()),
            self.facts.disks is not None,
        )

    # --- volumes

    def _place_volume(self, volume: PersistentVolume) -> None:
        ref = volume.spec.claim_ref
        key = f"{ref.namespace}/{ref.name}" if ref is not None else ""
        claim = self.claims.get(key)
        is_bound = claim is not None and ref is not None and ref.uid in ("", claim.uid)
        attachments = {a.spec.node_name: a for a in self.attachments.get(volume.name, ())}
        users = defaultdict[str, list[Pod]](list)
        for pod in self.pods_of_claim.get(key, ()) if is_bound else ():
            if pod.spec.node_name and not pod_rules.has_ended(pod):
                users[pod.spec.node_name].append(pod)
        mounts = self._find_mounts(volume, users)
        places = dict.fromkeys((*attachments, *users, *mounts))
        for node in places:
            state, problem = self._judge(
                node,
                attachments.get(node),
                users.get(node, ()),
                mounts.get(node, ()),
                is_elsewhere=any(other != node for other in attachments),
            )
            self.on_node[node].append(self._make_volume(volume, claim, state, users.get(node, ()), problem))
        if not places:
            state, problem = _state_in_storage(volume)
            self.storage.append(self._make_volume(volume, claim, state, (), problem))

    def _find_mounts(
        self, volume: PersistentVolume, users: Mapping[str, Sequence[Pod]]
    ) -> Mapping[str, list[ComparedVolume]]:
        """What kubelets report about a volume. A volume in a pod, such as an emptyDir, may have its name."""
        found = {}
        for node, compared in self.mounts.get(volume.name, {}).items():
            pods = frozenset(pod.key for pod in users.get(node, ()))
            if own := [each for each in compared if _is_of_volume(each, volume, pods)]:
                found[node] = own
        return found

    def _make_volume(
        self,
        volume: PersistentVolume,
        claim: PersistentVolumeClaim | None,
        state: PlaceState,
        users: Iterable[Pod],
        problem: str,
    ) -> PlacedVolume:
        return PlacedVolume(
            uid=volume.uid,
            subject=f"pvc/{claim.key}" if claim is not None else f"pv/{volume.name}",
            title=claim.name if claim is not None else volume.name,
            namespace=claim.namespace if claim is not None else "",
            volume=volume.name,
            size=format_size(capacity(volume)),
            state=state,
            pods=tuple(pod.name for pod in users),
            problem=problem,
            is_shared=any(mode in ("ReadWriteMany", "ReadOnlyMany") for mode in volume.spec.access_modes),
        )

    def _judge(
        self,
        node: str,
        attachment: VolumeAttachment | None,
        users: Sequence[Pod],
        mounts: Sequence[ComparedVolume],
        *,
        is_elsewhere: bool,
    ) -> tuple[PlaceState, str]:
        """The state of a volume on a node, and what goes wrong."""
        if attachment is not None:
            status = attachment.status
            if attachment.is_deleting:
                error = status.detach_error.message if status.detach_error is not None else ""
                return (PlaceState.DETACH_FAILED if error else PlaceState.DETACHING), error
            if not status.attached:
                error = status.attach_error.message if status.attach_error is not None else ""
                return (PlaceState.ATTACH_FAILED if error else PlaceState.ATTACHING), error
        known = self.nodes.get(node)
        if known is None or (not is_ready(known) and node not in self.facts.kubelets):
            return PlaceState.NOT_KNOWN, ""
        reported = _state_of_mounts(mounts) if mounts else None
        if attachment is None and is_elsewhere and (reported is None or reported[0] in _BEFORE_STAGING):
            waits = next((m.pending.text for m in mounts if m.pending is not None), "")
            return PlaceState.WAITING, waits
        if reported is not None:
            state, problem = reported
            is_attached = attachment is not None and state is PlaceState.ATTACHING
            return (PlaceState.ATTACHED if is_attached else state), problem
        if node in self.facts.kubelets:
            return (PlaceState.ATTACHED if attachment is not None else PlaceState.ATTACHING), ""
        running = any(pod.status.phase == "Running" for pod in users)
        return (PlaceState.IN_USE if running else PlaceState.ATTACHED), ""

    def _place_claim(self, claim: PersistentVolumeClaim) -> None:
        """A claim without a volume; a pod may already wait for it on a node."""
        state = PlaceState.PROVISIONING
        if claim.status.phase == "Lost":
            state = PlaceState.LOST
        elif claim.is_deleting:
            state = PlaceState.DELETING
        users = [p.name for p in self.pods_of_claim.get(claim.key, ())]
        size = format_size(requested_size(claim))
        placed = PlacedVolume(
            claim.uid, f"pvc/{claim.key}", claim.name, claim.namespace, "", size, state, tuple(users)
        )
        self.storage.append(placed)

    # --- nodes

    def _draw_zones(self) -> Iterable[DrawnZone]:
        by_zone = defaultdict[str, list[DrawnNode]](list)
        pods = _group(
            (p for p in self.facts.pods if p.spec.node_name and not pod_rules.has_ended(p)),
            lambda pod: pod.spec.node_name,
        )
        limits = {each.name: each for each in self.facts.csi_nodes}
        for name in {*self.nodes, *self.on_node, *pods}:
            node = self.nodes.get(name)
            labels = node.metadata.labels if node is not None else {}
            zone = labels.get(ZONE_LABEL) or labels.get(BETA_ZONE_LABEL) or NO_ZONE
            by_zone[zone].append(self._draw_node(name, node, pods.get(name, ()), limits.get(name)))
        for zone in sorted(by_zone, key=lambda name: (name == NO_ZONE, name)):
            yield DrawnZone(zone, tuple(sorted(by_zone[zone], key=lambda node: natural_order(node.name))))

    def _draw_node(
        self, name: str, node: Node | None, pods: Sequence[Pod], csi_node: CSINode | None
    ) -> DrawnNode:
        taints = node.spec.taints if node is not None else ()
        return DrawnNode(
            name=name,
            problem=_describe_problem(node),
            since=ready_since(node) if node is not None and not is_ready(node) else None,
            is_fenced=any(taint.key == OUT_OF_SERVICE for taint in taints),
            is_cordoned=node is not None and node.spec.unschedulable,
            is_missing=node is None,
            volumes=tuple(sorted(self.on_node.get(name, ()), key=_title_order)),
            pods=tuple(
                sorted(map(_place_pod, pods), key=lambda pod: (not pod.volumes, pod.namespace, pod.name))
            ),
            limits=tuple(self._list_limits(name, csi_node)),
        )

    def _list_limits(self, node: str, csi_node: CSINode | None) -> Iterable[AttachLimit]:
        here = [a for a in self.facts.attachments if a.spec.node_name == node]
        for driver in csi_node.spec.drivers if csi_node is not None else ():
            limit = driver.allocatable.count if driver.allocatable is not None else None
            used = sum(a.spec.attacher == driver.name for a in here)
            if limit is not None or used:
                yield AttachLimit(driver.name, used, limit)

    # --- disks

    def _draw_disks(self) -> Iterable[DrawnDisk]:
        by_handle = {v.spec.csi.volume_handle: v for v in self.facts.volumes if v.spec.csi is not None}
        for disk in sorted(self.facts.disks or (), key=_disk_order):
            volume = by_handle.get(disk.id)
            ref = volume.spec.claim_ref if volume is not None else None
            if volume is None:
                yield DrawnDisk(disk, "", "")
            elif ref is not None and f"{ref.namespace}/{ref.name}" in self.claims:
                yield DrawnDisk(disk, f"pvc/{ref.namespace}/{ref.name}", ref.name)
            else:
                yield DrawnDisk(disk, f"pv/{volume.name}", volume.name)


def _is_of_volume(compared: ComparedVolume, volume: PersistentVolume, pods: frozenset[str]) -> bool:
    if volume.spec.csi is not None:
        return compared.volume.endswith(f"^{volume.spec.csi.volume_handle}")
    return not pods.isdisjoint(compared.pods)


def _state_of_mounts(mounts: Sequence[ComparedVolume]) -> tuple[PlaceState, str]:
    """The state that a kubelet reports, of the pod that is furthest behind."""
    for mount in mounts:
        if mount.pending is not None and mount.pending.reason == WaitReason.RETRY:
            return PlaceState.MOUNT_FAILED, mount.pending.text
    if any(UNCERTAIN in mount.actual for mount in mounts):
        return PlaceState.MOUNT_UNCERTAIN, ""
    actual = {mount.actual for mount in mounts}
    for text, state in (
        ("", PlaceState.ATTACHING),
        ("attached", PlaceState.ATTACHED),
        ("device mounted", PlaceState.STAGED),
    ):
        if text in actual:
            return state, ""
    return PlaceState.MOUNTED, ""


def _state_in_storage(volume: PersistentVolume) -> tuple[PlaceState, str]:
    if volume.is_deleting:
        return PlaceState.DELETING, ""
    match volume.status.phase:
        case "Available":
            return PlaceState.AVAILABLE, ""
        case "Released":
            return PlaceState.RELEASED, ""
        case "Failed":
            return PlaceState.FAILED, volume.status.message
    return PlaceState.NOT_ATTACHED, ""


def _describe_problem(node: Node | None) -> str:
    if node is None:
        return "no such node"
    if is_ready(node):
        return ""
    ready = next((c for c in node.status.conditions if c.type == "Ready"), None)
    if ready is None or ready.status == "Unknown":
        return "unreachable"
    return f"not ready: {ready.message}" if ready.message else "not ready"


def _place_pod(pod: Pod) -> PlacedPod:
    state = describe_pod(pod)
    tone = Tone.GOOD if state in ("Running", "Succeeded") else Tone.BUSY
    if state.endswith(("Error", "BackOff")) or state == "Failed":
        tone = Tone.BAD
    return PlacedPod(pod.namespace, pod.name, state, tone, len(list(pod_rules.claim_uses(pod))))


def describe_pod(pod: Pod) -> str:
    """One word for its state, as kubectl shows it."""
    if pod.is_deleting:
        return "Terminating"
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason:
            return waiting.reason
    return pod.status.phase or "Pending"


def natural_order(name: str) -> tuple[str, int, str]:
    """worker-2 stands before worker-10."""
    digits = len(name) - len(name.rstrip("0123456789"))
    number = int(name[-digits:]) if digits else 0
    return name[: len(name) - digits], number, name


def _disk_order(disk: DiskState) -> tuple[object, ...]:
    """In each zone, disks that are not simply in use stand first."""
    return disk.zone, is_in_use(disk), disk.id


def is_in_use(disk: DiskState) -> bool:
    """Whether a disk is attached, and nothing is about to change that."""
    return disk.state == "in-use" and disk.attachment in ("", "attached")


def _title_order(volume: PlacedVolume) -> tuple[object, ...]:
    return volume.namespace, natural_order(volume.title), volume.volume


def _group(items: Iterable[_T], key: Callable[[_T], str]) -> Mapping[str, list[_T]]:
    found = defaultdict[str, list[_T]](list)
    for item in items:
        found[key(item)].append(item)
    return found
