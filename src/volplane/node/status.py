"""The Node object: registration, heartbeat, status, and volumesInUse.

`volumesInUse` is the kubelet's half of the handshake with the attach/detach controller. It is written as
soon as it changes, by one writer: changes during a write are collected into the next one. `reported_in_use`
is what the API server has acknowledged, and no device is mounted before its volume is in there. A volume that
is no longer in use is removed from it before the write. A stop waits for `_acknowledged_in_use`, the exact
content of the last acknowledged write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from volplane.api import kinds
from volplane.api.annotations import CONTROLLER_MANAGED_ATTACH_ANNOTATION
from volplane.api.codec import to_dict
from volplane.api.coordination import Lease, LeaseSpec
from volplane.api.core import (
    AttachedVolume,
    DaemonEndpoint,
    Node,
    NodeAddress,
    NodeCondition,
    NodeDaemonEndpoints,
    NodeRuntimeHandler,
    NodeSpec,
    NodeStatus,
    NodeSystemInfo,
)
from volplane.api.errors import APIError, NotFound
from volplane.api.labels import (
    ARCH_LABEL,
    HOSTNAME_LABEL,
    INSTANCE_TYPE_LABEL,
    OS_LABEL,
    REGION_LABEL,
    ZONE_LABEL,
)
from volplane.api.meta import ObjectMeta, OwnerReference
from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.base.retry import retry
from volplane.client.client import Client
from volplane.node import node_info
from volplane.node.options import NodeOptions

log = logging.getLogger(__name__)

T = TypeVar("T")

LEASES = "kube-node-lease"
RESEND = 300.0  # seconds after which an unchanged status is written anyway
RETRY = Backoff(0.1, 10.0)  # between attempts to reach the API server
CALL_TIMEOUT = 10.0

DISK_PRESSURE = "DiskPressure"
_HEALTHY = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    (DISK_PRESSURE, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


class NodeObject:
    """This kubelet's Node in the API."""

    def __init__(
        self,
        client: Client,
        settings: NodeOptions,
        name: str,
        *,
        on_heartbeat: Callable[[], None] = lambda: None,
        on_recreated: Callable[[], None] = lambda: None,
        on_in_use_acknowledged: Callable[[frozenset[str]], None] = lambda names: None,
        volumes_found_on_disk: Callable[[], list[str]] = list,
    ) -> None:
        """`volumes_found_on_disk`: what may be in use, until `list_volumes_in_use` is set."""
        self.client, self.settings, self.name = client, settings, name
        self.controller_manages_attach = settings.enable_controller_attach_detach
        self.cache = client.cache(Node, fields=f"metadata.name={name}")
        self.port = 0
        self.uid = ""
        self.reported_in_use: frozenset[str] = frozenset()
        self.system_info = NodeSystemInfo()
        self.runtime_handlers: tuple[NodeRuntimeHandler, ...] = ()
        self.capacity: Mapping[str, str] = {}
        self.not_ready = "CSINode is not yet initialized"
        self.list_volumes_in_use: Callable[[], list[str]] | None = None  # set once the disk has been read
        self._volumes_found_on_disk = volumes_found_on_disk
        self._on_heartbeat, self._on_recreated = on_heartbeat, on_recreated
        self._on_in_use_acknowledged = on_in_use_acknowledged
        self._changed = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._status_changed = asyncio.Event()
        self._acknowledged_in_use: frozenset[str] = frozenset()  # the last volumesInUse that was acknowledged
        self._pressures: dict[str, tuple[str, str]] = {}  # pressure conditions: reason and message
        self._written = 0  # the revision of the Node with that volumesInUse

    @property
    def labels(self) -> Mapping[str, str]:
        found = self.cache.get(self.name)
        return found.metadata.labels if found is not None else self._labels()

    # --- registration

    async def register(self) -> None:
        """Create the Node, or update the one that exists."""
        made = await self._retry_until_reached(self._create)
        self.uid = made.uid
        self._acknowledge(frozenset(made.status.volumes_in_use), made.revision)
        await self._retry_until_reached(self._restore_status)
        self.report_volumes_in_use()

    async def _create(self) -> Node:
        cidr = self.settings.pod_cidr
        spec = NodeSpec(provider_id=self.provider_id, pod_cidr=cidr, pod_cidrs=tuple(filter(None, [cidr])))
        meta = ObjectMeta(name=self.name, labels=self._labels(), annotations=self._annotations())
        # After the Node was deleted, volumes may still be mounted: the new one lists them from the start.
        names = (self.list_volumes_in_use or self._volumes_found_on_disk)()
        status = msgspec.structs.replace(self._status(None), volumes_in_use=tuple(names))
        node = Node(metadata=meta, spec=spec, status=status)
        made = await self.client.create(node, exists_ok=True)
        patch = self._differences(made)
        return await self.client.patch(Node, self.name, strategic=patch) if patch else made

    def _differences(self, node: Node) -> dict[str, object]:
        """The patch for an existing Node. Labels that others have set stay."""
        meta: dict[str, object] = {}
        if not self._labels().items() <= node.metadata.labels.items():
            meta["labels"] = self._labels()
        if not self._annotations().items() <= node.metadata.annotations.items():
            meta["annotations"] = self._annotations()
        elif (
            not self.controller_manages_attach
            and CONTROLLER_MANAGED_ATTACH_ANNOTATION in node.metadata.annotations
        ):  # of an earlier run
            meta["annotations"] = {CONTROLLER_MANAGED_ATTACH_ANNOTATION: None}
        patch: dict[str, object] = {"metadata": meta} if meta else {}
        spec: dict[str, object] = {}
        if self.provider_id and not node.spec.provider_id:
            spec["providerID"] = self.provider_id
        if self.settings.pod_cidr and not node.spec.pod_cidr:
            spec |= _pod_cidr(self.settings.pod_cidr)
        return patch | ({"spec": spec} if spec else {})

    async def set_pod_cidr(self, cidr: str) -> None:
        """Write the range that the node has chosen for its pods. It cannot be changed afterwards."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                node = await self.client.get(Node, self.name)
                if not node.spec.pod_cidr:
                    await self.client.patch(Node, self.name, strategic={"spec": _pod_cidr(cidr)})
        except (APIError, TimeoutError) as error:
            log.warning("node %s: podCIDR %s was not written: %s", self.name, cidr, error)

    @property
    def provider_id(self) -> str:
        settings = self.settings
        if settings.provider_id or not settings.instance_id:
            return settings.provider_id
        return f"aws:///{settings.zone}/{settings.instance_id}"

    def _labels(self) -> dict[str, str]:
        settings = self.settings
        known = {
            HOSTNAME_LABEL: self.name,
            OS_LABEL: "linux",
            ARCH_LABEL: node_info.architecture(),
            ZONE_LABEL: settings.zone,
            REGION_LABEL: settings.region,
            INSTANCE_TYPE_LABEL: settings.instance_type,
        }
        return {k: v for k, v in {**known, **settings.node_labels}.items() if v}

    def _annotations(self) -> dict[str, str]:
        return {CONTROLLER_MANAGED_ATTACH_ANNOTATION: "true"} if self.controller_manages_attach else {}

    # --- status

    def _status(self, old: Node | None) -> NodeStatus:
        return NodeStatus(
            capacity=self.capacity,
            allocatable=self.capacity,
            conditions=self._conditions(old),
            addresses=(
                NodeAddress("InternalIP", self.settings.node_ip),
                NodeAddress("Hostname", self.name),
            ),
            daemon_endpoints=NodeDaemonEndpoints(DaemonEndpoint(self.port)),
            node_info=self.system_info,
            runtime_handlers=self.runtime_handlers,
        )

    def _conditions(self, old: Node | None) -> tuple[NodeCondition, ...]:
        if self.not_ready:
            ready = ("Ready", "False", "KubeletNotReady", self.not_ready)
        else:
            ready = ("Ready", "True", "KubeletReady", "kubelet is posting ready status")
        wanted = [self._pressure(*healthy) for healthy in _HEALTHY] + [ready]
        return tuple(_condition(old, *each, now=clock.stamp()) for each in wanted)

    def _pressure(self, kind: str, reason: str, text: str) -> tuple[str, str, str, str]:
        """The condition; `reason` and `text` are for a node without this pressure."""
        if kind in self._pressures:
            return (kind, "True", *self._pressures[kind])
        return (kind, "False", reason, text)

    def has_pressure(self, kind: str) -> bool:
        return kind in self._pressures

    def set_pressure(self, kind: str, reason: str, text: str) -> None:
        """Set a pressure condition of the Node; an empty reason clears it."""
        before = self._pressures.get(kind)
        if reason:
            self._pressures[kind] = (reason, text)
        else:
            self._pressures.pop(kind, None)
        if (before is None) == bool(reason):
            self._status_changed.set()

    async def _write_status(self) -> Node:
        status = self._status(self.cache.get(self.name))
        patch = {"runtimeHandlers": None, **to_dict(status)}
        return await self.client.patch(Node, self.name, strategic={"status": patch}, subresource="status")

    async def _restore_status(self) -> Node:
        """Write the whole status, and remove fields that others have written meanwhile."""
        patch = to_dict(self._status(self.cache.get(self.name)))
        patch["addresses"] = [{"$patch": "replace"}, *patch["addresses"]]
        patch["daemonEndpoints"] = {"kubeletEndpoint": {"Port": self.port}}  # also if it is 0
        status = {**patch, "phase": None, "images": None, "config": None}
        return await self.client.patch(Node, self.name, strategic={"status": status}, subresource="status")

    def set_ready(self, problem: str = "") -> None:
        """Make the node Ready, or not ready because of `problem`."""
        if problem != self.not_ready:
            self.not_ready = problem
            self._status_changed.set()

    def write_status_soon(self) -> None:
        """A field of the status has changed."""
        self._status_changed.set()

    # --- updates

    async def run(self) -> None:
        end = self.cache.subscribe(self._on_node_changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._report_volumes(), name=f"{self.name}: volumesInUse")
                tasks.create_task(self._report_status(), name=f"{self.name}: status")
                tasks.create_task(self._heartbeat(), name=f"{self.name}: lease")
        finally:
            end()

    def _on_node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            if old is not None:
                self._status_changed.set()  # the Node was deleted: it is created again
            return
        if not self._shows_our_status(new):
            self._status_changed.set()  # marked Unknown by a controller, or changed by others
        if self._was_overwritten(new):
            self.reported_in_use &= frozenset(new.status.volumes_in_use)
            self.report_volumes_in_use()

    def _shows_our_status(self, node: Node) -> bool:
        """Whether the Node shows the status that this kubelet writes."""
        ours = self._status(node)
        shown = {c.type: c.status for c in node.status.conditions}
        return (
            all(shown.get(c.type) == c.status for c in ours.conditions)
            and set(ours.addresses) <= set(node.status.addresses)  # a cloud controller may add some
            and ours.daemon_endpoints == node.status.daemon_endpoints
        )

    def _was_overwritten(self, node: Node | None) -> bool:
        """Whether volumesInUse was written after our last write, as by a delayed request of our own."""
        if node is None or self.list_volumes_in_use is None or node.revision <= self._written:
            return False
        return frozenset(node.status.volumes_in_use) != self.reported_in_use

    async def read_attached_volume(self, unique: str) -> AttachedVolume | None:
        """The volume's entry in volumesAttached, read live."""
        async with asyncio.timeout(CALL_TIMEOUT):
            node = await self.client.get(Node, self.name)
        return next((v for v in node.status.volumes_attached if v.name == unique), None)

    def report_volumes_in_use(self) -> None:
        self._changed.set()

    async def _report_volumes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self.list_volumes_in_use is None:
                continue  # until the disk has been read, the list of the earlier run stays
            if self._is_behind(self.list_volumes_in_use):
                try:
                    await self._retry_until_reached(lambda: self._write_volumes(self.list_volumes_in_use))
                except NotFound:
                    self._status_changed.set()  # creates the Node again, with all volumes in use

    async def _write_volumes(self, in_use: Callable[[], list[str]] | None) -> None:
        assert in_use is not None
        names = in_use()  # the current ones, also in a retry
        patch = {"status": {"volumesInUse": names}}
        # A volume that is no longer in use is removed here before the attach/detach controller can see the
        # write: if a pod needs the volume again, it must be reported again.
        self.reported_in_use &= frozenset(names)
        written = await self.client.patch(Node, self.name, strategic=patch, subresource="status")
        added = frozenset(names) - self.reported_in_use
        self._acknowledge(frozenset(names), written.revision)
        self._on_in_use_acknowledged(added)

    def _acknowledge(self, names: frozenset[str], revision: int) -> None:
        self.reported_in_use = self._acknowledged_in_use = names
        self._written = revision
        self._acknowledged.set()

    def _is_behind(self, in_use: Callable[[], list[str]]) -> bool:
        """Whether the API server may not know the current volumes in use."""
        now = frozenset(in_use())
        return (
            now != self.reported_in_use
            or now != self._acknowledged_in_use
            or self._was_overwritten(self.cache.get(self.name))
        )

    async def wait_until_written(self) -> None:
        """Until the API server has acknowledged the current volumes in use."""
        while self.list_volumes_in_use is not None and self._is_behind(self.list_volumes_in_use):
            self.report_volumes_in_use()
            self._acknowledged.clear()
            await self._acknowledged.wait()

    async def _report_status(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RESEND):
                    await self._status_changed.wait()
            except TimeoutError:
                pass
            self._status_changed.clear()
            try:
                await self._retry_until_reached(self._write_status)
            except NotFound:
                await self._recreate()

    async def _recreate(self) -> None:
        """Register again after the Node was deleted."""
        try:
            await self.register()
        except NotFound:
            self._status_changed.set()
        else:
            self._on_recreated()

    async def _heartbeat(self) -> None:
        held: Lease | None = None
        while True:
            self._on_heartbeat()
            try:
                async with asyncio.timeout(CALL_TIMEOUT):
                    held = await self._renew(held)
            except (APIError, TimeoutError) as error:
                log.warning("node lease was not renewed: %s", error)
                held = None
            await asyncio.sleep(self.settings.node_status_update_frequency)

    async def _renew(self, held: Lease | None) -> Lease:
        if held is None:
            held = await self.client.find(Lease, self.name, LEASES)
        spec = LeaseSpec(
            holder_identity=self.name,
            lease_duration_seconds=int(self.settings.node_lease_duration),
            renew_time=clock.microstamp(),
        )
        if held is not None:
            return await self.client.update(msgspec.structs.replace(held, spec=spec))
        meta = ObjectMeta(name=self.name, namespace=LEASES, owner_references=(self.owner_reference(),))
        return await self.client.create(Lease(metadata=meta, spec=spec))

    def owner_reference(self) -> OwnerReference:
        kind = kinds.of(Node)
        return OwnerReference(kind.api_version, kind.kind, self.name, self.uid)

    async def _retry_until_reached(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retry while the API server cannot be reached or is not ready."""

        def report(error: Exception) -> None:
            if isinstance(error, NotFound):
                raise error
            log.warning("node %s: %s", self.name, error)

        errors = (APIError, TimeoutError)
        return await retry(call, on=errors, backoff=RETRY, report=report, timeout=CALL_TIMEOUT)


def _pod_cidr(cidr: str) -> dict[str, object]:
    return {"podCIDR": cidr, "podCIDRs": [cidr]}


def _condition(
    old: Node | None, kind: str, status: str, reason: str, message: str, *, now: str
) -> NodeCondition:
    known = old.status.conditions if old is not None else ()
    before = next((c for c in known if c.type == kind), None)
    since = before.last_transition_time if before is not None and before.status == status else now
    return NodeCondition(kind, status, now, since or now, reason, message)
