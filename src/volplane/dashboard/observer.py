"""What is read of a cluster while a page is open: objects that are followed, and the roles' reports.

It is created for the first open view and closed after the last one, so that a page that is not open costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.storage import VolumeAttachment
from volplane.client.cache import Cache
from volplane.client.client import Client
from volplane.client.live_caches import FrozenCaches, LiveCaches
from volplane.dashboard.log_lines import LogReader
from volplane.dashboard.source import ClusterSource
from volplane.dashboard.span_feed import open_feed
from volplane.explain.cluster_state import ClusterState
from volplane.explain.wait_reports import RoleAnswers, RoleReports, ask_all, read_all_reports
from volplane.loops.wait_reports import Question
from volplane.rules.trace_subjects import list_trace_facts

T = TypeVar("T", bound=Resource)
A = TypeVar("A")

TRACED: Sequence[type[Any]] = (PersistentVolumeClaim, PersistentVolume, VolumeAttachment, Pod)
OnChange = Callable[[Any, Any], None]  # called with the old and the new object


class ClusterObserver:
    """Opened before it is used."""

    def __init__(self, source: ClusterSource) -> None:
        self.source = source
        self.feed = open_feed(source.spans, source.trace)
        self.logs = LogReader(source.logs, has_own=source.has_own_logs)
        self.caches = LiveCaches(source.transport, namespace=source.namespace)
        self.client = Client(source.transport, caches=self.caches, component="volplane-ui")

    async def open(self) -> None:
        if self.source.trace is not None:  # recording begins now: what exists is not known to it
            for cache in [await self.cache(type) for type in TRACED]:
                for obj in cache.all():
                    self.source.trace.index.learn_all(list_trace_facts(obj))
        await self.feed.open()
        self.logs.open()

    async def cache(self, type: type[T], *, namespace: str = "") -> Cache[T]:
        """The objects of a kind, followed from now on."""
        cache = self.client.cache(type, namespace=namespace)
        await cache.wait_synced()
        return cache

    def subscribe(self, types: Iterable[type[Resource]], on_change: OnChange) -> ExitStack:
        """Call `on_change` for every change of objects of these kinds, until the stack is closed."""
        stack = ExitStack()
        for each in types:
            stack.callback(self.client.cache(each).subscribe(on_change))
        return stack

    def list_unread(self) -> list[str]:
        """The kinds that may not be read, and why."""
        return [f"{kind}: {why}" for kind, why in sorted(self.caches.unread.items())]

    async def freeze(self) -> ClusterState:
        """The cluster as it is now, with what its roles wait for: to run views and plans on it."""
        sockets = self.source.sockets
        reports = await read_all_reports(sockets) if sockets is not None else RoleReports()
        return ClusterState(FrozenCaches(self.caches), reports)

    async def ask(self, question: Question, type: type[A]) -> RoleAnswers[A]:
        """What the running roles answer; nothing if their sockets are not on this machine."""
        if self.source.sockets is None:
            return RoleAnswers()
        return await ask_all(self.source.sockets, question, type)

    async def close(self) -> None:
        self.logs.close()
        await self.feed.close()
        await self.caches.close()
