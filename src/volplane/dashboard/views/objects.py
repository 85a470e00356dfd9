"""The object view: the states of a claim, its volume and attachments, why it waits, events, finalizers."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.dashboard.fragments import ROOT, Fragments
from volplane.dashboard.live_view import View
from volplane.dashboard.observer import ClusterObserver
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.views import object_render
from volplane.dashboard.views.cluster import wake_for
from volplane.dashboard.views.journey_source import KINDS as JOURNEY_KINDS
from volplane.dashboard.views.journey_source import JourneySubject, parse_subject
from volplane.explain.cluster_state import ClusterState, EventRecord
from volplane.explain.journey.model import Transition
from volplane.explain.journey.transitions import list_transitions
from volplane.explain.resolve import explain
from volplane.explain.result import ExplainResult
from volplane.rules.pods import claim_keys

RELATED: tuple[type[Any], ...] = (PersistentVolumeClaim, PersistentVolume, VolumeAttachment, Pod)
MOST_EVENTS, MOST_TRANSITIONS = 60, 80
FIRST = "/object/"


class ShownObject(Struct, frozen=True):
    """All that is shown about one object."""

    subject: str
    obj: Any
    related: list[Any]
    result: ExplainResult
    events: list[EventRecord]
    transitions: list[Transition]
    hidden_events: int  # older ones that are left out
    hidden_transitions: int
    unknown: tuple[str, ...]


class ObjectView(View):
    def __init__(self, observer: ClusterObserver, page: PageRequest) -> None:
        super().__init__()
        self._observer, self._page = observer, page
        self._target = parse_subject(page.path.removeprefix(FIRST))
        self._journey = JourneySubject(observer, self._target) if self._target.type in JOURNEY_KINDS else None
        self.title = self._target.text

    async def open(self, wake: Callable[[], None]) -> None:
        kinds: list[builtins.type[Any]] = [*RELATED, Node, Event]
        if self._target.type not in kinds:
            kinds.append(self._target.type)
        for type in kinds:
            await self._observer.cache(type)
        if self._journey is not None:
            self.following.callback(self._journey.close)
            await self._journey.open(wake)
        self.following.enter_context(self._observer.subscribe(kinds, lambda old, new: wake()))
        self.following.callback(self._observer.feed.subscribe(lambda spans: wake_for(spans, wake)))

    async def render(self) -> Fragments:
        cache = await self._observer.cache(self._target.type)
        obj = cache.get(self._target.name, self._target.namespace)
        if obj is None:
            return {
                ROOT: object_render.render_missing(self._page, self._target.text, self._journey is not None)
            }
        state = await self._observer.freeze()
        try:
            shown = await self._read(state, obj)
        finally:
            await state.caches.close()
        times = (step.until for step in shown.result.steps if step.until is not None)
        self.next_change = min((at for at in times if at > shown.result.at), default=None)
        return object_render.render(self._page, shown)

    async def _read(self, state: ClusterState, obj: Any) -> ShownObject:
        result = await explain(state, self._target, obj)
        events = await state.find_events(obj)
        transitions: list[Transition] = []
        journey = await self._journey.read() if self._journey is not None else None
        if journey is not None:
            transitions = list(list_transitions([journey], self._target.text).transitions)
        return ShownObject(
            subject=self._target.text,
            obj=obj,
            related=list(await self._find_related(obj)),
            result=result,
            events=events[:MOST_EVENTS],
            transitions=transitions[-MOST_TRANSITIONS:],
            hidden_events=max(len(events) - MOST_EVENTS, 0),
            hidden_transitions=max(len(transitions) - MOST_TRANSITIONS, 0),
            unknown=tuple(result.unknown),
        )

    async def _find_related(self, obj: Any) -> Iterable[Any]:
        """The object with its claims, volumes and attachments."""
        claims, volumes, attachments, pods = [(await self._observer.cache(type)).all() for type in RELATED]
        claim_by_key = {claim.key: claim for claim in claims}
        names: set[str] = set()
        found: dict[str, Any] = {obj.uid: obj}
        match obj:
            case PersistentVolumeClaim():
                names = {obj.spec.volume_name}
            case PersistentVolume():
                names = {obj.name}
            case VolumeAttachment():
                names = {obj.spec.source.persistent_volume_name or ""}
            case Pod():
                own = [claim_by_key[key] for key in claim_keys(obj) if key in claim_by_key]
                found |= {claim.uid: claim for claim in own}
                names = {claim.spec.volume_name for claim in own}
        names.discard("")
        keys = {claim.key for claim in claims if claim.spec.volume_name in names}
        found |= {o.uid: o for o in claims if o.key in keys}
        found |= {o.uid: o for o in volumes if o.name in names}
        found |= {o.uid: o for o in attachments if o.spec.source.persistent_volume_name in names}
        found |= {o.uid: o for o in pods if keys.intersection(claim_keys(o))}
        return found.values()
