"""The served kinds: custom resources are added and removed while the server runs.

A `ServedResource` combines a kind with its strategy, its watch cache and its prefix in the store. `version`
counts changes, so that discovery and OpenAPI know when to render again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from volplane.api import kinds
from volplane.api.errors import NotFound
from volplane.api.kinds import Kind
from volplane.api.meta import Resource
from volplane.apiserver.apply.ownership import Ownership, ownership_of
from volplane.apiserver.object_access import ObjectAccess
from volplane.apiserver.selectors import Selection
from volplane.apiserver.strategy import AnyStrategy
from volplane.apiserver.watch_cache import WatchCache

StrategyFactory = Callable[[Kind], AnyStrategy]
WaitApplied = Callable[[int], Awaitable[None]]  # returns when this server has applied what was written


class ServedResource:
    """One served resource."""

    def __init__(self, kind: Kind, strategy: AnyStrategy) -> None:
        self.kind = kind
        self.strategy = strategy
        self.access: ObjectAccess[Any] = strategy.access
        self.resource = kind.resource
        self.prefix = f"/registry/{kind.stored_as or kind.resource}/"
        self.selector_reader = strategy.selector_reader()
        self.watch_cache = WatchCache(self.access, self.selector_reader)
        self.list_prefix = (
            f'{{"kind":"{kind.list_kind}","apiVersion":"{kind.api_version}","metadata":'.encode()
        )
        self._retired = False
        self.watch_wakers: set[Callable[[], None]] = set()  # each wakes a watch, which then notices the end
        self.wait_applied: WaitApplied | None = None

    @cached_property
    def ownership(self) -> Ownership:
        """How fields of this kind are owned; computed when the first object is tracked."""
        return ownership_of(
            self.kind,
            status=self.kind.has_status,
            status_metadata=self.kind.status_metadata,
            schema=self.strategy.schema,
        )

    def is_retired(self) -> bool:
        return self._retired

    def retire(self) -> None:
        """The kind is removed or replaced: watches end, and clients must watch again."""
        self._retired = True
        for wake in tuple(self.watch_wakers):
            wake()

    def namespace_prefix(self, namespace: str) -> str:
        """The prefix of the keys of one namespace, or of all."""
        return f"{self.prefix}{namespace}/" if namespace else self.prefix

    def selection_prefix(self, namespace: str, selection: Selection) -> str:
        """The longest prefix that covers a selection: the key itself if it names one object."""
        name = selection.name
        if name and (namespace or not self.kind.namespaced):
            return self.key(namespace, name)
        return self.namespace_prefix(namespace)

    def key(self, namespace: str, name: str) -> str:
        return f"{self.prefix}{namespace}/{name}" if self.kind.namespaced else f"{self.prefix}{name}"


class Registry:
    def __init__(self, served: Iterable[Kind], strategy_of: StrategyFactory) -> None:
        self.version = 0
        self.rendered: dict[str, Any] = {}  # OpenAPI documents of some `version`
        self._strategy_of = strategy_of
        self._paths: dict[tuple[str, str, str], ServedResource] = {}
        self._types: dict[type[Resource], ServedResource] = {}
        for kind in served:
            self.add(kind)

    def add(self, kind: Kind, strategy: AnyStrategy | None = None) -> ServedResource:
        """Serve a kind; replaces one with the same path."""
        entry = ServedResource(kind, strategy or self._strategy_of(kind))
        if (before := self.find(kind.group, kind.version, kind.plural)) is not None:
            before.retire()
        self._paths[kind.group, kind.version, kind.plural] = entry
        if kind.struct is not None:
            self._types[kind.struct] = entry
        self.version += 1
        return entry

    def remove(self, kind: Kind) -> None:
        self._paths.pop((kind.group, kind.version, kind.plural)).retire()
        if kind.struct is not None:
            del self._types[kind.struct]
        self.version += 1

    def find(self, group: str, version: str, plural: str) -> ServedResource | None:
        return self._paths.get((group, version, plural))

    def of(self, type: type[Resource]) -> ServedResource:
        """The resource of a type. Raises NotFound if it is not served; it may be a custom resource here."""
        entry = self._types.get(type)
        if entry is None:
            kind = kinds.of(type)
            entry = self.find(kind.group, kind.version, kind.plural)
        if entry is None:
            raise NotFound.path()
        return entry

    def __iter__(self) -> Iterator[ServedResource]:
        return iter(list(self._paths.values()))

    def kinds(self) -> list[Kind]:
        return [entry.kind for entry in self._paths.values()]
