"""The kinds that are served, looked up at run time: custom resources come and go while the server runs.

An entry binds a kind to its strategy, its shape and its place in the store. `version` counts changes, so
that discovery and OpenAPI know when what they have rendered is out of date.
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
from volplane.apiserver.feed import Feed
from volplane.apiserver.selection import Selection
from volplane.apiserver.shape import Shape
from volplane.apiserver.strategy import AnyStrategy

StrategyOf = Callable[[Kind], AnyStrategy]
Follow = Callable[[int], Awaitable[None]]  # returns when this server acts by what was written


class Entry:
    """One served resource."""

    def __init__(self, kind: Kind, strategy: AnyStrategy) -> None:
        self.kind = kind
        self.strategy = strategy
        self.facts = strategy.facts
        self.shape: Shape[Any] = strategy.shape
        self.resource = kind.resource
        self.prefix = f"/registry/{strategy.stored_as or kind.resource}/"
        self.glance = strategy.glance()
        self.feed = Feed(self.shape, self.glance)
        self.list_head = f'{{"kind":"{kind.list_kind}","apiVersion":"{kind.api_version}","metadata":'.encode()
        self._retired = False
        self.watching: set[Callable[[], None]] = set()  # wakes a watch, so that it looks around
        self.follow: Follow | None = None

    @cached_property
    def ownership(self) -> Ownership:
        """How fields of this kind are owned; worked out when the first object is tracked."""
        facts = self.facts
        return ownership_of(
            self.kind,
            status=facts.status,
            status_metadata=facts.status_metadata,
            schema=self.strategy.schema,
        )

    def is_retired(self) -> bool:
        return self._retired

    def retire(self) -> None:
        """It is no longer served, or not like this: whoever watches must begin anew."""
        self._retired = True
        for wake in tuple(self.watching):
            wake()

    def scope(self, namespace: str) -> str:
        """The keys of one namespace, or of all."""
        return f"{self.prefix}{namespace}/" if namespace else self.prefix

    def reach(self, namespace: str, selection: Selection) -> str:
        """The shortest prefix that holds a selection: one that names its object needs no other."""
        name = selection.name
        if name and (namespace or not self.kind.namespaced):
            return self.key(namespace, name)
        return self.scope(namespace)

    def key(self, namespace: str, name: str) -> str:
        return f"{self.prefix}{namespace}/{name}" if self.kind.namespaced else f"{self.prefix}{name}"


class Registry:
    def __init__(self, served: Iterable[Kind], strategy_of: StrategyOf) -> None:
        self.version = 0
        self._strategy_of = strategy_of
        self._paths: dict[tuple[str, str, str], Entry] = {}
        self._types: dict[type[Resource], Entry] = {}
        for kind in served:
            self.add(kind)

    def add(self, kind: Kind, strategy: AnyStrategy | None = None) -> Entry:
        """One that was served at this place before is replaced."""
        entry = Entry(kind, strategy or self._strategy_of(kind))
        if (before := self.find(kind.group, kind.version, kind.plural)) is not None:
            before.retire()
        self._paths[kind.group, kind.version, kind.plural] = entry
        if kind.type is not None:
            self._types[kind.type] = entry
        self.version += 1
        return entry

    def remove(self, kind: Kind) -> None:
        self._paths.pop((kind.group, kind.version, kind.plural)).retire()
        if kind.type is not None:
            del self._types[kind.type]
        self.version += 1

    def find(self, group: str, version: str, plural: str) -> Entry | None:
        return self._paths.get((group, version, plural))

    def of(self, type: type[Resource]) -> Entry:
        """The entry of a kind, if it is served; one that clients have a type for may be a custom one here."""
        entry = self._types.get(type)
        if entry is None:
            kind = kinds.of(type)
            entry = self.find(kind.group, kind.version, kind.plural)
        if entry is None:
            raise NotFound.path()
        return entry

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._paths.values()))

    def kinds(self) -> list[Kind]:
        return [entry.kind for entry in self._paths.values()]
