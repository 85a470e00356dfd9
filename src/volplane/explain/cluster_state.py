"""The state of one cluster as far as it may be read: objects, events, wait reports.

The controllers are loaded with caches that are filled once, and they never act.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from msgspec import Struct

from volplane.api import kinds
from volplane.api.core import Event, Node
from volplane.api.meta import Resource
from volplane.base import clock
from volplane.client.cache import Cache
from volplane.client.client import Client
from volplane.client.live_caches import LiveCaches
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.explain.wait_reports import NOT_ASKED, RoleReports
from volplane.loops.controller import Controller
from volplane.rules import taints

T = TypeVar("T", bound=Resource)
C = TypeVar("C", bound=Controller[Any, Any, Any])


class EventRecord(Struct, frozen=True):
    """An event, with the time of its last occurrence."""

    at: datetime
    type: str
    reason: str
    message: str
    count: int = 1


LONG_AGO = datetime.min.replace(tzinfo=UTC)


class ClusterState:
    def __init__(
        self,
        caches: SnapshotCaches | LiveCaches,
        roles: RoleReports | None = None,
        now: datetime | None = None,
    ) -> None:
        self.caches = caches
        self.client = Client(caches._transport, caches=caches, component="volplane explain")
        self.roles = roles or RoleReports()
        self.now = now or clock.wall()
        self._controllers: dict[type[Controller[Any, Any, Any]], Controller[Any, Any, Any]] = {}

    async def cache(self, type: type[T], *, namespace: str = "") -> Cache[T]:
        cache = self.client.cache(type, namespace=namespace)
        await cache.wait_synced()
        return cache

    async def cannot_read(self, *types: type[Resource]) -> bool:
        """Whether one of these kinds may not be read: then a missing object proves nothing."""
        for each in types:
            await self.cache(each)
        return any(kinds.of(each).plural in self.caches.unread for each in types)

    async def load_controller(self, role: type[C], **options: Any) -> C:
        """A controller with filled caches that never acts."""
        controller = self._controllers.get(role)
        if controller is None:
            controller = self._controllers[role] = role(self.client, **options)
            await controller.sync_only()
        assert isinstance(controller, role)
        return controller

    def describe_event(self, event: EventRecord) -> str:
        times = "once" if event.count == 1 else f"{event.count} times"
        return f"event {event.reason}, {times}, last {format_duration(self.now - event.at)} ago"

    async def find_events(self, obj: Resource, *reasons: str) -> list[EventRecord]:
        """Events about the object, the newest first."""
        cache = await self.cache(Event, namespace=obj.namespace or "default")
        found = [
            (_event_record(e), _revision_of(e))
            for e in cache.all()
            if e.involved_object.uid in (obj.uid, obj.name)  # a kubelet refers to its node by name
            and e.involved_object.name == obj.name
            and (not reasons or e.reason in reasons)
        ]
        # Many timestamps have whole seconds only; within one second, the event written last counts.
        return [event for event, _ in sorted(found, key=lambda f: (f[0].at, f[1]), reverse=True)]

    def list_unknowns(self) -> list[str]:
        """What could not be read or asked."""
        unread = [f"{kind}: {why}" for kind, why in sorted(self.caches.unread.items())]
        silent = [f"{role}: its process does not answer" for role in self.roles.silent]
        return [*unread, *silent, *([] if self.roles.asked else [NOT_ASKED])]


def _event_record(event: Event) -> EventRecord:
    series = event.series
    stamps = (series.last_observed_time if series else "", event.last_timestamp, event.event_time)
    at = next((at for at in map(parse_time, (*stamps, event.metadata.creation_timestamp)) if at), None)
    count = series.count if series else event.count
    return EventRecord(at or LONG_AGO, event.type, event.reason, event.message.strip(), max(count, 1))


def _revision_of(event: Event) -> int:
    revision = event.metadata.resource_version
    return int(revision) if revision.isdigit() else 0


def parse_time(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        return clock.parse(text)
    except ValueError:
        return None


def format_duration(span: timedelta) -> str:
    """`4m 56s`, `36s`, `2h 3m`, `3d 4h`: at most two units."""
    seconds = max(int(span.total_seconds()), 0)
    parts = _parts(seconds)
    return " ".join([f"{count}{unit}" for count, unit in parts][:2]) or "0s"


def _parts(seconds: int) -> Iterator[tuple[int, str]]:
    started = False
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        started = started or count > 0
        if started:
            yield count, unit


def ready_since(node: Node) -> datetime | None:
    """When its Ready condition last changed."""
    found = (c.last_transition_time for c in node.status.conditions if c.type == "Ready")
    return parse_time(next(found, ""))


def describe_node_problem(node: Node | None, name: str, now: datetime) -> str:
    """What is wrong with a node; "" if it is ready."""
    if node is None:
        return f"node {name} does not exist any more"
    if taints.is_ready(node):
        return ""
    ready = next((c for c in node.status.conditions if c.type == "Ready"), None)
    since = ready_since(node)
    duration = f" for {format_duration(now - since)}" if since else ""
    if ready is None or ready.status == "Unknown":
        return f"{name} has been unreachable{duration}"
    return f"{name} has been NotReady{duration}" + (f": {ready.message}" if ready.message else "")
